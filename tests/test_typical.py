"""The median of a step, from means of task times whose samples are skewed."""

import numpy as np
import pytest

from simulator.cost import Cost
from simulator.typical import median_costs
from traces.profile import Stats


def cost(name: str, samples: np.ndarray) -> Cost:
    """As a cost model makes it of a key's samples: their mean, quartiles, and how far the mean lies above the median."""
    stats = Stats.of([float(sample) for sample in samples])
    mean = float(np.mean(samples))
    return Cost(name, mean, mean, spread=stats.spread, above_median_s=mean - stats.median_s)


def test_a_step_of_one_task_takes_the_tasks_median():
    samples = np.array([1.0, 1.0, 1.1, 1.2, 4.0])
    (found,) = median_costs([cost("a", samples)])
    assert (found.warm_s, found.cold_s) == pytest.approx((1.1, 1.1))


def test_a_step_of_many_equal_tasks_takes_their_means_less_one_excess():
    single = cost("a", np.array([1.0, 1.0, 1.1, 1.2, 4.0]))
    found = median_costs([single] * 50)
    assert sum(c.cold_s for c in found) == pytest.approx(50 * single.cold_s - single.above_median_s)
    assert len({id(c) for c in found}) == 1, "tasks of one key share their cost"


def test_times_without_spread_stay_as_they_are():
    given = [Cost("a", 1.0, 2.0), Cost("b", 3.0, 4.0)]
    assert median_costs(given) == given


@pytest.mark.parametrize("scales", [[5.0, 1.0, 1.0], [3.0, 2.0, 2.0, 1.0, 1.0, 1.0], [1.0] * 12, [20.0] + [0.1] * 40])
def test_the_sum_is_nearer_to_the_median_of_sums_than_means_or_medians_are(scales):
    rng = np.random.default_rng(1)
    samples = [scale * rng.lognormal(0.0, 0.6, 40_000) for scale in scales]
    costs = [cost(str(number), each) for number, each in enumerate(samples)]
    median = float(np.median(np.sum(samples, axis=0)))
    ours = sum(c.cold_s for c in median_costs(costs))
    means, medians = sum(c.cold_s for c in costs), sum(c.cold_s - c.above_median_s for c in costs)
    assert abs(ours - median) < min(abs(means - median), abs(medians - median)) + 0.01 * median
    assert ours == pytest.approx(median, rel=0.03)
