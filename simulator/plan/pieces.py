"""Pieces: values of a plan that hold a box of one of the job's tensors, such as half of a weight's rows.

A piece's `source` says where it lies: the job's tensor, and the slices that cut the piece out of it. Pieces of one tensor may lie on
several devices. Those of one box are replicas; others are disjoint. A value that holds a whole tensor is a piece, too: its source has no
slices.
"""

import json
from bisect import bisect_left
from collections.abc import Collection
from itertools import product

from simulator.plan.contents import PlanContents
from simulator.plan.task import CARRIED_KINDS, Operand, Value, ViewStep

#: (first, end) for each dimension of a tensor. What lies beyond the tensor is padding.
Box = tuple[tuple[int, int], ...]


def seen_as(source: Operand) -> tuple[int, ...] | None:
    """The shape that the job's tensor is seen as before a piece is cut out of it, as if it were of blocks; None for its own shape."""
    if not source.views or source.views[0].target != "aten.view.default":
        return None
    return tuple(json.loads(source.views[0].args)[0])


def box_of(source: Operand) -> Box:
    """The part of the job's tensor that `source` is, in the shape that the tensor is seen as.

    Raises ValueError if its view steps are not slices without gaps, each of which begins at a place counted from the start.
    """
    first = [0] * len(source.shape)
    for view in source.views[seen_as(source) is not None :]:
        dim, start = _slice(view, len(first))
        first[dim] += start
    return tuple((at, at + extent) for at, extent in zip(first, source.shape, strict=True))


def _slice(view: ViewStep, rank: int) -> tuple[int, int]:
    """The dimension that a slice cuts, and where it begins."""
    try:
        arguments: list[int | None] = json.loads(view.args)
        dim, start, _, step = (*arguments, *(0, None, None, 1)[len(arguments) :])
        if view.target == "aten.slice.Tensor" and dim is not None and dim in range(-rank, rank) and (start or 0) >= 0 and step == 1:
            return dim, start or 0
    except (TypeError, ValueError):
        pass
    raise ValueError(f"it is cut by {view.target}{view.args}; expected aten.slice.Tensor with a first place from 0 on and a step of 1")


def held(plan: PlanContents, names: Collection[str]) -> list[Value]:
    """The values that hold pieces of the job's tensors in `names` for the whole run. Of several replicas, only the first."""
    first: dict[tuple[str, tuple[int, ...] | None, Box], Value] = {}
    for value, source in _carried(plan):
        if source.value in names:
            first.setdefault((source.value, seen_as(source), box_of(source)), value)
    return list(first.values())


def cut_tensors(plan: PlanContents) -> list[str]:
    """The job's tensors of which some carried value of the plan holds only a part."""
    return list(dict.fromkeys(source.value for _, source in _carried(plan) if source.views))


def _carried(plan: PlanContents) -> list[tuple[Value, Operand]]:
    """The carried values that have a source, each with it."""
    return [(value, value.source) for value in plan.values.values() if value.kind in CARRIED_KINDS and value.source is not None]


def covers(outer: Box, box: Box) -> bool:
    """Whether `box` lies within `outer`."""
    return all(low <= first and end <= high for (first, end), (low, high) in zip(box, outer, strict=True))


def covered(boxes: Collection[Box], shape: tuple[int, ...]) -> bool:
    """Whether every element of a tensor of `shape` lies in one of the boxes."""
    borders = [sorted({0, extent, *(place for box in boxes for place in box[dim])}) for dim, extent in enumerate(shape)]
    cells = {
        cell
        for box in boxes
        for cell in product(*(range(bisect_left(at, first), bisect_left(at, end)) for at, (first, end) in zip(borders, box, strict=True)))
    }
    inside = (range(bisect_left(at, 0), bisect_left(at, extent)) for at, extent in zip(borders, shape, strict=True))
    return all(cell in cells for cell in product(*inside))
