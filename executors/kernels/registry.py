"""Finds the numeric kernels: the modules of this package that have `KIND` and `compile_task`, one per kind of task body."""

from collections.abc import Callable
from functools import cache

from simulator.plan.discovery import modules


@cache
def handlers() -> dict[str, Callable]:
    """`compile_task(task, binding) -> run(instance)` by body kind."""
    return {module.KIND: module.compile_task for module in modules(__package__) if hasattr(module, "KIND")}
