"""Calls one aten op.

Finds the ops that a backend runs in a form of its own: the modules of `lowering` that have `TARGETS`, one per family of ops.
"""

from collections.abc import Callable
from functools import cache

from executors.binding import Binding, Instance
from executors.kernels.call import compile_call
from simulator.plan.discovery import modules
from simulator.plan.task import Task


@cache
def families() -> dict[str, Callable[[Task, Binding], Callable[[Instance], None] | None]]:
    """By target, `lower(task, binding) -> run(instance)`. `lower` returns None if the op runs in its canonical form."""
    return {target: lower for module in modules("executors.kernels.lowering") for target, lower in getattr(module, "TARGETS", {}).items()}


def lowered(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """The function that runs the op in the backend's own form; None if the op runs in its canonical form."""
    lower = families().get(task.body.target)
    return lower(task, binding) if lower is not None else None


KIND = "op"


def compile_task(task: Task, binding: Binding) -> Callable[[Instance], None]:
    """A function that runs the op in the backend's form on an instance's tensors and stores its results."""
    return lowered(task, binding) or compile_call(task, binding)
