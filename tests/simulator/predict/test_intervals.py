"""Intervals: errors belong to sources, err together within one, and are shared by the plans of a speed-up."""

import math

import numpy as np
import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.scenario import Scenario
from simulator.model.job import Job
from simulator.predict import intervals
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.intervals import (
    DRAWS,
    EXACT,
    Sensitivity,
    factors,
    faster_probability,
    mean_and_error,
    relative_deviation,
    speedup_interval,
    step_interval,
    steps_in_rounds,
)
from simulator.predict.target import Target
from tests.support.jobs import MLP
from tests.support.tiny import build, chain, cpu, task

Z = 1.6448536
#: Quantiles of stratified draws, and of sums of them, are this close.
CLOSE = 0.06


def depends(*chains: dict[str, float], step_s: float | None = None, **deviations: float) -> Sensitivity:
    """A step whose chains have these seconds by source."""
    return Sensitivity(step_s or max(sum(chain.values()) for chain in chains), chains, deviations)


def relative(interval: tuple[float, float]) -> float:
    """The relative standard deviation that corresponds to a 90 % interval."""
    return math.log(interval[1] / interval[0]) / (2 * Z)


def test_the_interval_of_one_source_is_its_error():
    low, high = step_interval(depends({"k": 2.0}, k=0.1))
    assert low == pytest.approx(2.0 * math.exp(-Z * 0.1), rel=2e-3)
    assert high == pytest.approx(2.0 * math.exp(Z * 0.1), rel=2e-3)


def test_seconds_of_one_source_err_together_and_different_sources_do_not():
    assert relative(step_interval(depends({"k": 1.0, "l": 1.0}, k=0.1, l=0.1))) == pytest.approx(0.1 / math.sqrt(2), rel=CLOSE)


def test_exact_seconds_dilute_an_error():
    assert relative(step_interval(depends({"k": 1.0, EXACT: 3.0}, k=0.2))) == pytest.approx(0.05, rel=CLOSE)


def test_a_discrepancy_does_not_average_out():
    assert relative(step_interval(depends({"k": 1.0, "l": 1.0}), discrepancy=0.03)) == pytest.approx(0.03, rel=0.01)


def test_no_interval_is_narrower_than_the_accuracy():
    narrow, wide = depends({"k": 2.0}, k=0.01), depends({"k": 2.0}, k=0.5)
    assert step_interval(narrow, accuracy=0.3) == pytest.approx((2.0 * math.exp(-Z * 0.3), 2.0 * math.exp(Z * 0.3)))
    assert step_interval(wide, accuracy=0.3) == step_interval(wide)


def test_another_lane_bounds_a_step_from_below_and_may_become_the_longest():
    """A step of 1.0 that waits for the host, over 0.9 of work on a stream."""
    low, high = step_interval(depends({"host": 1.0}, {"work": 0.9}, host=0.5))
    assert low == 0.9
    assert high == pytest.approx(math.exp(Z * 0.5), rel=5e-3)
    assert step_interval(depends({EXACT: 1.0}, {"work": 0.9}, work=0.5))[1] == pytest.approx(0.9 * math.exp(Z * 0.5), rel=5e-3)


def test_without_a_path_only_the_discrepancy_counts():
    assert step_interval(Sensitivity(1.0, (), {})) == (1.0, 1.0)


def test_what_both_steps_share_cancels_in_their_speed_up():
    base, same = depends({"k": 2.0}, k=0.5), depends({"k": 1.0}, k=0.5)
    assert speedup_interval(base, same) == pytest.approx((2.0, 2.0))
    other = depends({"l": 1.0}, l=0.5)
    assert relative(speedup_interval(base, other)) == pytest.approx(0.5 * math.sqrt(2), rel=CLOSE)


def test_a_paired_interval_is_narrower_than_that_of_independent_steps():
    base, other = depends({"k": 3.0, "l": 1.0}, k=0.2, l=0.2), depends({"k": 3.0, "m": 0.5}, k=0.2, m=0.2)
    independent = math.hypot(relative(step_interval(base)), relative(step_interval(other)))
    assert relative(speedup_interval(base, other)) < 0.4 * independent


def test_a_speed_up_has_its_own_discrepancy_and_accuracy():
    base, other = depends({"k": 3.0}, k=0.2), depends({"k": 2.0}, k=0.2)
    assert relative(speedup_interval(base, other, discrepancy=0.04)) == pytest.approx(0.04, rel=0.01)
    assert relative(speedup_interval(base, other, accuracy=0.2)) == pytest.approx(0.2)


def test_small_errors_are_the_linear_estimate():
    """d log(speed-up) = Σ r · e · (share in the baseline − share in the strategy)."""
    deviations = {"a": 0.05, "b": 0.03, "c": 0.04}
    base, other = depends({"a": 5.0, "b": 4.0, "c": 1.0}, **deviations), depends({"a": 2.0, "b": 4.0, "c": 2.0}, **deviations)
    linear = math.hypot(*(r * (base.chains[0][k] / 10 - other.chains[0][k] / 8) for k, r in deviations.items()))
    assert relative(speedup_interval(base, other)) == pytest.approx(linear, rel=CLOSE)


