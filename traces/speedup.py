"""Speed-ups with 90 % intervals, and what they mean in a word."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from types import MappingProxyType
from typing import Literal, NamedTuple

#: What an interval of a speed-up says.
Verdict = Literal["faster", "same", "slower", "cannot tell"]
#: Two step times that differ by at most this share are the same for all practical purposes.
SAME = 0.02
#: The 95 % quantile of Student's t by number of samples, for fewer than the signed ranks need.
_STUDENT = MappingProxyType({2: 6.314, 3: 2.920, 4: 2.353})
#: The probability on each side of a 90 % interval.
_TAIL = 0.05


def verdict(interval: tuple[float, float] | None) -> Verdict:
    """Return what the 90 % interval of a speed-up says.

    "same" if all of it lies within SAME of 1, else "faster" or "slower" if all of it lies on one side of 1, else "cannot tell". No interval
    cannot tell either.
    """
    if interval is None:
        return "cannot tell"
    low, high = interval
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "cannot tell"


class MeasuredSpeedup(NamedTuple):
    """A measured speed-up, and its 90 % interval (None with fewer than two rounds)."""

    value: float
    interval: tuple[float, float] | None


def measured_speedup(baseline_s: Sequence[Sequence[float]], other_s: Sequence[Sequence[float]], noise: float = 0.0) -> MeasuredSpeedup:
    """Return the speed-up of `other` over `baseline` from step times by round, in rounds in which both ran.

    The value is the ratio of the medians of all steps. Each round gives one ratio of medians, in which a disturbance of both cancels. The
    interval is that of Wilcoxon's signed ranks on the logarithms of these ratios (Hollander and Wolfe, Nonparametric Statistical Methods,
    section 3.3), which one disturbed round hardly moves; with fewer than five rounds, for which signed ranks have no 90 % interval, it is
    Student's. `noise` is the A/A spread, by which a program differs from itself: the interval reaches at least that far on both sides.
    """
    value = median(s for steps in baseline_s for s in steps) / median(s for steps in other_s for s in steps)
    logs = [math.log(median(base) / median(other)) for base, other in zip(baseline_s, other_s, strict=True) if base and other]
    if len(logs) < 2:
        return MeasuredSpeedup(value, None)
    low, high = map(math.exp, _student(logs) if len(logs) in _STUDENT else _signed_ranks(logs))
    return MeasuredSpeedup(value, (min(low, value / (1 + noise)), max(high, value * (1 + noise))))


def _student(values: Sequence[float]) -> tuple[float, float]:
    reach = _STUDENT[len(values)] * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def _signed_ranks(values: Sequence[float]) -> tuple[float, float]:
    """The interval of the center of symmetric values: between two of the means of every two of them, in order of size."""
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    place = _place(len(values))
    return means[place - 1], means[-place]


def _place(count: int) -> int:
    """The place of the bounds among the means: the largest k for which positive ranks sum to less than k with probability _TAIL or less."""
    ways = [1]  # by sum: in how many ways ranks add up to it
    for rank in range(1, count + 1):
        ways = [(ways[s] if s < len(ways) else 0) + (ways[s - rank] if s >= rank else 0) for s in range(len(ways) + rank)]
    total, k = 0, 0
    while total + ways[k] <= _TAIL * 2**count:
        total += ways[k]
        k += 1
    return k
