"""The claims of the TurboDL paper, judged from predicted step times. Nothing here is fitted to them."""

from collections.abc import Mapping, Sequence

from simulator.reproduce.verdicts import EQUAL, judged, trend, undecided
from traces.reproduction import Check


def both_methods_gain(gains: Mapping[str, tuple[float, float]]) -> Check:
    """Judge: asynchronous layers gain over the barrier, and priorities gain on top.

    `gains`: by network, the speed-ups over Caffe+cuDNN without and with priorities.
    """
    name, claim = "methods", "on every network asynchronous layers gain over the barrier, and priorities gain on top"
    if not gains:
        return undecided(name, claim, "no network could be predicted")
    right = sum(first > 1 + EQUAL and second > first + EQUAL for first, second in gains.values())
    phrases = "; ".join(f"{network} {first:.3f}x, then {second:.3f}x" for network, (first, second) in gains.items())
    figures = _named(gains, "asynchronous", "priorities")
    why = "kernels that fill the card leave no room for others, and if few kernels wait at once, their order changes little"
    return judged(name, claim, right == len(gains), f"{right} of {len(gains)} networks as claimed: {phrases}", figures, why)


def falls_with_batch(points: Sequence[tuple[int, float]]) -> Check:
    """Judge: the larger the batch, the less gain. `points`: batch and speed-up."""
    why = "if one kernel fills the card at every one of these batches, there is little to gain at any of them"
    return trend("batch", "the gain falls as the batch grows", why, "the gain is", [p[0] for p in points], [p[1] for p in points], -1)


def rises_with_depth(points: Sequence[tuple[int, float]]) -> Check:
    """Judge: the deeper the network, the more gain. `points`: depth and speed-up."""
    why = "a deeper ResNet repeats the same blocks, so that every part of the chain gains equally, and its batch is smaller"
    return trend("depth", "the gain rises with the depth", why, "the gain is", [p[0] for p in points], [p[1] for p in points], 1)


def larger_card_gains_more(gains: Mapping[str, tuple[float, float]]) -> Check:
    """Judge: a card with more SMs gains more. `gains`: by network, on the larger and on the smaller card."""
    name, claim = "card", "the card with more SMs gains more"
    if not gains:
        return undecided(name, claim, "no network could be predicted on both cards")
    right = sum(large > small + EQUAL for large, small in gains.values())
    phrases = "; ".join(f"{network} {large:.3f}x against {small:.3f}x" for network, (large, small) in gains.items())
    figures = _named(gains, "larger card", "smaller card")
    why = "on the larger card the host's launches bound short steps, where no schedule can gain; on the smaller one kernels take longer"
    return judged(name, claim, right == len(gains), f"{right} of {len(gains)} networks as claimed: {phrases}", figures, why)


def _named(pairs: Mapping[str, tuple[float, float]], *what: str) -> dict[str, float]:
    return {f"{network}, {name}": value for network, pair in pairs.items() for name, value in zip(what, pair, strict=True)}
