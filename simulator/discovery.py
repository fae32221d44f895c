"""Finds the modules of a package, so that adding a strategy, a kind of task, a workload or a rule is adding a file."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(package: str) -> Iterator[ModuleType]:
    """Import and yield every module directly in `package`, in alphabetical order; folders inside it are left alone."""
    path = importlib.import_module(package).__path__
    for found in pkgutil.iter_modules(path):
        if not found.ispkg:
            yield importlib.import_module(f"{package}.{found.name}")
