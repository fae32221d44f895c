"""The training graph: the ops of one training step in program order, as plain data without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simulator.bodies.opcall import OpCall
from simulator.plan.task import BACKWARD, Operand, Value


@dataclass(frozen=True, slots=True)
class Op:
    """One aten op of the step.

    `layer` is the module path of the forward op (for a backward op: of the forward op it serves). `gradient`: "dX", "dW" or "dB" for
    backward ops, by what their results lead to; "" for forward ops. Field names follow Task, so that bodies read both alike.
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
    """Forward, loss and backward of one (micro-)batch; updates are added by strategies.

    `values` hold every tensor (`device` is empty: a plan places them). `parameters` are the trainable ones that receive a gradient, in
    module order; `frozen` the others. `layers` maps a parameter to the module that owns it. `gradients` maps a parameter to the operand
    with its gradient, laid out like the parameter and on a storage of its own. `constants` hold small tensors that the model keeps
    outside its parameters and buffers, as nested lists. `notes` say what a user should know (random draws, ignored settings).
    """

    batch: int
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    storage_bytes: Mapping[str, int]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    frozen: tuple[str, ...]
    layers: Mapping[str, str]
    gradients: Mapping[str, Operand]
    loss: str
    constants: Mapping[str, list | float | int | bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(producer, consumer) op indices: data flow through storages, mutations included."""
        last: dict[str, int] = {}
        found: set[tuple[int, int]] = set()
        for index, op in enumerate(self.ops):
            for operand in op.inputs:
                producer = last.get(self.values[operand.value].storage)
                if producer is not None:
                    found.add((producer, index))
            for operand in (*op.writes, *op.mutates):
                last[self.values[operand.value].storage] = index
        return tuple(sorted(found))

    def to_networkx(self):
        """The ops as a networkx DiGraph (nodes carry name, layer, phase)."""
        import networkx

        graph = networkx.DiGraph()
        for index, op in enumerate(self.ops):
            graph.add_node(index, name=op.name, layer=op.layer, phase=op.phase)
        graph.add_edges_from(self.edges)
        return graph

    @property
    def backward_ops(self) -> tuple[Op, ...]:
        """Ops of the backward phase."""
        return tuple(op for op in self.ops if op.phase == BACKWARD)
