"""What a speed-up means in a word, and measured speed-ups with 90 % intervals.

Every table, chart, headline and report takes the word from `verdict`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median, stdev
from typing import Literal, NamedTuple, TypeGuard

from traces import units

#: What is known of a speed-up. "no verdict": the measurement is not valid, or too little of the prediction is measured, or a memory is at
#: its limit.
Verdict = Literal["faster", "same", "slower", "cannot tell", "no verdict"]
Interval = tuple[float, float]
#: Two step times that differ by at most this share are the same for all practical purposes.
SAME = 0.02
#: If other processes took more than this share of the cores, step times are no measurement.
BUSY = 0.10
#: A prediction from a profile has a verdict if at least this share of the task time has measured costs.
LEAST_MEASURED = 0.5
#: The probability on each side of a 90 % interval.
TAIL = 0.05


def verdict(
    interval: Interval | None, *, busy_share: float | None = None, measured_share: float | None = None, at_limit: bool = False
) -> Verdict:
    """Return what the 90 % interval of a speed-up says.

    "no verdict" if other processes took more than BUSY of the cores (`busy_share`, of measurements), or if less than LEAST_MEASURED of the
    predicted time has measured costs (`measured_share`, of predictions); None: not applicable or unknown. A prediction whose memory is at
    its limit (`comparison.MemoryNeed.at_limit`) has no verdict, either. Otherwise "same" if all of the interval is within SAME of 1,
    "faster" or "slower" if all of it is on one side of 1, else "cannot tell". Without an interval: "cannot tell".

    >>> [verdict(interval) for interval in ((1.05, 1.20), (0.95, 1.20), (0.99, 1.01), (0.80, 0.90))]
    ['faster', 'cannot tell', 'same', 'slower']
    """
    if is_busy(busy_share) or not is_judged(measured_share) or at_limit:
        return "no verdict"
    if interval is None:
        return "cannot tell"
    low, high = interval
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "cannot tell"


def is_busy(share: float | None) -> TypeGuard[float]:
    """Whether other processes took so much of the cores that nothing was measured."""
    return share is not None and share > BUSY


def is_judged(measured_share: float | None) -> bool:
    """Whether enough of a predicted time has measured costs for a verdict."""
    return measured_share is None or measured_share >= LEAST_MEASURED


@dataclass(frozen=True)
class Gain:
    """How many times as fast one step is as another: the factor, its 90 % interval if it is known, and what they say in a word."""

    factor: float
    interval: Interval | None
    verdict: Verdict

    @property
    def text(self) -> str:
        """The factor with its interval: 1.16x (1.08 to 1.22)."""
        return units.speedup(self.factor, self.interval)

    @property
    def judged(self) -> str:
        """The factor with its interval and the verdict: 1.16x (1.08 to 1.22), faster."""
        return f"{self.text}, {self.verdict}"


def gain(
    factor: float,
    interval: Interval | None,
    *,
    busy_share: float | None = None,
    measured_share: float | None = None,
    at_limit: bool = False,
) -> Gain:
    return Gain(factor, interval, verdict(interval, busy_share=busy_share, measured_share=measured_share, at_limit=at_limit))


def for_choice(factor: float, interval: Interval | None, among: int, already: int = 1) -> Interval | None:
    """Return an interval wide enough for a row that was chosen from `among` rows because it is the fastest.

    By Bonferroni, `among` intervals are jointly valid at 90 % if each one excludes 10 % / `among`. Errors of speed-ups are close to
    log-normal, so both logarithmic distances from the factor grow as the normal quantile does, z(1 - 5 % / among) / z(1 - 5 % / already).
    `already`: the number of rows that the interval is already valid for.
    """
    if interval is None or among <= already:
        return interval
    normal = NormalDist()
    more = normal.inv_cdf(1 - TAIL / among) / normal.inv_cdf(1 - TAIL / already)
    low, high = (factor * (bound / factor) ** more for bound in interval)
    return low, high


def chosen(own: Gain, among: int) -> Gain:
    """Return the gain of a row that was chosen from `among` rows because it is the fastest, with a wider interval (`for_choice`).

    >>> one = gain(1.10, (1.04, 1.20))
    >>> one.judged, chosen(one, among=100).judged  # the fastest of 100 may be so by chance
    ('1.10x (1.04 to 1.20), faster', '1.10x (0.98 to 1.31), cannot tell')
    """
    interval = for_choice(own.factor, own.interval, among)
    return replace(own, interval=interval, verdict=own.verdict if own.verdict == "no verdict" else verdict(interval))


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
    by which a program differs from itself: the interval extends at least that far on both sides.

    `among`: how many such speed-ups are shown together. By Bonferroni, each interval then excludes 10 % / `among`, so that all of them are
    jointly valid at 90 %, and the best one may be chosen.
    """
    value = median(s for steps in baseline_s for s in steps) / median(s for steps in other_s for s in steps)
    medians = [(median(base), median(other)) for base, other in zip(baseline_s, other_s, strict=True) if base and other]
    logs = [math.log(base / other) for base, other in medians if base and other]
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
