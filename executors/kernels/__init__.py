"""Numeric kernels, one module per kind of task body; modules with `KIND` and `compile_task` are discovered."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache


@cache
def handlers() -> dict[str, Callable]:
    """`compile_task(task, binding) -> run(instance)` by body kind."""
    loaded = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.KIND: module.compile_task for module in loaded if hasattr(module, "KIND")}
