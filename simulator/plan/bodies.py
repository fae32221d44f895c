"""Finds every kind of task body. Bodies build on plans, so this module knows their package by name alone."""

from dataclasses import is_dataclass

from simulator.discovery import modules


def body_types() -> dict[str, type]:
    """Every kind of body by its `kind` string."""
    return {
        item.__dataclass_fields__["kind"].default: item
        for module in modules("simulator.bodies")
        for item in vars(module).values()
        if isinstance(item, type) and is_dataclass(item) and "kind" in item.__dataclass_fields__
    }
