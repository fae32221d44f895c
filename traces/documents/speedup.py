"""Measured speed-ups with 90 % intervals."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

from traces.documents.verdict import TAIL, Interval


class MeasuredSpeedup(NamedTuple):
    """A measured speed-up, and its 90 % interval (None with fewer than two rounds)."""

    value: float
    interval: Interval | None


def measured_speedup(
    baseline_s: Sequence[Sequence[float]], other_s: Sequence[Sequence[float]], noise: float = 0.0, among: int = 1
) -> MeasuredSpeedup:
    """Return the speed-up of `other` over `baseline` from step times by round, in rounds in which both ran.

    The value is the ratio of the medians of all steps. Each round gives one ratio of medians, in which a disturbance of both cancels. The
    interval is that of Wilcoxon's signed ranks on the logarithms of these ratios (Hollander and Wolfe, Nonparametric Statistical Methods,
    section 3.3), which one disturbed round hardly moves; with too few rounds for signed ranks it is Student's. `noise` is the A/A spread,
    by which a program differs from itself: the interval reaches at least that far on both sides.

    `among`: how many such speed-ups are shown together. By Bonferroni each interval then leaves out 10 % / `among`, so that all of them
    hold with 90 %, and the best one may be picked.
    """
    value = median(s for steps in baseline_s for s in steps) / median(s for steps in other_s for s in steps)
    logs = [math.log(median(base) / median(other)) for base, other in zip(baseline_s, other_s, strict=True) if base and other]
    if len(logs) < 2:
        return MeasuredSpeedup(value, None)
    tail = TAIL / among
    place = _place(len(logs), tail)
    low, high = map(math.exp, _signed_ranks(logs, place) if place else _student(logs, tail))
    return MeasuredSpeedup(value, (min(low, value / (1 + noise)), max(high, value * (1 + noise))))


def _student(values: Sequence[float], tail: float) -> Interval:
    from scipy.special import stdtrit  # here, because it takes a quarter of a second to load

    reach = float(stdtrit(len(values) - 1, 1 - tail)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def _signed_ranks(values: Sequence[float], place: int) -> Interval:
    """The interval of the center of symmetric values: between two of the means of every two of them, in order of size."""
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    return means[place - 1], means[-place]


def _place(count: int, tail: float) -> int:
    """The place of the bounds among the means: the largest k for which positive ranks sum to less than k with probability `tail` or less.

    0 if there is none, because there are too few values.
    """
    ways = [1]  # by sum: in how many ways ranks add up to it
    for rank in range(1, count + 1):
        ways = [(ways[s] if s < len(ways) else 0) + (ways[s - rank] if s >= rank else 0) for s in range(len(ways) + rank)]
    total, k = 0, 0
    while total + ways[k] <= tail * 2**count:
        total += ways[k]
        k += 1
    return k
