"""What a speed-up means in a word. Every table, chart, headline and report takes the word from `verdict`."""

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from traces import units

#: What is known of a speed-up. "no verdict": it is no measurement, or a prediction that rests on too little.
Verdict = Literal["faster", "same", "slower", "cannot tell", "no verdict"]
Interval = tuple[float, float]
#: Two step times that differ by at most this share are the same for all practical purposes.
SAME = 0.02
#: If other processes took more than this share of the cores, step times are no measurement.
BUSY = 0.10
#: A prediction from a profile has a verdict if at least this share of the task time rests on costs that were measured.
LEAST_MEASURED = 0.5
#: The probability on each side of a 90 % interval.
TAIL = 0.05


def verdict(interval: Interval | None, *, busy_share: float | None = None, measured_share: float | None = None) -> Verdict:
    """Return what the 90 % interval of a speed-up says.

    "no verdict" if other processes took more than BUSY of the cores (`busy_share`, of measurements), or if less than LEAST_MEASURED of the
    predicted time rests on measured costs (`measured_share`, of predictions); None: that is no question, or nobody knows. Otherwise "same"
    if all of the interval lies within SAME of 1, "faster" or "slower" if all of it lies on one side of 1, else "cannot tell". No interval
    cannot tell either.
    """
    if is_busy(busy_share) or not is_judged(measured_share):
        return "no verdict"
    if interval is None:
        return "cannot tell"
    low, high = interval
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "cannot tell"


def is_busy(share: float | None) -> bool:
    """Whether other processes took so much of the cores that nothing was measured."""
    return share is not None and share > BUSY


def is_judged(measured_share: float | None) -> bool:
    """Whether enough of a predicted time rests on measured costs for a verdict."""
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


def gain(factor: float, interval: Interval | None, *, busy_share: float | None = None, measured_share: float | None = None) -> Gain:
    """Return a speed-up with its verdict."""
    return Gain(factor, interval, verdict(interval, busy_share=busy_share, measured_share=measured_share))


def for_choice(factor: float, interval: Interval | None, among: int, already: int = 1) -> Interval | None:
    """Return an interval wide enough for a row that was chosen from `among` rows because it is the fastest.

    By Bonferroni, `among` intervals hold together with 90 % if each one leaves out 10 % / `among`. Errors of speed-ups are close to
    log-normal, so both logarithmic distances from the factor grow as the normal quantile does, z(1 - 5 % / among) / z(1 - 5 % / already).
    `already`: the number of rows that the interval holds for as it is.
    """
    if interval is None or among <= already:
        return interval
    normal = NormalDist()
    more = normal.inv_cdf(1 - TAIL / among) / normal.inv_cdf(1 - TAIL / already)
    low, high = (factor * (bound / factor) ** more for bound in interval)
    return low, high


def chosen(own: Gain, among: int) -> Gain:
    """Return the gain of a row that was chosen from `among` rows because it is the fastest, with a wider interval (`for_choice`)."""
    interval = for_choice(own.factor, own.interval, among)
    return replace(own, interval=interval, verdict=own.verdict if own.verdict == "no verdict" else verdict(interval))
