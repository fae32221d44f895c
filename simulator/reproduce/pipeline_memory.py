"""How much more memory a pipeline needs than plain training, as the paper counts it: weights, activations and their gradients.

Plain training holds the weights, and the outputs of all layers twice: values and gradients, as torchsummary reports them. Optimizer state
and workspaces are left out. Stage i of K + 1 also keeps the values of the minibatches whose backward is still to come.
"""

from collections.abc import Sequence

from simulator.reproduce.pipeline_layers import NumberedLayer
from simulator.stages.partition import in_flight_1f1b, stages_of


def plain_bytes(layers: Sequence[NumberedLayer], batch: int) -> float:
    """Return the bytes of plain training with `batch` samples."""
    return sum(layer.weights_bytes + 2 * batch * layer.activations_bytes for layer in layers)


def stale_weights(layers: Sequence[NumberedLayer], placement: Sequence[int]) -> float:
    """Return the share of weights that lie before the last pair of registers: those that the forward pass reads while they are stale."""
    return sum(layer.weights for layer in layers[: placement[-1]]) / sum(layer.weights for layer in layers)


def stale_increase(layers: Sequence[NumberedLayer], placement: Sequence[int], batch: int) -> float:
    """Return the relative increase by the paper's pipeline: stage i keeps 2 (K - i + 1) further copies of its activations."""
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
