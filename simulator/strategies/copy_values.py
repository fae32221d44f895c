"""The values of one copy of a job's model: each is placed when a task first names it."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.model.graph import TrainingGraph
from simulator.plan.task import (
    ACTIVATION,
    AGAIN,
    BUFFER,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    SCRATCH,
    Operand,
    Value,
    ViewStep,
)
from simulator.plan.tensors import PlanTensors


@dataclass(frozen=True)
class Placement:
    """The device of each op of a graph, and what the ops read of other devices' values.

    `devices` is by op. `homes` is by value of the graph: the device that makes it, or on which it is carried (default: the first device).
    `copies`: the name of the copy, on the op's own device, that an op reads instead of a value, by (op, value).
    """

    devices: Sequence[str]
    homes: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[tuple[int, str], str] = field(default_factory=dict)

    def home(self, value: str) -> str:
        """The device of a value of the graph."""
        return self.homes.get(value) or self.devices[0]


class CopyValues:
    """The values and storages of a copy of the model that `graph` describes.

    `place` says where the copy is. Each of its microbatches is one of `parts` equal parts of the batch. Names of carried values end in
    `suffix`; those of a microbatch's values end in `of_rank`, which tells apart devices that divide the work on one microbatch.
    """

    def __init__(self, graph: TrainingGraph, place: Placement, batch: int, parts: int, suffix: str, of_rank: str):
        self.graph, self.place, self.parts = graph, place, parts
        self.tensors = PlanTensors()
        self._samples, self._suffix, self._of_rank = batch // parts, suffix, of_rank

    @property
    def device(self) -> str:
        """The device of the first op; the only one unless the copy is spread over several."""
        return self.place.devices[0]

    def at_host(self, operands: Sequence[Operand], name: str) -> tuple[Operand, ...]:
        """Make scratch values in the host's memory with the shapes of `operands`, and return their operands."""
        values = self.tensors.values
        return tuple(
            self.tensors.on_host(f"{name}:{position}", replace(values[o.value], kind=SCRATCH, source=None)).operand()
            for position, o in enumerate(operands)
        )

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str) -> Operand:
        """Make a contiguous scratch value that is not in the graph, and return its operand."""
        return self.tensors.scratch(name, shape, dtype, self.device)

    def kept(self, parameter: str, device: str) -> Operand:
        """Make a value with a snapshot of a parameter, for one iteration, and return its operand."""
        name = self._own(f"{parameter}@kept")
        carried = self._carried(parameter, PARAMETER)
        kept = replace(carried, name=name, device=device, storage=name, source=None, kind=ACTIVATION)
        return self.tensors.add(kept).operand()

    def again(self, value: str, microbatch: int) -> str:
        """Make a value like `value` of a microbatch, on a separate storage, for an op that runs again. Returns its name."""
        first = self.tensors.values[self._operand(self.graph.values[value].operand(), microbatch).value]
        second = replace(first, name=f"{first.name}{AGAIN}", storage=f"{first.storage}{AGAIN}")
        return self.tensors.add(second, self.tensors.storages[first.storage].bytes).name

    def sent(
        self, value: str, held: str, copy: str, target: str, microbatch: int, instead: Mapping[str, Operand] | None = None
    ) -> tuple[Operand, Operand]:
        """Return the operands of a value of the graph, whose name is `held` on its device, and of its copy on device `target`.

        `instead`: as in `PlanBuilder.ops`.
        """
        of_graph = self.graph.values[value]
        source = self._operand(of_graph.operand(), microbatch, instead=instead)
        if held != value:
            source = self.tensors.values[self.copy_name(held, of_graph.kind, microbatch)].operand()
        name = self.copy_name(copy, of_graph.kind, microbatch)
        if name not in self.tensors.values:
            self._copied(of_graph, name, microbatch, target)
        return source, self.tensors.values[name].operand()

    def storage(self, value: str) -> str:
        """Return the storage of a placed value, or of this copy of a parameter."""
        placed = self.tensors.values.get(self._own(value)) or self.tensors.values.get(value)
        return placed.storage if placed is not None else self._own(self.graph.values[value].storage)

    def carry_unused(self, elsewhere: Collection[str] = ()) -> None:
        """Add the parameters and buffers that no task uses, because they take memory too. `elsewhere`: those that are in other values."""
        for name, value in self.graph.values.items():
            if value.kind in (PARAMETER, BUFFER) and name not in elsewhere:
                self._carried(name, value.kind)

    def _own(self, name: str) -> str:
        """Return the name of this device's copy of a carried value, storage or task."""
        return name + self._suffix

    def _name(self, name: str, microbatch: int, task: bool = False) -> str:
        if not task and (self.graph.values[name].kind in (PARAMETER, BUFFER) or name in self.graph.counts):
            return self._own(name)
        return (name if microbatch == 0 else f"{name}@{microbatch}") + self._of_rank

    def _operand(self, operand: Operand, microbatch: int, op: int = -1, instead: "Mapping[str, str | Operand] | None" = None) -> Operand:
        """The operand of the graph as op `op` has it in a microbatch (-1: as it is in the end)."""
        value = self.graph.values[operand.value]
        if instead and operand.value in instead:
            other = instead[operand.value]
            if isinstance(other, Operand):
                return Operand(other.value, operand.shape, operand.strides, operand.dtype, other.views + operand.views)
            return _named(operand, other)
        copy = self.place.copies.get((op, operand.value))
        name = self._name(operand.value, microbatch) if copy is None else self.copy_name(copy, value.kind, microbatch)
        if name not in self.tensors.values:
            if copy is not None:
                self._copied(value, name, microbatch, self.place.devices[op])
            elif value.kind in (PARAMETER, BUFFER):
                self._carried(operand.value, value.kind)
            else:
                storage = self._name(value.storage, microbatch) if value.storage in self.graph.values else name
                source = self._slice(value, microbatch) if value.kind == INPUT else None
                device = self.place.home(operand.value)
                placed = Value(
                    name, value.shape, value.strides, dtype=value.dtype, device=device, kind=value.kind, storage=storage, source=source
                )
                self.tensors.add(placed, self.graph.storage_bytes[value.storage])
        return operand if name == operand.value else _named(operand, name)

    def copy_name(self, copy: str, kind: str, microbatch: int) -> str:
        """The name of a microbatch's copy of a value of this kind on another device. A buffer's serves all microbatches."""
        return (copy if microbatch == 0 or kind == BUFFER else f"{copy}@{microbatch}") + self._of_rank

    def _copied(self, value: Value, name: str, microbatch: int, device: str) -> None:
        """Add a value that another device has too: inputs are fed to both, and buffers that nothing changes are carried by both."""
        source, kind = None, ACTIVATION
        if value.kind in (INPUT, BUFFER):
            source, kind = self._slice(value, microbatch) if value.kind == INPUT else value.operand(), value.kind
        self.tensors.add(replace(value, name=name, device=device, storage=name, source=source, kind=kind))

    def _slice(self, value: Value, microbatch: int) -> Operand:
        """Return the microbatch's slice of the job's input tensor."""
        size = self._samples
        if self.parts == 1 or not value.shape or value.shape[0] != size:
            return value.operand()
        view = ViewStep("aten.slice.Tensor", json.dumps([0, microbatch * size, (microbatch + 1) * size]))
        return replace(value.operand(), views=(view,))

    def _carried(self, tensor: str, kind: str) -> Value:
        """Return the value of a parameter or buffer of the job in this copy."""
        name = self._own(tensor)
        if name not in self.tensors.values:
            value = self.graph.values[tensor]
            source, storage = value.origin(), self._own(value.storage)
            carried = Value(
                name,
                value.shape,
                value.strides,
                dtype=value.dtype,
                device=self.place.home(tensor),
                kind=kind,
                storage=storage,
                source=source,
            )
            self.tensors.add(carried, self.graph.storage_bytes[value.storage])
        return self.tensors.values[name]

    def _state(self, tensor: str, shape: tuple[int, ...], dtype: str, parameter: Value) -> Operand:
        """Return the operand of an optimizer state `tensor`, which is on the device of its parameter and has the parameter's strides."""
        name = self._own(tensor)
        if name not in self.tensors.values:
            strides = parameter.strides if shape else ()
            origin = parameter.source or parameter.operand()
            source = Operand(tensor, shape, origin.strides, dtype, origin.views) if shape else Operand(tensor, shape, (), dtype)
            self.tensors.add(
                Value(name, shape, strides, dtype=dtype, device=parameter.device, kind=OPTIMIZER_STATE, source=source), source.bytes
            )
        return self.tensors.values[name].operand()


def _named(operand: Operand, value: str) -> Operand:
    """The same operand of another value, made without `replace`, which takes three times as long."""
    return Operand(value, operand.shape, operand.strides, operand.dtype, operand.views)
