"""The 90 % intervals of predicted step times and speed-ups, from common draws of the errors of their costs.

Let S_ck be the seconds that source k has in chain c of a plan (see `sensitivity`), and r_k the standard deviation of the logarithm of its
error. With a normal e_k for every source, a draw of the step time is

    S(e) = max over c of Σ_k S_ck · exp(r_k · e_k)

so nothing is simulated again. While the critical path stays critical this is, to first order, d log S = Σ_k r_k · e_k · S_k / S. The
maximum matters where another lane is nearly as long: a step that waits for the host cannot become shorter than the work of its streams.

The draws e_k of a source are the same for every plan. Therefore, a speed-up, S(e) of the baseline over S(e) of the strategy, has a paired
interval: what both steps share cancels. To first order, d log(speed-up) = Σ_k r_k · e_k · (S_k/S of the baseline − S_k/S of the strategy).

A discrepancy is the error that remains when all costs are right (see `discrepancy`). The discrepancy of a step cancels in a speed-up, which
has its strategy's discrepancy instead. An accuracy is the known error of predictions of this kind (see `published`). No interval is
narrower.

A run that follows several plans has the sensitivity of each, weighted: what belongs to a step of plan i counts `engine.switch.weights`[i]
times, so that parts and sources add up to the plan's step time. A drain counts like the number of steady periods that take equally long.

Where lanes wait for each other, the slowest one determines the step, and it differs from step to step. Median costs do not show that: a
step is the maximum of several sums, and the maximum at typical costs is less than the typical maximum. The interleaved rounds of a
validation sample all keys of a plan within a moment, again and again. The plan is simulated with each of these samplings, and the mean of
the steps is the prediction. How far they differ says how well that mean is known. A plan whose lanes do not wait for each other is the sum
of its costs, for which medians do better (`costs.model`).
"""

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from statistics import NormalDist, fmean, stdev
from typing import Protocol

import numpy as np

from simulator.engine.costs.cost import Z_90, Cost
from simulator.engine.scenario import EAGER, Scenario
from simulator.engine.simulation import Simulation
from simulator.predict.waterfall import OnPath, StepParts
from traces.documents.comparison import Shares
from traces.documents.timeline import AtPeak, CriticalSpan

#: Distance from the median to a quartile of a normal distribution, in standard deviations.
QUARTILE = 0.6745
#: The source of seconds that are exact.
EXACT = ""
#: Sources with the same text before this have the same draws.
TOGETHER = " ± "
#: Draws of every source. They are stratified, so that the interval of a single source is exact to the resolution of its quantiles.
DRAWS = 1000
#: Sources drawn at a time, which limits memory use.
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


class Drawn(Protocol):
    """Something with a step time, and draws of it as those of a `Sensitivity`."""

    @property
    def step_s(self) -> float: ...
    def draws(self) -> np.ndarray: ...


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


def step_interval(sensitivity: Drawn, discrepancy: float = 0.0, accuracy: float = 0.0) -> Interval:
    """Return the bounds in seconds between which the step time lies with probability 0.9.

    `discrepancy` and `accuracy`: standard deviations of the logarithms of steps. The interval is no narrower than either allows.
    """
    return _central(sensitivity.draws() * factors("discrepancy of steps", discrepancy), sensitivity.step_s, max(discrepancy, accuracy))


def speedup_interval(baseline: Drawn, other: Drawn, discrepancy: float = 0.0, accuracy: float = 0.0) -> Interval:
    """Return the bounds between which the speed-up of `other` over `baseline` lies with probability 0.9, by common draws.

    `discrepancy` and `accuracy`: standard deviations of the logarithms of speed-ups.

    Two steps rest on one cost, which is uncertain by 20 %. Both steps may be longer or shorter; their ratio is certain.

    >>> before, after = (Sensitivity(step_s, [{"conv": step_s}], {"conv": 0.2}) for step_s in (2.0, 1.0))
    >>> [round(bound, 2) for bound in step_interval(before)], speedup_interval(before, after)
    ([1.44, 2.78], (2.0, 2.0))
    """
    draws = baseline.draws() / other.draws() * factors("discrepancy of speed-ups", discrepancy)
    return _central(draws, baseline.step_s / other.step_s, accuracy)


