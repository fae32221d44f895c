"""Finds the numeric kernels of this package: `HANDLERS` by kind of task body, and in `lowering` `TARGETS` by op."""

from collections.abc import Callable
from functools import cache

from executors.binding import Binding, Instance
from simulator.plan.discovery import modules
from simulator.plan.task import Task

Run = Callable[[Instance], None]


@cache
def handlers() -> dict[str, Callable[[Task, Binding], Run]]:
    """`compile_task(task, binding) -> run(instance)` by body kind."""
    return {kind: compiler for module in modules(__package__) for kind, compiler in getattr(module, "HANDLERS", {}).items()}


@cache
def _lowerings() -> dict[str, Callable[[Task, Binding], Run | None]]:
    return {op: lower for module in modules(f"{__package__}.lowering") for op, lower in getattr(module, "TARGETS", {}).items()}


def lowered(task: Task, binding: Binding) -> Run | None:
    """The function that runs an op in the backend's own form; None if the op runs in its canonical form."""
    lower = _lowerings().get(task.body.target)
    return lower(task, binding) if lower is not None else None
