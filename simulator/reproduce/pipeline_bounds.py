"""Bounds on the speed-up of a pipeline over one device, from the work of its stages alone: transfers and updates take no time."""

from collections.abc import Sequence

from simulator.stages.partition import balanced_unfolded, stages_of


def accelerators(pairs: int) -> int:
    """Return the accelerators of an unfolded pipeline: one for each forward and each backward stage; the last two share one."""
    return 2 * pairs + 1


def equal_accelerators(pairs: int) -> float:
    """Return the bound if every accelerator has the same work."""
    return 2 * pairs + 1


def equal_stages(pairs: int) -> float:
    """Return the bound if every stage has the same work, forward and backward together."""
    return pairs + 1


def double_backward(pairs: int) -> float:
    """Return the bound if the backward of each layer takes twice as long as its forward."""
    return 1.5 * pairs + 1


def hybrid(pipelined: float, total: float, speedup: float) -> float:
    """Return the speed-up of training whose first `pipelined` of `total` iterations are faster by `speedup`, and whose others are not."""
    return total / (pipelined / speedup + total - pipelined)


def of_equal_accelerators(pairs: int) -> float:
    """Return the speed-up of stages such that every accelerator has the same work: the last stage has half of the others'."""
    seconds = [1.0] * pairs + [0.5]
    return speedup(seconds, seconds)


def of_equal_stages(pairs: int) -> float:
    """Return the speed-up of equal stages, each on a device of its own."""
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
