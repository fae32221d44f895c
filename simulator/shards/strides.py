"""Shapes and strides of a worker's own tensors, and of views of them."""

import json
from collections.abc import Sequence
from functools import lru_cache

from simulator.plan.task import Operand, ViewStep
from simulator.shards.boxes import NotABoxError, arguments_of_view, shape_after, slice_arguments, view_order


@lru_cache(maxsize=4096)
def dense(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a tensor of `shape` without gaps whose dimensions are in the order of those with strides `like`."""
    strides = [1] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda d: (like[d], -d)):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def with_views(operand: Operand, steps: Sequence[ViewStep]) -> Operand:
    """The operand with more view steps. Raises NotABoxError for a `view` that its strides do not allow, and for an unknown step."""
    if not steps:
        return operand
    shape, strides = operand.shape, operand.strides
    for step in steps:
        shape, strides = shape_after(step, shape), _strides_after(step, shape, strides)
    return Operand(operand.value, shape, strides, operand.dtype, (*operand.views, *steps))


def cut(operand: Operand, ranges: Sequence[tuple[int, int]]) -> Operand:
    """The part of an operand within `ranges`, one for each dimension."""
    steps = [
        ViewStep("aten.slice.Tensor", json.dumps([dim, *part], separators=(",", ":")))
        for dim, (part, extent) in enumerate(zip(ranges, operand.shape, strict=True))
        if tuple(part) != (0, extent)
    ]
    return with_views(operand, steps)


def _strides_after(step: ViewStep, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    name, arguments = arguments_of_view(step)
    result = shape_after(step, shape)
    if name in ("view", "_unsafe_view", "reshape"):
        return _reshaped(shape, strides, result)
    if name == "expand":
        new = len(result) - len(shape)
        return (*(0,) * new, *(s if e == n else 0 for e, n, s in zip(shape, result[new:], strides, strict=True)))
    if name in ("t", "transpose", "permute"):
        return tuple(strides[d] for d in view_order(name, arguments, len(shape)))
    if name == "unsqueeze":
        at = arguments[0] % (len(shape) + 1)
        return (*strides[:at], shape[at] * strides[at] if at < len(shape) else 1, *strides[at:])
    dim, *_, by = slice_arguments(arguments, shape)
    return (*strides[:dim], strides[dim] * by, *strides[dim + 1 :])


def _reshaped(shape: tuple[int, ...], strides: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor seen as shape `result`, by PyTorch's rule: what is merged must lie without gaps."""
    chunks: list[tuple[int, int]] = []  # (elements, stride of the last one), from the last dimension on
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if chunks and stride == chunks[-1][0] * chunks[-1][1]:
            chunks[-1] = (chunks[-1][0] * extent, chunks[-1][1])
        else:
            chunks.append((extent, stride))
    new: list[int] = []
    left, stride = chunks.pop(0) if chunks else (1, 1)
    for extent in reversed(result):
        if left == 1 and extent > 1 and chunks:
            left, stride = chunks.pop(0)
        if left % extent:
            raise NotABoxError(f"a tensor of shape {shape} with strides {strides} cannot be seen as {result}")
        new.append(stride)
        stride *= extent
        left //= extent
    return tuple(reversed(new))
