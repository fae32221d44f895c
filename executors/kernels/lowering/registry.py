"""Canonical ops that a backend runs in a form of its own, one module per family; modules with `TARGETS` are discovered."""

from collections.abc import Callable
from functools import cache

from executors.binding import Binding, Instance
from simulator.discovery import modules
from simulator.plan.task import Task


@cache
def families() -> dict[str, Callable[[Task, Binding], Callable[[Instance], None] | None]]:
    """`lower(task, binding) -> run(instance)`, or None where the op runs as it is, by target."""
    return {target: lower for module in modules(__package__) for target, lower in getattr(module, "TARGETS", {}).items()}


def lowered(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """A run function for an op that the backend runs in another form, else None."""
    lower = families().get(task.body.target)
    return lower(task, binding) if lower is not None else None
