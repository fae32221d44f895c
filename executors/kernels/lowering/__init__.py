"""Canonical ops that a backend runs in a form of its own, one module per family; modules with `TARGETS` are discovered."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from simulator.plan import Task

from ...binding import Binding, Instance


@cache
def families() -> dict[str, Callable[[Task, Binding], Callable[[Instance], None] | None]]:
    """`lower(task, binding) -> run(instance)`, or None where the op runs as it is, by target."""
    loaded = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {target: lower for module in loaded for target, lower in getattr(module, "TARGETS", {}).items()}


def lowered(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """A run function for an op that the backend runs in another form, else None."""
    lower = families().get(task.body.target)
    return lower(task, binding) if lower is not None else None
