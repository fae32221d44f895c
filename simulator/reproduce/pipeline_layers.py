"""The layers of a captured network as the paper numbers them: convolutions and linear layers, each with what follows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.graph import Op, TrainingGraph
from simulator.plan.task import ACTIVATION, FORWARD
from simulator.stages.units import units

#: The layer path of the ops that compute the loss.
_LOSS = "loss"


@dataclass(frozen=True)
class NumberedLayer:
    """A layer's weights, and the bytes of its outputs and of those of the activations, norms and pools behind it, for one sample.

    Outputs are counted by op, as torchsummary counts them by module: also those computed in place. `first_op`: the index of the layer's
    first op in the graph.
    """

    weights: int
    weights_bytes: int
    activations_bytes: float
    first_op: int = 0


def numbered_layers(graph: TrainingGraph) -> tuple[NumberedLayer, ...]:
    """Return the layers of a network in forward order. A layer begins with an op that reads a weight of two dimensions or more."""
    trainable, seen = set(graph.parameters), set()
    layers: list[list[float]] = []
    for index, op in enumerate(graph.ops):
        if op.phase != FORWARD or op.layer == _LOSS:
            continue
        new = [graph.values[name] for name in dict.fromkeys(read.value for read in op.reads) if name in trainable - seen]
        seen.update(value.name for value in new)
        if not layers or any(len(value.shape) > 1 for value in new):
            layers.append([0, 0, 0.0, index])
        layers[-1][0] += sum(value.operand().elements for value in new)
        layers[-1][1] += sum(value.operand().bytes for value in new)
        layers[-1][2] += _output_bytes(graph, op) / graph.batch
    return tuple(NumberedLayer(int(count), int(size), activations, int(first)) for count, size, activations, first in layers)


def cuts(graph: TrainingGraph, placement: Sequence[int]) -> tuple[int, ...]:
    """Return a placement in these layers as the units before each cut, which strategies take."""
    layers, starts = numbered_layers(graph), [min(unit.forward) for unit in units(graph)]
    return tuple(sum(start < layers[after].first_op for start in starts) for after in placement)


def _output_bytes(graph: TrainingGraph, op: Op) -> int:
    """Return the bytes of an op's first output that is an activation; the others are statistics or masks."""
    outputs = (graph.values[operand.value] for operand in (*op.writes, *op.mutates))
    return next((value.operand().bytes for value in outputs if value.kind == ACTIVATION), 0)
