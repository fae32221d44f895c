"""The values and storages of a plan in the making, on all its devices."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.machine.machine import HOST
from simulator.plan.task import DTYPE_BYTES, SCRATCH, Operand, Storage, Task, Value
from simulator.plan.views import contiguous


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
        return self.add(Value(name, shape, contiguous(shape), dtype, device, SCRATCH, name)).operand()

    def on_host(self, name: str, like: Value) -> Value:
        """Make a contiguous value in the host's memory with the shape, kind and source of another."""
        return self.add(replace(like, name=name, device=HOST, storage=name, strides=contiguous(like.shape)))

    def holders(self, device: str) -> dict[str, Operand]:
        """Return the largest value on each storage of the device, as a whole operand."""
        largest: dict[str, tuple[int, Value]] = {}
        for value in self.values.values():
            size = math.prod(value.shape)
            if value.device == device and (value.storage not in largest or size > largest[value.storage][0]):
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
