"""The training graph: the ops of one training step in program order, as plain data without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simulator.bodies.opcall import OpCall
from simulator.plan.task import BACKWARD, Operand, Value


@dataclass(frozen=True, slots=True)
class Op:
    """One aten op of the step.

    `layer` is the module path of the forward op (for a backward op: of the forward op it serves). `gradient` is "dX", "dW" or "dB" for a
    backward op, by the gradients that depend on its results, and "" for a forward op. Field names are those of Task, so that bodies can
    read both.
    """

    name: str
    body: OpCall
    phase: str
    layer: str = ""
    gradient: str = ""
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`, as in Task."""
        return self.reads + self.mutates


@dataclass(frozen=True)
class TrainingGraph:
    """Forward, loss and backward of one (micro-)batch; strategies add the updates.

    `values` holds every tensor; their `device` is empty, because a plan places them. `parameters` are the trainable ones that receive a
    gradient, in module order. `layers` maps each parameter to the module that owns it. `gradients` maps a parameter to the operand with its
    gradient, which has the parameter's strides and a storage of its own. `constants` holds small tensors that the model keeps outside its
    parameters and buffers, as nested lists.
    """

    batch: int
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    storage_bytes: Mapping[str, int]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    layers: Mapping[str, str]
    gradients: Mapping[str, Operand]
    loss: str
    constants: Mapping[str, list | float | int | bool] = field(default_factory=dict)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer, consumer) of op indices: the data flow through storages, including in-place changes."""
        last_writer: dict[str, int] = {}
        edges: set[tuple[int, int]] = set()
        for index, op in enumerate(self.ops):
            for operand in op.inputs:
                producer = last_writer.get(self.values[operand.value].storage)
                if producer is not None:
                    edges.add((producer, index))
            for operand in (*op.writes, *op.mutates):
                last_writer[self.values[operand.value].storage] = index
        return tuple(sorted(edges))

    @property
    def backward_ops(self) -> tuple[Op, ...]:
        """Ops of the backward phase."""
        return tuple(op for op in self.ops if op.phase == BACKWARD)
