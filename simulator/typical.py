"""From mean task times to the median of a step, which is what a measured step time is.

Samples of a time are skewed: stalls make it longer, nothing makes it shorter. A sum of many independent tasks hardly is, so that its median
is the sum of the means; a step of one long task has that task's own median. In between, to first order in the skewness (Cornish and
Fisher), the median of a sum is its mean less k3 / (6 s^2), where variances s^2 and third moments k3 add up over the tasks. With each task's
own k3 put at 6 s^2 (mean - median), every task gives up its excess of the mean in proportion to its share of the variance.
"""

from collections.abc import Sequence
from dataclasses import replace

from .cost import Cost

#: Standard deviations in half the distance between the quartiles of a normal distribution.
_HALF_WIDTH = 0.6745


def median_costs(costs: Sequence[Cost]) -> list[Cost]:
    """The costs of a period's tasks, shortened so that their sum is the sum's median; equal costs stay one object."""
    variance = [(cost.spread * cost.cold_s / _HALF_WIDTH) ** 2 for cost in costs]
    total = sum(variance)
    if not total:
        return list(costs)
    made: dict[int, Cost] = {}
    for cost, own in zip(costs, variance, strict=True):
        if id(cost) not in made:
            less_s = cost.above_median_s * own / total
            made[id(cost)] = replace(cost, warm_s=cost.warm_s - less_s, cold_s=cost.cold_s - less_s) if less_s else cost
    return [made[id(cost)] for cost in costs]
