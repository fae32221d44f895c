"""Intervals: errors are per key, add as variances, and scale with the part of the critical path they sit on."""

import math

import pytest

from simulator.costs.cost import Cost
from simulator.predict.intervals import relative_deviation, step_interval
from traces.timeline import Cause, CriticalSpan, Timeline

Z = 1.6448536


def timeline(*lengths: float, names: str = "abcdef") -> Timeline:
    """A timeline with tasks a, b, ... one after another on the critical path of a one-step window."""
    path, now = [], 0.0
    for name, length in zip(names, lengths, strict=False):
        path.append(CriticalSpan(name, now, now + length, Cause.LANE, "forward"))
        now += length
    return Timeline("predicted", (), now, (0.0, now), critical_path=tuple(path))


def cost(key: str, error: float = 0.0, spread: float = 0.0) -> Cost:
    """A cost; the tests use only its key and errors."""
    return Cost(key, 1.0, 1.0, error=error, spread=spread)


def relative(interval: tuple[float, float], step_s: float) -> float:
    """The relative standard deviation that corresponds to a 90 % interval."""
    low, high = interval
    assert low * high == pytest.approx(step_s**2)
    return math.log(high / step_s) / Z


def test_one_key_carries_its_whole_error():
    assert relative(step_interval(timeline(2.0), {"a": cost("k", error=0.1)}), 2.0) == pytest.approx(0.1)


def test_tasks_of_one_key_err_together_and_different_keys_do_not():
    same = step_interval(timeline(1.0, 1.0), {"a": cost("k", 0.1), "b": cost("k", 0.1)})
    different = step_interval(timeline(1.0, 1.0), {"a": cost("k", 0.1), "b": cost("l", 0.1)})
    assert relative(same, 2.0) == pytest.approx(0.1)
    assert relative(different, 2.0) == pytest.approx(0.1 / math.sqrt(2))


def test_guesses_of_one_class_err_together():
    costs = {
        name: Cost(name, 1.0, 1.0, "guessed", error=0.1, op_class=op_class)
        for name, op_class in zip("abc", ("conv", "conv", "pool"), strict=True)
    }
    assert relative(step_interval(timeline(1.0, 1.0, 2.0), costs), 4.0) == pytest.approx(0.1 / math.sqrt(2))


def test_a_common_factor_does_not_average_out():
    interval = step_interval(timeline(1.0, 1.0), {"a": cost("k"), "b": cost("l")}, common=0.03)
    assert relative(interval, 2.0) == pytest.approx(0.03)


def test_what_is_not_on_the_path_does_not_count():
    assert step_interval(timeline(1.0), {"a": cost("k"), "z": cost("l", 0.5)}) == (1.0, 1.0)


def test_tasks_without_a_cost_dilute_the_error():
    assert relative(step_interval(timeline(1.0, 3.0), {"a": cost("k", 0.2)}), 4.0) == pytest.approx(0.05)


def test_spread_is_a_quartile_half_width():
    assert relative_deviation(cost("k", spread=0.06745)) == pytest.approx(0.1)
    assert relative_deviation(cost("k", error=0.3, spread=0.6745 * 0.4)) == pytest.approx(0.5)


def test_larger_errors_are_wider_and_stay_positive():
    small, large = (step_interval(timeline(1.0), {"a": cost("k", error=error)}) for error in (0.5, 3.0))
    assert 0 < large[0] < small[0] < 1 < small[1] < large[1]


def test_only_the_window_counts():
    path = (CriticalSpan("a", -9.0, 1.0, Cause.LANE), CriticalSpan("b", 1.0, 2.0, Cause.LANE))
    shown = Timeline("predicted", (), 2.0, (0.0, 2.0), critical_path=path)
    assert relative(step_interval(shown, {"a": cost("k", 0.1), "b": cost("l")}), 2.0) == pytest.approx(0.05)


def test_a_timeline_without_a_path_has_only_the_common_error():
    bare = Timeline("measured", (), 1.0, (0.0, 1.0))
    assert step_interval(bare, {}) == (1.0, 1.0)
