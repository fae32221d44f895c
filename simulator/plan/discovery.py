"""Find the modules of a package, so that a new strategy, kind of task or rule is a new file and nothing else."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(package: str) -> Iterator[ModuleType]:
    """Import and yield every module directly in `package`, in alphabetical order; subpackages are skipped."""
    path = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(path):
        if not module.ispkg:
            yield importlib.import_module(f"{package}.{module.name}")
