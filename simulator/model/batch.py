"""Batches as users write them: a tensor, or a tuple, list, mapping or dataclass of batches; anything else in them is not a tensor."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


def arguments(module: torch.nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments with which a module is called on the inputs of a factory.

    A mapping holds keyword arguments if the module's forward has these names, a tuple or list positional ones if it takes as many.
    Otherwise, as with any other object, the inputs are the one argument.
    """
    if isinstance(inputs, Mapping) and _accepts(module, **inputs):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and (_accepts(module, *inputs) or not _accepts(module, inputs)):
        return tuple(inputs), {}
    return (inputs,), {}


def _accepts(module: torch.nn.Module, *positional: Any, **keywords: Any) -> bool:
    try:
        inspect.signature(module.forward).bind(*positional, **keywords)
    except (TypeError, ValueError):  # ValueError: it has no signature
        return False
    return True


def tensors_of(batch: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of a batch with its place, such as `NAME.mask.0`."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    for key, item in _items(batch):
        yield from tensors_of(item, f"{name}.{key}")


def mapped(batch: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch of the same form with every tensor converted."""
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    items = {key: mapped(item, convert) for key, item in _items(batch)}
    if not items:
        return batch
    if _is_record(batch):
        return replace(batch, **items)
    if isinstance(batch, Mapping):
        return type(batch)(items)
    return type(batch)(*items.values()) if hasattr(batch, "_fields") else type(batch)(items.values())


def _items(batch: Any) -> list[tuple[Any, Any]]:
    """The parts of a batch by key; none if it is no collection."""
    if _is_record(batch):
        return [(field.name, getattr(batch, field.name)) for field in fields(batch) if field.init]
    if isinstance(batch, Mapping):
        return list(batch.items())
    return list(enumerate(batch)) if isinstance(batch, tuple | list) else []


def _is_record(batch: Any) -> bool:
    return is_dataclass(batch) and not isinstance(batch, type)
