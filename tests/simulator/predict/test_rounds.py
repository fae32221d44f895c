"""Steps simulated with one sampling of the costs after another, where lanes wait for each other."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.plan.dependencies import Dependencies
from simulator.predict import intervals
from simulator.predict.intervals import mean_and_error, steps_in_rounds
from tests.support.tiny import build, chain, cpu, task

#: a and b run side by side, c waits for both, and the next step for c.
JOINED = (
    task("a", 1.0, reads="w", writes="x"),
    task("b", 1.0, reads="w", writes="y", stream=1),
    task("c", 1.0, reads="x y", mutates="w"),
)


def simulated(plan, costs, sampled) -> list[float]:
    """The steps of a plan on two cores. `sampled`: by key and number, a sample over the median."""
    machine = cpu(cores=2)
    return steps_in_rounds(plan, machine, CostModel(machine, sampled=sampled), costs, Dependencies(plan))


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


def test_many_samplings_are_thinned_out_evenly(monkeypatch):
    monkeypatch.setattr(intervals, "MOST_SAMPLINGS", 2)
    assert simulated(*build(*JOINED), {"c": {number: 1.0 + number for number in range(4)}}) == [2.0, 4.0]


def test_the_error_of_a_mean_shrinks_with_the_number_of_steps():
    mean_s, error = mean_and_error([1.8, 2.2])
    assert (mean_s, error) == (2.0, pytest.approx(0.1))
    assert mean_and_error([1.8, 2.2] * 50)[1] == pytest.approx(0.01, rel=0.01)
    with pytest.raises(ValueError, match="got 1 step times; expected at least 2"):
        mean_and_error([1.0])
