"""What the paper on pipelined training computes from a network's layers: bounds on the speed-up, stale weights, and memory.

Bounds follow from the work of a pipeline's stages alone: transfers and updates take no time. Layers are numbered as in the paper:
convolutions and linear layers, each with what follows it. Memory is counted as in the paper: plain training stores the weights, and the
outputs of all layers twice: values and gradients, as torchsummary reports them. Optimizer state and workspaces are excluded. Stage i of K +
1 also stores the values of the minibatches whose backward is still to come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.task import ACTIVATION, FORWARD
from simulator.strategies.pipeline.partition import balanced_unfolded, in_flight_1f1b, stages_of, units

#: The layer path of the ops that compute the loss.
_LOSS = "loss"


# ---- bounds


def hybrid(pipelined: float, total: float, speedup: float) -> float:
    """Return the speed-up of training whose first `pipelined` of `total` iterations are faster by `speedup`, and whose others are not."""
    return total / (pipelined / speedup + total - pipelined)


def of_equal_accelerators(pairs: int) -> float:
    """Return the speed-up of stages such that every accelerator has the same work: the last stage has half of the others'."""
    seconds = [1.0] * pairs + [0.5]
    return speedup(seconds, seconds)


def of_equal_stages(pairs: int) -> float:
    """Return the speed-up of equal stages, each on a separate device."""
    seconds = [1.0] * (pairs + 1)
    return speedup(seconds, seconds, folded=True)


def cycle_seconds(forward_s: Sequence[float], backward_s: Sequence[float], folded: bool = False) -> float:
    """Return the seconds between two minibatches. `folded`: a stage's forward and backward share one of S devices."""
    *first, last = [(forward, backward) for forward, backward in zip(forward_s, backward_s, strict=True)]
    return max([sum(last), *(sum(pair) if folded else max(pair) for pair in first)])


def speedup(forward_s: Sequence[float], backward_s: Sequence[float], folded: bool = False) -> float:
    """Return the speed-up over one device of a pipeline whose stages take these seconds."""
    return (sum(forward_s) + sum(backward_s)) / cycle_seconds(forward_s, backward_s, folded)


def of_equal_layers(pairs: int, backward_over_forward: float) -> float:
    """Return the speed-up of the best placement of register pairs in a long chain of equal layers."""
    layers = 12 * (3 * pairs + 2)
    forward_s, backward_s = [1.0] * layers, [backward_over_forward] * layers
    spans = stages_of(balanced_unfolded(forward_s, backward_s, pairs + 1), layers)
    return speedup([float(len(span)) for span in spans], [backward_over_forward * len(span) for span in spans])


# ---- layers


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
    trainable = set(graph.parameters)
    seen: set[str] = set()
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


# ---- memory beyond plain training


def plain_bytes(layers: Sequence[NumberedLayer], batch: int) -> float:
    """Return the bytes of plain training with `batch` samples."""
    return sum(layer.weights_bytes + 2 * batch * layer.activations_bytes for layer in layers)


def stale_weights(layers: Sequence[NumberedLayer], placement: Sequence[int]) -> float:
    """Return the share of weights before the last pair of registers: those that the forward pass reads while they are stale."""
    return sum(layer.weights for layer in layers[: placement[-1]]) / sum(layer.weights for layer in layers)


def stale_increase(layers: Sequence[NumberedLayer], placement: Sequence[int], batch: int) -> float:
    """Return the relative increase by the paper's pipeline: stage i stores 2 (K - i + 1) further copies of its activations."""
    pairs = len(placement)
    copies = [2 * (pairs - stage) for stage in range(pairs + 1)]
    return _extra_activations(layers, placement, batch, copies) / plain_bytes(layers, batch)


def pipedream_increase(layers: Sequence[NumberedLayer], placement: Sequence[int], batch: int) -> float:
    """Return the increase by PipeDream as the paper charges it: also 2 K + 2 copies of all weights, one per forward or backward stage."""
    copies = 2 * (len(placement) + 1)
    weights_bytes = copies * sum(layer.weights_bytes for layer in layers)
    return stale_increase(layers, placement, batch) + weights_bytes / plain_bytes(layers, batch)


def one_f_one_b_increase(layers: Sequence[NumberedLayer], placement: Sequence[int], batch: int) -> float:
    """Return the increase by PipeDream as it runs, on a device per stage: a stage stashes its own weights and activations only.

    The first of S stages has S minibatches in flight and as many versions of its weights, the last one has 1.
    """
    stages = len(placement) + 1
    copies = [in_flight - 1 for in_flight in in_flight_1f1b(stages, stages)]
    spans = stages_of(placement, len(layers))
    weights_bytes = sum(extra * layers[i].weights_bytes for extra, span in zip(copies, spans, strict=True) for i in span)
    return (_extra_activations(layers, placement, batch, copies) + weights_bytes) / plain_bytes(layers, batch)


def _extra_activations(layers: Sequence[NumberedLayer], placement: Sequence[int], batch: int, copies: Sequence[int]) -> float:
    """Return the bytes of further copies of each stage's activations."""
    spans = stages_of(placement, len(layers))
    return batch * sum(extra * layers[i].activations_bytes for extra, span in zip(copies, spans, strict=True) for i in span)
