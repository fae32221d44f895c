"""Finds every kind of task body. Bodies build on plans, so this module knows their package by name alone."""

from dataclasses import is_dataclass

from simulator.plan.discovery import modules


def body_types() -> dict[str, type]:
    """Every kind of body by its `kind` string: the dataclasses with a field `kind` that a module of `simulator.plan.bodies` defines."""
    return {
        str(item.__dataclass_fields__["kind"].default): item
        for module in modules("simulator.plan.bodies")
        for item in vars(module).values()
        if is_dataclass(item) and isinstance(item, type) and item.__module__ == module.__name__ and "kind" in item.__dataclass_fields__
    }
