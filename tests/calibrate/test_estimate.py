"""How long a validation takes, as it is announced before."""

from types import SimpleNamespace

import pytest

from calibrate.planned import CPU_SAMPLE_S, GPU_KEY_S, validation_seconds
from simulator.engine.costs.cost import GUESSED, MEASURED, Cost
from simulator.predict.forecast import Forecast
from tests.support import tiny
from traces.documents.comparison import Shares
from traces.documents.timeline import Timeline


def forecast(step_s: float, sources: tuple[str, ...]) -> Forecast:
    """A plan of one task per source, whose costs are a second each and have that source."""
    plan, _ = tiny.build(*(tiny.task(f"t{number}", 1.0) for number in range(len(sources))))
    costs = [Cost(f"key{number}", 1.0, 1.0, source) for number, source in enumerate(sources)]
    timeline = Timeline("predicted", (), step_s, (0.0, step_s))
    return Forecast(plan, tiny.gpu(), costs, timeline, (step_s, step_s), Shares(measured=1, fitted=0, guessed=0), 0.0)


def a_testbed(interleaved: bool) -> SimpleNamespace:
    return SimpleNamespace(interleaved=interleaved, units_per_round=3, plain_steps_per_round=2)


#: Steps of a program without rounds (numerics, peak memory, warm-up) and of plain PyTorch (numerics, warm-up).
STEPS, PLAIN = 5 + 4 + 4, 5 + 3


@pytest.mark.parametrize("rounds", [4, 10])
def test_every_program_and_plain_pytorch_take_their_steps(rounds):
    forecasts = {"baseline": forecast(2.0, ()), "turbodl": forecast(1.0, ())}
    expected = (2 + 2 + 1) * (STEPS + 3 * rounds) + 2 * (PLAIN + 2 * rounds)
    assert validation_seconds(forecasts, a_testbed(True), rounds, calibrate=False) == pytest.approx(expected)


def test_keys_are_sampled_in_every_round_on_a_cpu_and_once_on_a_gpu():
    forecasts = {"baseline": forecast(0.0, (MEASURED, GUESSED))}
    assert validation_seconds(forecasts, a_testbed(True), 10, calibrate=True) == pytest.approx((1 + 10 * 2) * 2 * (2 + CPU_SAMPLE_S))
    assert validation_seconds(forecasts, a_testbed(False), 10, calibrate=True) == pytest.approx(GPU_KEY_S)


def test_keys_are_sampled_before_and_after_the_steps_of_the_programs_that_have_them():
    """Three programs take turns. key0 is everyone's; key1 is one program's alone, so it is sampled twice a round, not three times."""
    forecasts = {"baseline": forecast(0.0, (MEASURED,)), "owt": forecast(0.0, (MEASURED, MEASURED))}
    first, rounds = 2, 10 * (3 + 2)
    assert validation_seconds(forecasts, a_testbed(True), 10, calibrate=True) == pytest.approx((first + rounds) * (2 + CPU_SAMPLE_S))
