"""How accurate a what-if rule was, over pairs of steps that were measured before and after one change.

A gain is a speed-up: the seconds per sample before the change divided by those after it. Its sign is right if prediction and measurement
are on one side: faster, slower, or the same within NOISE, which two runs of one program may differ by. Two gains that differ by less than
NOISE have one sign too, on whichever sides of its border they lie.

What two steps of one strategy share cancels in their ratio, including the strategy's individual error (`discrepancy`). What remains is the
error of gains of that kind: the root mean square of the logarithms of predicted over measured gains, of the rule's own pairs if it has
LEAST, else of all such pairs. To score intervals, each pair is judged by the pairs of other sources alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from traces.documents.rule_records import RuleRecord, Way

#: Speed-ups within this share of 1 are none.
NOISE = 0.02
#: With fewer pairs than these, a rule has no separate accuracy.
LEAST = 6
_Z_90 = 1.645


@dataclass(frozen=True)
class Judgment:
    """A measured gain and the predicted one, with its 90 % interval if there is one.

    `alike`: both steps run one strategy, so that the interval, of the spread of costs alone, is still to be `widened`.

    >>> judgment = Judgment("cuda-graph", "gpt2, batch 8", "a paper", measured=1.20, predicted=1.32)
    >>> judgment.sign_right, f"{judgment.log_error:.3f}"
    (True, '0.095')
    """

    rule: str
    label: str
    source: str
    measured: float
    predicted: float
    interval: tuple[float, float] | None = None
    fitted: bool = False
    way: Way = "preset"
    alike: bool = False

    @property
    def log_error(self) -> float:
        """The logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)

    @property
    def error(self) -> float:
        """Predicted less measured, in speed-ups."""
        return self.predicted - self.measured

    @property
    def sign_right(self) -> bool:
        """Whether both say faster, slower or the same."""
        return side(self.predicted) == side(self.measured) or abs(self.log_error) <= NOISE

    @property
    def covered(self) -> bool:
        """Whether the measured gain lies in the interval."""
        return self.interval is not None and self.interval[0] <= self.measured <= self.interval[1]


def side(gain: float) -> int:
    """1 for a speed-up, -1 for a slow-down, 0 for neither."""
    return 0 if abs(gain - 1) <= NOISE else 1 if gain > 1 else -1


def widened(judgment: Judgment, accuracy: float) -> Judgment:
    """The judgment with an interval no narrower than the accuracy, one standard deviation of the logarithm of a gain, allows."""
    if judgment.interval is None:
        return judgment
    reach = math.exp(_Z_90 * accuracy)
    (low, high), gain = judgment.interval, judgment.predicted
    return replace(judgment, interval=(min(low, gain / reach), max(high, gain * reach)))


def scored(judgments: Sequence[Judgment]) -> list[Judgment]:
    """The judgments, where those with `alike` get the intervals that follow from the pairs of other sources."""
    alike = [each for each in judgments if each.alike]
    return [
        widened(each, accuracy([other for other in alike if other.source != each.source], each.rule)) if each.alike else each
        for each in judgments
    ]


def accuracy(alike: Sequence[Judgment], rule: str) -> float:
    """The root mean square of the logarithms of predicted over measured gains: those of a rule, or of all if it has too few; 0 for none."""
    own = [each for each in alike if each.rule == rule]
    return root_mean_square([each.log_error for each in (own if len(own) >= LEAST else alike)])


def root_mean_square(values: Sequence[float]) -> float:
    """0 for no values."""
    return math.sqrt(fmean(value * value for value in values)) if values else 0.0


def record(rule: str, judgments: Sequence[Judgment], misses: str = "") -> RuleRecord:
    """How accurate a rule was, over judgments of one way."""
    return RuleRecord(
        rule=rule,
        way=judgments[0].way,
        pairs=len(judgments),
        sign_right=sum(each.sign_right for each in judgments),
        median_error=rounded(median(abs(each.error) for each in judgments)),
        worst_error=rounded(max((each.error for each in judgments), key=abs)),
        rms_error=rounded(root_mean_square([each.log_error for each in judgments])),
        alike=all(each.alike for each in judgments),
        intervals=sum(each.interval is not None for each in judgments),
        covered=sum(each.covered for each in judgments),
        fitted=sum(each.fitted for each in judgments),
        sources=tuple(dict.fromkeys(each.source for each in judgments)),
        misses=misses,
    )


def rounded(value: float) -> float:
    """An error, to a thousandth."""
    return round(value, 3)


def by_rule(judgments: Iterable[Judgment]) -> dict[tuple[str, str], list[Judgment]]:
    """The judgments by rule and way, in the order of the rules' names."""
    groups: dict[tuple[str, str], list[Judgment]] = {}
    for each in sorted(judgments, key=lambda each: (each.rule, each.way)):
        groups.setdefault((each.rule, each.way), []).append(each)
    return groups
