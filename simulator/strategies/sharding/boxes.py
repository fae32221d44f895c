"""Boxes: parts of a tensor, as a half-open range for each dimension; where they come from if the tensor is a view; and views of them."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

from simulator.plan.task import Operand, ViewStep
from simulator.plan.tensors import Box, contiguous
from simulator.plan.views import (
    PERMUTING,
    RESHAPING,
    NotABoxError,
    arguments_of_view,
    equal_ranges,
    geometry,
    inferred,
    order_of,
    slice_arguments,
    view_step,
    with_views,
)


@lru_cache(maxsize=4096)
def whole(shape: tuple[int, ...]) -> Box:
    """The box of a whole tensor."""
    return tuple((0, extent) for extent in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """The extents of a box."""
    return tuple(end - first for first, end in box)


def elements(box: Box) -> int:
    """The number of elements of a box."""
    return prod(shape_of(box))


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes have in common; None if that is nothing."""
    common = []
    for (first, end), (other, last) in zip(a, b, strict=True):
        low, high = first if first > other else other, end if end < last else last
        if low >= high:
            return None
        common.append((low, high))
    return tuple(common)


def within(box: Box, outer: Box) -> Box:
    """`box` in coordinates that start where `outer` starts."""
    return tuple((first - origin, end - origin) for (first, end), (origin, _) in zip(box, outer, strict=True))


def broadcast(shape: tuple[int, ...], box: Box) -> Box:
    """The box of a tensor of `shape` whose elements those of `box` are made of, if it is expanded to the shape that `box` is a part of."""
    kept = box[len(box) - len(shape) :]
    return tuple((0, 1) if extent == 1 else part for extent, part in zip(shape, kept, strict=True))


def parts(shape: tuple[int, ...], degrees: tuple[int, ...]) -> list[Box]:
    """`shape` in equal parts: `degrees` of them along each dimension, the last dimension changing fastest.

    Raises ValueError if a degree does not divide its extent.

    >>> parts((4, 6), degrees=(2, 1))
    [((0, 2), (0, 6)), ((2, 4), (0, 6))]
    """
    if any(extent % degree for extent, degree in zip(shape, degrees, strict=True)):
        raise ValueError(f"{shape} does not divide into {degrees}")
    steps = [extent // degree for extent, degree in zip(shape, degrees, strict=True)]
    return [
        tuple((place * step, (place + 1) * step) for place, step in zip(places, steps, strict=True))
        for places in product(*map(range, degrees))
    ]


def behind_views(operand: Operand, shape: tuple[int, ...], box: Box) -> tuple[Box, tuple[ViewStep, ...]]:
    """The box of a value of `shape` that `box` of an operand views, and the view steps that turn the one into the other.

    Raises NotABoxError if what the operand's box views is no box of the value, or a view step is of another kind than those known here.
    """
    if not operand.views and shape == operand.shape:
        return box, ()
    shapes = [shape]
    for step in operand.views:
        shapes.append(geometry(step, shapes[-1], contiguous(shapes[-1]))[0])
    if shapes[-1] != operand.shape:
        raise NotABoxError(f"{operand.value} is viewed as {operand.shape} in a way that is not known")
    steps: list[ViewStep] = []
    for step, before in zip(reversed(operand.views), reversed(shapes[:-1]), strict=True):
        box, local = _behind(step, before, box)
        if local is not None:
            steps.append(local)
    return box, tuple(reversed(steps))


def _behind(step: ViewStep, shape: tuple[int, ...], box: Box) -> tuple[Box, ViewStep | None]:
    """The box of `shape` that `box` of the view is, and the step that views it so; None if that step does nothing."""
    name, arguments = arguments_of_view(step)
    if name in RESHAPING:
        return _reshaped(shape, inferred(tuple(arguments[0]), prod(shape)), box), view_step("aten.view.default", list(shape_of(box)))
    if name == "expand":
        return broadcast(shape, box), view_step("aten.expand.default", list(shape_of(box)))
    if name in PERMUTING:
        order = order_of(name, arguments, len(shape))
        return tuple(box[order.index(d)] for d in range(len(shape))), step
    if name == "unsqueeze":
        at = arguments[0] % (len(shape) + 1)
        return (*box[:at], *box[at + 1 :]), step
    if name != "slice":
        raise NotABoxError(f"{step.target} is not known")
    dim, start, _, by = slice_arguments(arguments, shape)
    first, end = box[dim]
    if first < 0 or end > geometry(step, shape, shape)[0][dim]:
        raise NotABoxError(f"the padding of a slice at {box} is no part of {shape}")
    inner = (*box[:dim], (start + first * by, start + (end - 1) * by + 1), *box[dim + 1 :])
    return inner, None if by == 1 else view_step("aten.slice.Tensor", dim, 0, inner[dim][1] - inner[dim][0], by)


def cut(operand: Operand, ranges: Sequence[tuple[int, int]]) -> Operand:
    """The part of an operand within `ranges`, one for each dimension."""
    parts = enumerate(zip(ranges, operand.shape, strict=True))
    steps = [view_step("aten.slice.Tensor", dim, *part) for dim, (part, extent) in parts if tuple(part) != (0, extent)]
    return with_views(operand, steps)


def _reshaped(before: tuple[int, ...], after: tuple[int, ...], box: Box) -> Box:
    """The box of a contiguous tensor of shape `before` whose elements are those of `box` if it is seen as shape `after`."""
    result: list[tuple[int, int]] = []
    for (first, end), (start, stop) in equal_ranges(before, after):
        result += _regrouped(before[first:end], after[start:stop], box[start:stop])
    return tuple(result)


def _regrouped(before: tuple[int, ...], after: tuple[int, ...], box: Box) -> Box:
    if before == after:
        return box
    if box == whole(after):
        return whole(before)
    leading = next(d for d, extent in enumerate(after) if extent > 1)
    first, end = box[leading]
    if box[leading + 1 :] != whole(after[leading + 1 :]):
        raise NotABoxError(f"{box} of {after} is no box of {before}")
    inner = prod(after[leading + 1 :])
    first, end = first * inner, end * inner
    split = next(d for d, extent in enumerate(before) if extent > 1)
    row = prod(before[split + 1 :])
    if first % row or end % row:
        raise NotABoxError(f"{box} of {after} is no box of {before}")
    return (*whole(before[:split]), (first // row, end // row), *whole(before[split + 1 :]))


def without(box: Box, taken: Box) -> list[Box]:
    """`box` without what it has in common with `taken`, as disjoint boxes."""
    common = overlap(box, taken)
    if common is None:
        return [box]
    rest = []
    for dim, ((first, end), (low, high)) in enumerate(zip(box, common, strict=True)):
        rest += [(*common[:dim], side, *box[dim + 1 :]) for side in ((first, low), (high, end)) if side[0] < side[1]]
    return rest
