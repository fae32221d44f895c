"""The claims of the BPPSA paper about its recurrent workloads, judged from predicted epochs. Constants are fitted, claims are not."""

from collections.abc import Mapping, Sequence
from math import log

from simulator.reproduce.verdicts import EQUAL, judged, span, trend, undecided
from traces.reproduction import Check

#: A time that grows with a smaller power of the length than _HARDLY hardly grows; with at least the power _BOUND, the work bounds it.
_HARDLY, _BOUND = 0.25, 0.5


def grows_with_length(points: Sequence[tuple[int, float]]) -> Check:
    """Judge: longer chains gain more. `points`: length and speed-up of the whole epoch."""
    why = "the forward and the constant time of an iteration, which are the same in both, hide the backward"
    name, claim = "length", "the speed-up grows with the length of the sequence"
    return trend(name, claim, why, "the speed-up is", [p[0] for p in points], [p[1] for p in points], 1)


def falls_with_batch(points: Sequence[tuple[int, float]]) -> Check:
    """Judge: the more samples share the GPU, the less gain. `points`: mini-batch and speed-up of the backward."""
    why = "launches take most of the time at every one of these mini-batches"
    name, claim = "batch", "the backward's speed-up falls as the mini-batch grows"
    return trend(name, claim, why, "it is", [p[0] for p in points], [p[1] for p in points], -1)


def bound_by_workers(points: Sequence[tuple[int, float]]) -> Check:
    """Judge: BPPSA's backward takes Theta(n/p + log p). `points`: length and seconds of BPPSA's backward."""
    name, claim = "workers", "BPPSA's backward hardly grows with the length while workers are free, and in proportion to it beyond"
    if len(points) < 3:
        return undecided(name, claim, f"{len(points)} of at least 3 lengths could be predicted")
    low, high = _power(*points[:2]), _power(*points[-2:])
    result = f"it grows as T^{low:.2f} from {points[0][0]} to {points[1][0]} steps, as T^{high:.2f} from {points[-2][0]} to {points[-1][0]}"
    why = "all lengths are below, or all are above, the length that fills the GPU"
    return judged(name, claim, low < _HARDLY and high >= _BOUND, result, {"first power": low, "last power": high}, why)


def _power(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def longer_sets_gain_more(gains: Mapping[int, tuple[float, float]]) -> Check:
    """Judge: the GRU gains more on set L than on set S. `gains`: by mini-batch, the backward's speed-up on S and on L."""
    name, claim = "sets", "a GRU's backward gains more on the long sequences of L than on the short ones of S"
    if not gains:
        return undecided(name, claim, "no mini-batch was predicted on both")
    right = sum(long > short + EQUAL for short, long in gains.values())
    result = "; ".join(f"B = {batch}: {short:.2f}x on S, {long:.2f}x on L" for batch, (short, long) in gains.items())
    figures = {f"B = {batch}, {name}": gain for batch, pair in gains.items() for name, gain in zip("SL", pair, strict=True)}
    return judged(name, claim, right == len(gains), result, figures, "launches take most of the time on both")


def greatest_differ(overall: Mapping[str, float], backward: Mapping[str, float]) -> Check:
    """Judge: the greatest overall speed-up and the greatest backward speed-up are at different points. Both arguments: by point name."""
    name, claim = "greatest", "the greatest speed-ups of the whole epoch and of the backward are at different points"
    best, best_backward = max(overall, key=overall.get), max(backward, key=backward.get)
    result = f"{overall[best]:.2f}x at {best}, the backward's {backward[best_backward]:.1f}x at {best_backward}"
    why = "on one GPU and host both grow with the length; the paper's are on two cards, whose forwards differ"
    return judged(name, claim, best != best_backward, result, {"overall": overall[best], "backward": backward[best_backward]}, why)


def larger_card_peaks_later(large: Sequence[tuple[int, float]], small: Sequence[tuple[int, float]]) -> Check:
    """Judge: the GPU with more SMs has its greatest backward speed-up at a greater length. Points: length and speed-up, by length."""
    name, claim = "peak", "the larger GPU reaches its greatest backward speed-up at a greater length"
    peaks = [max(points, key=lambda point: point[1])[0] for points in (large, small)]
    longest = max(length for length, _ in large)
    if peaks == [longest, longest]:
        return undecided(name, claim, f"on both it still rises at T = {longest}, the greatest length")
    result = f"at T = {peaks[0]} on the larger, {peaks[1]} on the smaller"
    why = "both are bound by the same launches up to the same length"
    return judged(name, claim, peaks[0] > peaks[1], result, {"larger": float(peaks[0]), "smaller": float(peaks[1])}, why)


def larger_card_falls_slower(large: Sequence[tuple[int, float]], small: Sequence[tuple[int, float]]) -> Check:
    """Judge: as the mini-batch grows, the backward speed-up falls less on the larger GPU. Points: mini-batch and speed-up."""
    name, claim = "cards", "as the mini-batch grows, the backward's speed-up falls more slowly on the larger GPU"
    if min(len(large), len(small)) < 2:
        return undecided(name, claim, "fewer than 2 mini-batches were predicted on both")
    shares = [max(points)[1] / min(points)[1] for points in (large, small)]
    result = (
        f"of its {span([gain for _, gain in large])} the larger keeps {shares[0]:.0%} at the largest mini-batch,"
        f" the smaller {shares[1]:.0%}"
    )
    why = "launches take most of the time at every one of these mini-batches"
    return judged(name, claim, shares[0] > shares[1] + EQUAL, result, {"larger": shares[0], "smaller": shares[1]}, why)
