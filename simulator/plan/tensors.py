"""The values and storages of a plan in the making, on all its devices."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.machine.machine import HOST
from simulator.plan.task import DTYPE_BYTES, SCRATCH, Operand, Storage, Task, Value, ViewStep

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
