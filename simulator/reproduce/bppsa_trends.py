"""What the BPPSA paper claims of its recurrent workloads, judged from predicted epochs. The constants are fitted, the claims are not."""

from collections.abc import Mapping, Sequence
from math import log

from simulator.reproduce.verdicts import EQUAL, judged, span, trend, undecided
from traces.reproduction import Check

#: A time that grows with less than this power of the length hardly grows; with at least the other, it is bound by the work.
_HARDLY, _BOUND = 0.25, 0.5


def grows_with_length(points: Sequence[tuple[int, float]]) -> Check:
    """Longer chains gain more. `points`: length and speed-up of the whole epoch."""
    why = "what is the same in both, the forward and what an iteration takes anyway, hides the backward"
    name, claim = "length", "the speed-up grows with the length of the sequence"
    return trend(name, claim, why, "the speed-up is", [p[0] for p in points], [p[1] for p in points], 1)


def falls_with_batch(points: Sequence[tuple[int, float]]) -> Check:
    """The more samples share the GPU, the less gain. `points`: mini-batch and speed-up of the backward."""
    why = "launches take most of the time at every one of these mini-batches"
    name, claim = "batch", "the backward's speed-up falls as the mini-batch grows"
    return trend(name, claim, why, "it is", [p[0] for p in points], [p[1] for p in points], -1)


def bound_by_workers(points: Sequence[tuple[int, float]]) -> Check:
    """Theta(n/p + log p). `points`: length and seconds of BPPSA's backward."""
    name, claim = "workers", "BPPSA's backward hardly grows with the length while workers are left, and in proportion to it beyond"
    if len(points) < 3:
        return undecided(name, claim, f"{len(points)} of at least 3 lengths could be predicted")
    low, high = _power(*points[:2]), _power(*points[-2:])
    said = f"it grows as T^{low:.2f} from {points[0][0]} to {points[1][0]} steps, as T^{high:.2f} from {points[-2][0]} to {points[-1][0]}"
    why = "the lengths are all on one side of where the GPU is full"
    return judged(name, claim, low < _HARDLY and high >= _BOUND, said, {"first power": low, "last power": high}, why)


def _power(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def longer_sets_gain_more(gains: Mapping[int, tuple[float, float]]) -> Check:
    """The GRU's set L gains more than S. `gains`: by mini-batch, the backward's speed-up on S and on L."""
    name, claim = "sets", "a GRU's backward gains more on the long sequences of L than on the short ones of S"
    if not gains:
        return undecided(name, claim, "no mini-batch was predicted on both")
    right = sum(long > short + EQUAL for short, long in gains.values())
    said = "; ".join(f"B = {batch}: {short:.2f}x on S, {long:.2f}x on L" for batch, (short, long) in gains.items())
    figures = {f"B = {batch}, {name}": gain for batch, pair in gains.items() for name, gain in zip("SL", pair, strict=True)}
    return judged(name, claim, right == len(gains), said, figures, "launches take most of the time on both")


def greatest_differ(overall: Mapping[str, float], backward: Mapping[str, float]) -> Check:
    """The point of the greatest speed-up overall is not that of the backward. Both by what the point is called."""
    name, claim = "greatest", "the greatest speed-ups of the whole epoch and of the backward lie at different points"
    best, deepest = max(overall, key=overall.get), max(backward, key=backward.get)
    said = f"{overall[best]:.2f}x at {best}, the backward's {backward[deepest]:.1f}x at {deepest}"
    why = "on one GPU and host both grow with the length; the paper's lie on two cards, whose forwards differ"
    return judged(name, claim, best != deepest, said, {"overall": overall[best], "backward": backward[deepest]}, why)


def larger_card_peaks_later(large: Sequence[tuple[int, float]], small: Sequence[tuple[int, float]]) -> Check:
    """The GPU with more SMs has its greatest backward speed-up at a greater length. Points: length and speed-up, by length."""
    name, claim = "peak", "the larger GPU reaches its greatest backward speed-up at a greater length"
    at = [max(points, key=lambda point: point[1])[0] for points in (large, small)]
    end = max(length for length, _ in large)
    if at == [end, end]:
        return undecided(name, claim, f"on both it still rises at T = {end}, the greatest length")
    said = f"at T = {at[0]} on the larger, {at[1]} on the smaller"
    why = "both are bound by the same launches up to the same length"
    return judged(name, claim, at[0] > at[1], said, {"larger": float(at[0]), "smaller": float(at[1])}, why)


def larger_card_falls_slower(large: Sequence[tuple[int, float]], small: Sequence[tuple[int, float]]) -> Check:
    """With the mini-batch, the larger GPU's backward speed-up falls less. Points: mini-batch and speed-up."""
    name, claim = "cards", "as the mini-batch grows, the backward's speed-up falls more slowly on the larger GPU"
    if min(len(large), len(small)) < 2:
        return undecided(name, claim, "fewer than 2 mini-batches were predicted on both")
    kept = [max(points)[1] / min(points)[1] for points in (large, small)]
    said = f"of its {span([gain for _, gain in large])} the larger keeps {kept[0]:.0%} at the largest mini-batch, the smaller {kept[1]:.0%}"
    why = "launches take most of the time at every one of these mini-batches"
    return judged(name, claim, kept[0] > kept[1] + EQUAL, said, {"larger": kept[0], "smaller": kept[1]}, why)
