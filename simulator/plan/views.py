"""Operands seen through one more view step."""

import json

from simulator.plan.task import Operand, ViewStep


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor."""
    found = [1]
    for extent in reversed(shape[1:]):
        found.append(found[-1] * extent)
    return tuple(reversed(found))


def part(operand: Operand, first: int, end: int) -> Operand:
    """Entries `first` to `end` along dimension 0."""
    if (first, end) == (0, operand.shape[0]):
        return operand
    return _seen(operand, (end - first, *operand.shape[1:]), operand.strides, "aten.slice.Tensor", 0, first, end)


def entry(operand: Operand, place: int) -> Operand:
    """One entry along dimension 0."""
    return _seen(operand, operand.shape[1:], operand.strides[1:], "aten.select.int", 0, place)


def with_dim(operand: Operand, dim: int) -> Operand:
    """With a dimension of extent 1 before dimension `dim`."""
    shape, strides = operand.shape, operand.strides
    stride = shape[dim] * strides[dim]
    return _seen(operand, (*shape[:dim], 1, *shape[dim:]), (*strides[:dim], stride, *strides[dim:]), "aten.unsqueeze.default", dim)


def without_dim(operand: Operand, dim: int) -> Operand:
    """Without dimension `dim`, of extent 1."""
    shape, strides = operand.shape, operand.strides
    return _seen(operand, (*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), "aten.squeeze.dim", dim)


def transposed(operand: Operand) -> Operand:
    """With its last two dimensions exchanged."""
    *shape, rows, columns = operand.shape
    *strides, by_row, by_column = operand.strides
    last = len(operand.shape) - 1
    return _seen(operand, (*shape, columns, rows), (*strides, by_column, by_row), "aten.transpose.int", last - 1, last)


def shaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """With other dimensions: all in one order, as `Tensor.view` allows it. Raises ValueError where it does not."""
    if shape == operand.shape:
        return operand
    strides = _strides_as(operand.shape, operand.strides, shape)
    return _seen(operand, shape, strides, "aten.view.default", list(shape))


def _strides_as(old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    return torch.empty_strided(old, strides, device="meta").view(new).stride()


def _seen(operand: Operand, shape: tuple[int, ...], strides: tuple[int, ...], target: str, *args: int) -> Operand:
    return Operand(operand.value, shape, strides, operand.dtype, (*operand.views, ViewStep(target, json.dumps(args))))
