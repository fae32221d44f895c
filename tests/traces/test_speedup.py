import math
import random

import pytest

from traces.speedup import measured_speedup, verdict


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        ((1.08, 1.22), "faster"),
        ((0.80, 0.97), "slower"),
        ((0.99, 1.01), "same"),
        ((1.005, 1.015), "same"),
        ((0.95, 1.10), "cannot tell"),
        (None, "cannot tell"),
    ],
)
def test_the_interval_of_a_speed_up_decides_its_verdict(interval, word):
    assert verdict(interval) == word


def rounds(*medians: float) -> list[list[float]]:
    """Step times by round: three steps around each median."""
    return [[0.9 * s, s, 1.2 * s] for s in medians]


def test_a_measured_speed_up_pairs_the_rounds():
    """Both programs are slowed down in the same rounds, and the ratio stays."""
    slow = (1.0, 1.0, 1.3, 2.0, 1.0, 1.1)
    value, interval = measured_speedup(rounds(*(2.0 * s for s in slow)), rounds(*slow))
    assert value == pytest.approx(2.0)
    assert interval == pytest.approx((2.0, 2.0))


def test_five_rounds_span_their_ratios_and_one_disturbed_round_of_ten_hardly_counts():
    assert measured_speedup(rounds(1.0, 1.1, 1.2, 1.3, 1.4), rounds(*[1.0] * 5)).interval == pytest.approx((1.0, 1.4))
    low, high = measured_speedup(rounds(*[1.1, 1.12] * 4, 1.1, 9.0), rounds(*[1.0] * 10)).interval
    assert 1.09 < low <= high < 1.2


def test_few_rounds_have_a_wide_interval_and_one_has_none():
    low, high = measured_speedup(rounds(1.1, 1.2), rounds(1.0, 1.0)).interval
    assert low == pytest.approx(math.sqrt(1.1 * 1.2) * math.exp(-6.314 * math.log(1.2 / 1.1) / 2))
    assert verdict((low, high)) == "cannot tell"
    assert measured_speedup(rounds(1.1), rounds(1.0)) == (pytest.approx(1.1), None)


def test_a_round_in_which_one_did_not_run_has_no_ratio():
    assert measured_speedup([[2.0], [9.0], [2.0]], [[1.0], [], [1.0]]).interval == pytest.approx((2.0, 2.0))


def test_no_interval_is_narrower_than_the_noise_of_the_machine():
    quiet, noisy = (measured_speedup(rounds(*[1.1] * 10), rounds(*[1.0] * 10), noise).interval for noise in (0.0, 0.15))
    assert (verdict(quiet), verdict(noisy)) == ("faster", "cannot tell")
    assert noisy == pytest.approx((1.1 / 1.15, 1.1 * 1.15))


@pytest.mark.parametrize("count", [3, 5, 10])
def test_nine_of_ten_intervals_hold_the_true_speed_up(count):
    """Rounds differ by a disturbance of both programs, sometimes a large one, and each program by its own noise."""
    rng = random.Random(count)
    held, trials = 0, 600
    for _ in range(trials):
        base, other = [], []
        for _ in range(count):
            machine = math.exp(rng.gauss(0.0, 0.1)) * (2.0 if rng.random() < 0.1 else 1.0)
            base.append([1.2 * machine * math.exp(rng.gauss(0.0, 0.03))])
            other.append([machine * math.exp(rng.gauss(0.0, 0.03))])
        low, high = measured_speedup(base, other).interval
        held += low <= 1.2 <= high
    assert 0.87 <= held / trials <= 0.99
