"""The fit finds the law that made the times, and its error is what unseen keys show."""

import math

import pytest

from simulator.costs.roofline import Point, fit

WORK = [(1e6 * 3**i, 1e5 * 2 ** ((7 * i) % 10)) for i in range(12)]


def points(law, noise=0.0):
    """Points whose times follow `law(flops, bytes)`, alternately too long and too short by `noise`."""
    return [Point(f, b, table_s=f / 1e9 + b / 1e9, seconds=law(f, b) * math.exp(noise * (-1) ** i)) for i, (f, b) in enumerate(WORK)]


def test_a_roofline_is_found():
    found = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    assert found.law == "roofline"
    assert found.error < 0.05
    assert found.predict(Point(1e9, 1e5, 1.0)) == pytest.approx(0.1, rel=0.05)
    assert found.predict(Point(1e5, 1e8, 1.0)) == pytest.approx(1.0, rel=0.05)


def test_a_power_law_is_found():
    found = fit(points(lambda f, b: 1e-6 * f**0.5))
    assert found.law == "log-linear"
    assert found.predict(Point(1e8, 1e6, 1.0)) == pytest.approx(1e-2, rel=1e-3)


def test_a_table_that_is_off_by_a_factor_is_scaled():
    found = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9)))
    assert found.law == "scaled"
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.predict(Point(1.0, 1.0, 2.0)) == pytest.approx(6.0)


def test_the_error_is_that_of_keys_left_out():
    found = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9), noise=0.2))
    assert 0.15 < found.error < 0.5


def test_a_handful_of_keys_is_not_enough():
    assert fit(points(lambda f, b: 1.0)[:3]) is None
    assert fit([Point(1.0, 1.0, 1.0, seconds=0.0)] * 9) is None


def test_work_of_zero_is_no_obstacle():
    found = fit([Point(0.0, b, b / 1e9, seconds=1e-6 + b / 1e8) for b in (1e3, 1e4, 1e5, 1e6, 1e7)])
    assert found.predict(Point(0.0, 1e8, 0.1)) == pytest.approx(1.0, rel=0.3)
    assert fit([Point(0.0, 0.0, 1e-6, seconds=2e-6)] * 5).predict(Point(0.0, 0.0, 1e-6)) == pytest.approx(2e-6)


def test_far_from_what_it_saw_a_law_yields_to_the_scaled_table():
    found = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    near, far = Point(1e9, 1e6, 7.0), Point(1e15, 1e6, 7.0)
    assert found.at(near) == (found.predict(near), found.error)
    assert found.at(far) == (found.scale.predict(far), found.scale.error)
    assert found.scale.error > found.error
