"""The fit recovers the law behind the times, and its error is that of unseen keys."""

import math

import pytest

from simulator.engine.costs.roofline import Point, fit

WORK = [(1e6 * 3**i, 1e5 * 2 ** ((7 * i) % 10)) for i in range(12)]


def points(law, noise=0.0):
    """Points whose times follow `law(flops, bytes)`, alternately longer and shorter by the factor exp(noise)."""
    return [Point(f, b, table_s=f / 1e9 + b / 1e9, seconds=law(f, b) * math.exp(noise * (-1) ** i)) for i, (f, b) in enumerate(WORK)]


def test_a_roofline_is_found():
    fitted = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    assert fitted.law == "roofline"
    assert fitted.error < 0.05
    assert fitted.predict(Point(1e9, 1e5, 1.0)) == pytest.approx(0.1, rel=0.05)
    assert fitted.predict(Point(1e5, 1e8, 1.0)) == pytest.approx(1.0, rel=0.05)


def test_a_power_law_is_found():
    fitted = fit(points(lambda f, b: 1e-6 * f**0.5))
    assert fitted.law == "log-linear"
    assert fitted.predict(Point(1e8, 1e6, 1.0)) == pytest.approx(1e-2, rel=1e-3)


def test_a_table_that_is_off_by_a_factor_is_scaled():
    fitted = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9)))
    assert fitted.law == "scaled"
    assert fitted.error == pytest.approx(0.0, abs=1e-9)
    assert fitted.predict(Point(1.0, 1.0, 2.0)) == pytest.approx(6.0)


def test_the_error_is_that_of_keys_left_out():
    fitted = fit(points(lambda f, b: 3 * (f / 1e9 + b / 1e9), noise=0.2))
    assert 0.15 < fitted.error < 0.5


def test_three_keys_are_too_few():
    assert fit(points(lambda f, b: 1.0)[:3]) is None
    assert fit([Point(1.0, 1.0, 1.0, seconds=0.0)] * 9) is None


def test_keys_without_flops_or_bytes_can_be_fitted():
    fitted = fit([Point(0.0, b, b / 1e9, seconds=1e-6 + b / 1e8) for b in (1e3, 1e4, 1e5, 1e6, 1e7)])
    assert fitted.predict(Point(0.0, 1e8, 0.1)) == pytest.approx(1.0, rel=0.3)
    assert fit([Point(0.0, 0.0, 1e-6, seconds=2e-6)] * 5).predict(Point(0.0, 0.0, 1e-6)) == pytest.approx(2e-6)


def test_beyond_the_fitted_keys_the_scaled_table_predicts():
    fitted = fit(points(lambda f, b: max(f / 1e10, b / 1e8)))
    near, far = Point(1e9, 1e6, 7.0), Point(1e15, 1e6, 7.0)
    assert fitted.at(near) == (fitted.predict(near), fitted.error, 0.0)
    assert fitted.at(far)[:2] == (fitted.scale.predict(far), fitted.scale.error)
    assert fitted.beyond(far) == pytest.approx(math.log(1e15 / WORK[-1][0]), rel=1e-3)
    assert fitted.scale.error > fitted.error


@pytest.mark.filterwarnings("error")
def test_less_than_one_flop_is_none():
    """A damaged profile may say so; dividing by it would overflow."""
    tiny = [Point(5e-324, b, table_s=1e-6, seconds=2e-9 * b) for _, b in WORK]
    assert fit(tiny).predict(Point(0.0, 1e6, 1.0)) == pytest.approx(2e-3, rel=0.1)
