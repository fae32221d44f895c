"""Task bodies: what a task does, as data without callables. One file per kind; modules are discovered.

Every body follows `work.Body`: a frozen dataclass with a `kind` string, `key(task)`, `launches` and `work(task)`.
"""

import importlib
import pkgutil
from dataclasses import is_dataclass


def body_types() -> dict[str, type]:
    """Every kind of body by its `kind` string."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        for item in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(item, type) and is_dataclass(item) and "kind" in item.__dataclass_fields__:
                found[item.__dataclass_fields__["kind"].default] = item
    return found
