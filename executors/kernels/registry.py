"""Numeric kernels, one module per kind of task body; modules with `KIND` and `compile_task` are discovered."""

from collections.abc import Callable
from functools import cache

from simulator.discovery import modules


@cache
def handlers() -> dict[str, Callable]:
    """`compile_task(task, binding) -> run(instance)` by body kind."""
    return {module.KIND: module.compile_task for module in modules(__package__) if hasattr(module, "KIND")}
