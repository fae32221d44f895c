"""The step of a plan whose lanes wait for each other, simulated with one sampling of its costs after another.

Where lanes wait for each other, the slower one decides, and which one that is differs from step to step. Costs at their medians do not
show that: a step is the longest of several sums, and the longest at typical costs is shorter than the typical longest. The interleaved
rounds of a validation sample all keys of a plan within a moment, again and again. The plan is simulated with each of these samplings, and
the mean of the steps is the prediction. How far they differ says how well that mean is known.

A plan whose lanes do not wait for each other is the sum of its costs, for which medians do better (`costs.model`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulated_step_s
from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan

#: Samplings that are simulated, at most. They are spread evenly over those that there are.
MOST = 10


def steps_in_rounds(plan: Plan, machine: Machine, model: CostModel, costs: Sequence[Cost], dependencies: Dependencies) -> list[float]:
    """Return the simulated step times in seconds, one for each sampling that `model` knows of.

    `costs`: those of the plan's tasks. Returns an empty list if no lane waits for another one, or if fewer than two samplings have all keys
    of the plan.
    """
    if not any(dependencies.waits(dependencies.steady)):
        return []
    samplings = _samplings(costs, model.sampled)
    if len(samplings) < 2:
        return []
    chosen = samplings if len(samplings) <= MOST else [samplings[i * len(samplings) // MOST] for i in range(MOST)]
    return [simulated_step_s(plan, machine, sampled, model.pair_multipliers) for sampled in chosen]


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
