"""The values and storages of a plan being built, on all its devices, and pieces: values that are a box of one of the job's tensors.

A piece's `source` says which box it is: the job's tensor, and the slices that cut the piece out of it, such as half of a weight's rows.
Pieces of one tensor may be on several devices. Pieces of the same box are replicas; others are disjoint. A value with a whole tensor is a
piece, too: its source has no slices.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import product

from simulator.machine.machine import HOST
from simulator.plan.contents import PlanContents
from simulator.plan.task import CARRIED_KINDS, DTYPE_BYTES, SCRATCH, Operand, Storage, Task, Value, ViewStep

# Operands with one more view step.


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor."""
    strides = [1] if shape else []
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def part(operand: Operand, first: int, end: int, dim: int = 0) -> Operand:
    """Entries `first` to `end` (exclusive) along dimension `dim`."""
    shape = operand.shape
    if (first, end) == (0, shape[dim]):
        return operand
    return viewed(operand, (*shape[:dim], end - first, *shape[dim + 1 :]), operand.strides, "aten.slice.Tensor", dim, first, end)


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


class PlanTensors:
    """Values by name, and the storages that they lie on. Builders of one plan may share it."""

    def __init__(self):
        self.values: dict[str, Value] = {}
        self.storages: dict[str, Storage] = {}

    def add(self, value: Value, size_bytes: int | None = None) -> Value:
        """Add a value, and its storage of `size_bytes` (default: as many as the value reaches) unless another value made it before."""
        self.values[value.name] = value
        if value.storage not in self.storages:
            size_bytes = extent_bytes(value) if size_bytes is None else size_bytes
            self.storages[value.storage] = Storage(value.storage, size_bytes, value.device)
        return value

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str, device: str) -> Operand:
        """Make a contiguous scratch value, and return its operand."""
        return self.add(Value(name, shape, contiguous(shape), dtype=dtype, device=device, kind=SCRATCH)).operand()

    def on_host(self, name: str, like: Value) -> Value:
        """Make a contiguous value in the host's memory with the shape, kind and source of another."""
        return self.add(replace(like, name=name, device=HOST, storage=name, strides=contiguous(like.shape)))

    def holders(self, device: str) -> dict[str, Operand]:
        """Return the largest value on each storage of the device, as a whole operand."""
        largest: dict[str, tuple[int, Value]] = {}
        for value in self.values.values():
            if value.device == device:
                size = math.prod(value.shape)
                if value.storage not in largest or size > largest[value.storage][0]:
                    largest[value.storage] = (size, value)
        return {storage: value.operand() for storage, (_, value) in largest.items()}

    def touched(self, task: Task) -> set[str]:
        """Return the storages that a task reads, writes or changes."""
        return {self.values[o.value].storage for o in (*task.inputs, *task.writes) if o.value in self.values}


def merged(tensors: Iterable[PlanTensors]) -> PlanTensors:
    """All values and storages of several builders' tensors, each counted once."""
    result = PlanTensors()
    for each in dict.fromkeys(tensors):
        result.values.update(each.values)
        result.storages.update(each.storages)
    return result


def extent_bytes(value: Value) -> int:
    """Bytes from the value's first element to its last."""
    if 0 in value.shape:
        return 0
    return (1 + _last_offset(value.shape, value.strides)) * DTYPE_BYTES[value.dtype]


def _last_offset(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


#: (first, end) for each dimension of a tensor. What lies beyond the tensor is padding.
Box = tuple[tuple[int, int], ...]


def seen_as(source: Operand) -> tuple[int, ...] | None:
    """The blocked shape as which the job's tensor is viewed before a piece is cut out of it; None for its own shape."""
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
    """The values with pieces of the job's tensors in `names` that exist for the whole run. Of several replicas, only the first."""
    first: dict[tuple[str, tuple[int, ...] | None, Box], Value] = {}
    for value, source in _carried(plan):
        if source.value in names:
            first.setdefault((source.value, seen_as(source), box_of(source)), value)
    return list(first.values())


def cut_tensors(plan: PlanContents) -> list[str]:
    """The job's tensors of which some carried value of the plan is only a part."""
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