def test_draws_are_standard_normal_and_the_same_for_every_plan():
    draws = np.log(factors("conv", 1.0))
    assert draws.shape == (DRAWS,)
    assert (draws.mean(), draws.std()) == (pytest.approx(0.0, abs=1e-9), pytest.approx(1.0, abs=5e-3))
    assert np.allclose(factors("conv", 0.5), np.exp(0.5 * draws))
    assert abs(np.corrcoef(draws, np.log(factors("matmul", 1.0)))[0, 1]) < 0.1


def test_spread_is_a_quartile_half_width():
    assert relative_deviation(Cost("k", 1.0, 1.0, spread=0.06745)) == pytest.approx(0.1, rel=0.04)
    assert relative_deviation(Cost("k", 1.0, 1.0, error=0.3, spread=0.6745 * 0.4)) == pytest.approx(0.5, rel=0.1)


def test_samples_of_a_disturbed_machine_make_wide_intervals_but_no_absurd_ones():
    disturbed = Cost("k", 1.0, 1.0, spread=6.0)  # the upper quartile is 13 times the median
    assert 2.0 < relative_deviation(disturbed) < 3.0


def test_the_probability_of_being_faster_agrees_with_the_interval_of_the_speed_up():
    base = depends({"k": 1.0, "l": 1.0}, k=0.1, l=0.1)
    assert faster_probability(base, base) == 0.5
    assert faster_probability(base, depends({"k": 0.5, "l": 1.0}, k=0.1, l=0.1)) > 0.99, "what both share cancels"
    for factor in (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2):
        other = depends({"m": 2.0 * factor}, m=0.05)
        for accuracy in (0.0, 0.05, 0.2):
            low, high = speedup_interval(base, other, accuracy=accuracy)
            sure = faster_probability(base, other, accuracy=accuracy)
            assert (low > 1, high < 1) == (sure > 0.95, sure < 0.05)


# Steps simulated with one sampling of the costs after another, where lanes wait for each other.


#: a and b run side by side, c waits for both, and the next step for c.
JOINED = (
    task("a", 1.0, reads="w", writes="x"),
    task("b", 1.0, reads="w", writes="y", stream=1),
    task("c", 1.0, reads="x y", mutates="w"),
)


def simulated(plan, costs, sampled) -> list[float]:
    """The steps of a plan on two cores. `sampled`: by key and number, a sample over the median."""
    return steps_in_rounds(Scenario(plan, cpu(cores=2), costs), sampled)


def test_the_slower_lane_decides_in_each_sampling():
    """With medians the step takes 2 s; in each sampling one of the lanes is slower."""
    sampled = {"a": {1: 1.5, 2: 0.5}, "b": {1: 0.5, 2: 1.75}, "c": {1: 1.0, 2: 1.0}}
    assert simulated(*build(*JOINED), sampled) == [2.5, 2.75]


def test_a_sampling_that_lacks_a_key_of_the_plan_does_not_count():
    sampled = {"a": {1: 1.5, 2: 0.5, 3: 2.0}, "b": {2: 1.0, 3: 1.0, 4: 9.0}, "of another plan": {7: 1.0}}
    assert simulated(*build(*JOINED), sampled) == [2.0, 3.0]


def test_one_sampling_says_nothing_of_a_mean():
    assert simulated(*build(*JOINED), {"a": {1: 1.5}, "b": {1: 0.5}}) == []
    assert simulated(*build(*JOINED), {}) == []


def test_lanes_that_do_not_wait_for_each_other_need_no_rounds():
    sampled = {"t0": {1: 1.5, 2: 0.5}}
    assert simulated(*chain(1.0, 1.0), sampled) == []


def test_only_plans_whose_lanes_wait_for_each_other_are_predicted_round_by_round():
    """The samples of every key are 1.5 and 0.5 times the median: a step of one lane is the median's, one of several a mean over both."""
    target = Target.of(CostModel(cpu(cores=2)))
    errors = {}
    for text in ("baseline", "turbodl"):
        plan = plan_of(Job(MLP, 4), text, target)
        sampled = {cost.key: {1: 1.5, 2: 0.5} for cost in target.costs.resolve(plan)}
        errors[text] = forecast(plan, Target.of(CostModel(cpu(cores=2), sampled=sampled))).rounds_error
    assert errors["baseline"] == 0
    assert errors["turbodl"] == pytest.approx(0.5, rel=0.05)  # the mean of 1.5 and 0.5 errs by a half


def test_many_samplings_are_thinned_out_evenly(monkeypatch):
    monkeypatch.setattr(intervals, "MOST_SAMPLINGS", 2)
    assert simulated(*build(*JOINED), {"c": {number: 1.0 + number for number in range(4)}}) == [2.0, 4.0]


def test_the_error_of_a_mean_shrinks_with_the_number_of_steps():
    mean_s, error = mean_and_error([1.8, 2.2])
    assert (mean_s, error) == (2.0, pytest.approx(0.1))
    assert mean_and_error([1.8, 2.2] * 50)[1] == pytest.approx(0.01, rel=0.01)
    with pytest.raises(ValueError, match="got 1 step times; expected at least 2"):
        mean_and_error([1.0])
