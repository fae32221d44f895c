import math
import random

import pytest

from traces.documents.verdict import for_choice, measured_speedup, verdict


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        ((1.08, 1.22), "faster"), ((0.80, 0.97), "slower"), ((0.99, 1.01), "same"), ((1.005, 1.015), "same"),
        ((0.95, 1.10), "cannot tell"), (None, "cannot tell"),
    ],
)  # fmt: skip
def test_the_interval_of_a_speed_up_decides_its_verdict(interval, word):
    assert verdict(interval) == word


@pytest.mark.parametrize(
    ("evidence", "word"),
    [
        ({"busy_share": 0.11}, "no verdict"), ({"busy_share": 0.1}, "faster"), ({"busy_share": None}, "faster"),
        ({"measured_share": 0.49}, "no verdict"), ({"measured_share": 0.5}, "faster"), ({"measured_share": None}, "faster"),
    ],
)  # fmt: skip
def test_a_busy_machine_or_too_few_measured_costs_give_no_verdict(evidence, word):
    assert verdict((1.08, 1.22), **evidence) == word


def test_an_interval_is_widened_for_a_choice_among_several():
    assert for_choice(1.1, (1.0, 1.3), among=1) == (1.0, 1.3)
    assert for_choice(1.1, None, among=5) is None
    assert for_choice(1.1, (1.05, 1.2), among=5, already=5) == (1.05, 1.2)
    low, high = for_choice(1.0, (0.5, 2.0), among=5)
    assert (low, high) == pytest.approx((0.5 ** (2.32635 / 1.64485), 2.0 ** (2.32635 / 1.64485)), rel=1e-4)


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
    assert low == pytest.approx(math.sqrt(1.1 * 1.2) * math.exp(-6.31375 * math.log(1.2 / 1.1) / 2))
    assert verdict((low, high)) == "cannot tell"
    assert measured_speedup(rounds(1.1), rounds(1.0)) == (pytest.approx(1.1), None)
    assert measured_speedup(rounds(1.1, 1.1), rounds(1.0, 0.0)).interval is None  # a round without a length has no ratio


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


def identical(rng: random.Random, schedules: int, count: int) -> tuple[list[list[float]], list[list[list[float]]]]:
    """Steps by round of plain PyTorch and of schedules that take exactly as long, on a machine whose speed differs from round to round."""

    def step(machine: float) -> list[float]:
        return [machine * math.exp(rng.gauss(0.0, 0.04))]

    machines = [math.exp(rng.gauss(0.0, 0.1)) for _ in range(count)]
    return [step(machine) for machine in machines], [[step(machine) for machine in machines] for _ in range(schedules)]


def called_faster(schedules: int, count: int, among: int, trials: int = 400) -> float:
    """How often the fastest of identical schedules is called faster than plain PyTorch, which takes as long."""
    rng = random.Random(7 * schedules + count)
    faster = 0
    for _ in range(trials):
        plain, others = identical(rng, schedules, count)
        best = max((measured_speedup(plain, other, among=among) for other in others), key=lambda gain: gain.value)
        faster += verdict(best.interval) == "faster"
    return faster / trials


@pytest.mark.parametrize(("schedules", "count"), [(1, 10), (5, 10), (12, 10), (5, 4)])
def test_the_fastest_of_identical_schedules_is_rarely_called_faster(schedules, count):
    assert called_faster(schedules, count, among=schedules) <= 0.07


def test_without_the_correction_the_choice_would_decide():
    assert called_faster(12, 10, among=1) > 0.1


def test_a_predicted_choice_is_corrected_too():
    """The fastest of k predictions that are wrong by a normal error in the logarithm, each with its honest interval."""
    rng, trials = random.Random(3), 2000
    reach = math.exp(1.64485 * 0.1)
    faster = {True: 0, False: 0}
    for _ in range(trials):
        best = max(math.exp(rng.gauss(0.0, 0.1)) for _ in range(8))
        for corrected in faster:
            interval = for_choice(best, (best / reach, best * reach), 8 if corrected else 1)
            faster[corrected] += verdict(interval) == "faster"
    assert faster[True] / trials <= 0.06
    assert faster[False] / trials > 0.25