def faster_probability(baseline: Drawn, other: Drawn, discrepancy: float = 0.0, accuracy: float = 0.0) -> float:
    """Return the probability that `other` is faster than `baseline`, by the draws and the accuracy of `speedup_interval`.

    The less certain of the two counts. So a speed-up whose 90 % interval contains 1 is never more than 95 % sure.
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


@dataclass(frozen=True)
class WeightedSensitivity:
    """What a step time that is a weighted sum of others depends on. `parts`: (weight, that of the other step)."""

    parts: Sequence[tuple[float, "Sensitivity | WeightedSensitivity"]]

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return sum(weight * part.step_s for weight, part in self.parts)

    def draws(self) -> np.ndarray:
        """Draws of the step time, shape (DRAWS,). The error of a source is the same in all parts."""
        return sum((weight * part.draws() for weight, part in self.parts), np.zeros(DRAWS))


def weighted_parts(parts: Sequence[tuple[float, StepParts]]) -> StepParts:
    """The parts of such a step. `parts`: (weight, those of the other step)."""
    on_path: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for weight, part in parts:
        for total, own in ((on_path, part.on_path), (work, part.work)):
            for name, seconds in own.items():
                total[name] += weight * seconds
    tasks = [OnPath(task.task, task.part, weight * task.runs, weight * task.seconds) for weight, part in parts for task in part.tasks]
    return StepParts(sum(weight * part.step_s for weight, part in parts), dict(on_path), dict(work), tuple(tasks))


def weighted_shares(shares: Sequence[tuple[float, Shares]]) -> Shares:
    """The origin of task seconds. `shares`: (some of the seconds, shares of these)."""
    total_s = sum(seconds for seconds, _ in shares) or 1.0
    return Shares(**{name: sum(s * getattr(own, name) for s, own in shares) / total_s for name in Shares.model_fields})


def highest(peaks: Sequence[Sequence[AtPeak]]) -> tuple[AtPeak, ...]:
    """By device, the contents of its memory at the highest of several plans' peaks."""
    by_device: dict[str, AtPeak] = {}
    for peak in (peak for of_plan in peaks for peak in of_plan):
        if peak.device not in by_device or peak.bytes > by_device[peak.device].bytes:
            by_device[peak.device] = peak
    return tuple(by_device.values())


def most(held: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """By name, the most bytes of any plan."""
    return {name: max(each.get(name, 0) for each in held) for name in dict.fromkeys(name for each in held for name in each)}


#: Samplings that are simulated, at most. They are spread evenly over those that there are.
MOST_SAMPLINGS = 10


def steps_in_rounds(scenario: Scenario, sampled: Mapping[str, Mapping[int, float]]) -> list[float]:
    """Return the simulated step times in seconds, one for each sampling of `sampled` (as in `CostModel`).

    Returns an empty list if no lane waits for another one, or if fewer than two samplings have all keys of the plan.
    """
    if not scenario.dependencies.recorded:
        return []
    samplings = _samplings(scenario.costs, sampled)
    if len(samplings) < 2:
        return []
    chosen = (
        samplings if len(samplings) <= MOST_SAMPLINGS else [samplings[i * len(samplings) // MOST_SAMPLINGS] for i in range(MOST_SAMPLINGS)]
    )
    return [Simulation(replace(scenario, costs=costs, mode=EAGER)).play().step_s for costs in chosen]


def _samplings(costs: Sequence[Cost], sampled: Mapping[str, Mapping[int, float]]) -> list[list[Cost]]:
    """The costs of a plan's tasks as each sampling has them that has all sampled keys of the plan."""
    own = [sampled[key] for key in {cost.key for cost in costs} if key in sampled]
    drawn = []
    for number in sorted(set.intersection(*map(set, own))) if own else []:
        factors = {key: factor[number] for key, factor in sampled.items() if number in factor}
        scaled = {id(cost): _scaled(cost, factors.get(cost.key, 1.0)) for cost in costs}  # tasks that share one cost still do
        drawn.append([scaled[id(cost)] for cost in costs])
    return drawn


def _scaled(cost: Cost, factor: float) -> Cost:
    return replace(cost, warm_s=cost.warm_s * factor, cold_s=cost.cold_s * factor)


def mean_and_error(steps_s: Sequence[float]) -> tuple[float, float]:
    """Return the mean of some step times in seconds, and the standard error of its logarithm. Raises ValueError for fewer than two."""
    if len(steps_s) < 2:
        raise ValueError(f"got {len(steps_s)} step times; expected at least 2")
    mean_s = fmean(steps_s)
    return mean_s, stdev(steps_s) / mean_s / math.sqrt(len(steps_s))
