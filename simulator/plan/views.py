"""Operands with one more view step."""

import json

from simulator.plan.task import Operand, ViewStep


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor."""
    strides = [1] if shape else []
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def part(operand: Operand, first: int, end: int) -> Operand:
    """Entries `first` to `end` (exclusive) along dimension 0."""
    if (first, end) == (0, operand.shape[0]):
        return operand
    return viewed(operand, (end - first, *operand.shape[1:]), operand.strides, "aten.slice.Tensor", 0, first, end)


def entry(operand: Operand, position: int) -> Operand:
    """The entry at `position` along dimension 0."""
    return viewed(operand, operand.shape[1:], operand.strides[1:], "aten.select.int", 0, position)


def with_dim(operand: Operand, dim: int) -> Operand:
    """The operand with a dimension of extent 1 inserted before dimension `dim`."""
    shape, strides = operand.shape, operand.strides
    stride = shape[dim] * strides[dim]
    return viewed(operand, (*shape[:dim], 1, *shape[dim:]), (*strides[:dim], stride, *strides[dim:]), "aten.unsqueeze.default", dim)


def without_dim(operand: Operand, dim: int) -> Operand:
    """The operand without dimension `dim`, whose extent is 1."""
    shape, strides = operand.shape, operand.strides
    return viewed(operand, (*shape[:dim], *shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), "aten.squeeze.dim", dim)


def transposed(operand: Operand) -> Operand:
    """The operand with its last two dimensions exchanged."""
    *shape, rows, columns = operand.shape
    *strides, by_row, by_column = operand.strides
    last = len(operand.shape) - 1
    return viewed(operand, (*shape, columns, rows), (*strides, by_column, by_row), "aten.transpose.int", last - 1, last)


def viewed(operand: Operand, shape: tuple[int, ...], strides: tuple[int, ...], target: str, *args: object) -> Operand:
    """The operand with one more view step: the aten op `target` with `args`, which results in `shape` and `strides`."""
    return Operand(operand.value, shape, strides, operand.dtype, (*operand.views, ViewStep(target, json.dumps(args))))
