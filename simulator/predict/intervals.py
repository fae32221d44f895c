"""The 90 % intervals of predicted step times and speed-ups, from common draws of the errors of their costs.

Let S_ck be the seconds that source k has in chain c of a plan (see `sensitivity`), and r_k the standard deviation of the logarithm of its
error. With a normal e_k for every source, a draw of the step time is

    S(e) = max over c of Σ_k S_ck · exp(r_k · e_k)

so nothing is simulated again. While the critical path stays critical this is, to first order, d log S = Σ_k r_k · e_k · S_k / S. The
maximum matters where another lane is nearly as long: a step that waits for the host cannot become shorter than the work of its streams.

The draws e_k of a source are the same for every plan. Therefore a speed-up, S(e) of the baseline over S(e) of the strategy, has a paired
interval: what both steps share cancels. To first order, d log(speed-up) = Σ_k r_k · e_k · (S_k/S of the baseline − S_k/S of the strategy).

A discrepancy is the error that remains when all costs are right (see `discrepancy`). That of a step cancels in a speed-up, which has that
of its strategy instead. An accuracy is the error that predictions of that kind are known to have (see `published`). No interval is
narrower.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from statistics import NormalDist

import numpy as np

from simulator.engine.costs.cost import Z_90, Cost
from traces.documents.timeline import CriticalSpan

#: Distance from the median to a quartile of a normal distribution, in standard deviations.
QUARTILE = 0.6745
#: The source of seconds that are exact.
EXACT = ""
#: Sources with the same text before this have the same draws.
TOGETHER = " ± "
#: Draws of every source. They are stratified, so that the interval of a single source is exact to the resolution of its quantiles.
DRAWS = 1000
#: Sources drawn at a time, which bounds the memory that it takes.
_BLOCK = 512

Interval = tuple[float, float]


@dataclass(frozen=True)
class Sensitivity:
    """What a step time depends on.

    `chains`: seconds per step by source, of work that must follow one another; the first is the critical path. `deviations`: by source, one
    standard deviation of the logarithm of its error. Sources without one, such as EXACT, have no error.
    """

    step_s: float
    chains: Sequence[Mapping[str, float]]
    deviations: Mapping[str, float]

    def draws(self) -> np.ndarray:
        """Draws of the step time in seconds, shape (DRAWS,). Draw i of one plan belongs to draw i of any other."""
        return self._draws

    @cached_property
    def _draws(self) -> np.ndarray:  # a step is compared with several others
        sources = sorted({source for chain in self.chains for source in chain})
        totals = np.zeros((len(self.chains), DRAWS))
        for first in range(0, len(sources), _BLOCK):
            block = sources[first : first + _BLOCK]
            seconds = np.array([[chain.get(source, 0.0) for source in block] for chain in self.chains])
            totals += seconds @ np.array([factors(source, self.deviations.get(source, 0.0)) for source in block])
        expected_s = max((sum(chain.values()) for chain in self.chains), default=0.0)
        return self.step_s * (totals.max(axis=0) / expected_s if expected_s else np.ones(DRAWS))


def factors(source: str, deviation: float) -> np.ndarray:
    """Draws of the factor by which a source's seconds are wrong, shape (DRAWS,)."""
    return np.exp(deviation * _scores(source.partition(TOGETHER)[0])) if deviation else np.ones(DRAWS)


@lru_cache(maxsize=4096)
def _scores(source: str) -> np.ndarray:
    """Standard normal draws of a source, which depend on its name alone, whatever the process."""
    return np.random.Generator(np.random.PCG64(zlib.crc32(source.encode()))).permutation(_quantiles())


@cache
def _quantiles() -> np.ndarray:
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])


def step_interval(sensitivity: Sensitivity, discrepancy: float = 0.0, accuracy: float = 0.0) -> Interval:
    """Return the bounds in seconds between which the step time lies with probability 0.9.

    `discrepancy` and `accuracy`: standard deviations of the logarithms of steps.
    """
    return _central(sensitivity.draws() * factors("discrepancy of steps", discrepancy), sensitivity.step_s, accuracy)


def speedup_interval(baseline: Sensitivity, other: Sensitivity, discrepancy: float = 0.0, accuracy: float = 0.0) -> Interval:
    """Return the bounds between which the speed-up of `other` over `baseline` lies with probability 0.9, by common draws.

    `discrepancy` and `accuracy`: standard deviations of the logarithms of speed-ups.
    """
    draws = baseline.draws() / other.draws() * factors("discrepancy of speed-ups", discrepancy)
    return _central(draws, baseline.step_s / other.step_s, accuracy)


def faster_probability(baseline: Sensitivity, other: Sensitivity, discrepancy: float = 0.0, accuracy: float = 0.0) -> float:
    """Return the probability that `other` is faster than `baseline`, by the draws and the accuracy of `speedup_interval`.

    Of the two, the one that is less sure counts. So a speed-up whose 90 % interval contains 1 is never more than 95 % sure.
    """
    draws = baseline.draws() / other.draws() * factors("discrepancy of speed-ups", discrepancy)
    by_draws = float(np.mean(draws > 1) + np.mean(draws == 1) / 2)
    if not accuracy:
        return by_draws
    by_accuracy = NormalDist().cdf(math.log(baseline.step_s / other.step_s) / accuracy)
    return min(by_draws, by_accuracy, key=lambda probability: abs(probability - 0.5))


def _central(draws: np.ndarray, expected: float, accuracy: float) -> Interval:
    """The central 90 % of some draws, around the expected value and no narrower than the accuracy allows."""
    low, high = np.quantile(draws, (0.05, 0.95))
    reach = math.exp(Z_90 * accuracy)
    return min(float(low), expected / reach), max(float(high), expected * reach)


def relative_deviation(cost: Cost) -> float:
    """Return the standard deviation of the logarithm of a cost: the spread of its samples, and the cost model's error if not measured.

    On a machine that is busy with other work, an upper quartile may be many times the median; its logarithm is what counts.
    """
    return math.hypot(math.log1p(cost.spread) / QUARTILE, cost.error)


def clipped_seconds(span: CriticalSpan, window_s: tuple[float, float]) -> float:
    """Return the length of the part of a span that lies in the window, in seconds."""
    return max(0.0, min(span.end_s, window_s[1]) - max(span.start_s, window_s[0]))
