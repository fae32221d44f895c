"""Strategies whose plan depends on costs plan with measured ones: where keys are measured in rounds, theirs are measured before.

And how long a validation will take.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from calibrate.cpu import contention
from calibrate.cpu.testbed import CpuTestbed
from calibrate.planned import CPU_SAMPLE_S, GPU_KEY_S, plan_calibrated, validation_seconds
from calibrate.testbed import no_progress
from simulator.engine.costs.cost import DATASHEET, MEASURED, Cost
from simulator.engine.scenario import Scenario
from simulator.model.job import Job
from simulator.predict.forecast import Forecast
from simulator.predict.intervals import Sensitivity
from simulator.predict.waterfall import StepParts
from simulator.strategies import registry as strategies
from tests.support import tiny
from tests.support.jobs import MLP
from traces.documents.comparison import Shares
from traces.documents.profile import Profile
from traces.documents.timeline import Timeline


def forecast(step_s: float, sources: tuple[str, ...]) -> Forecast:
    """A plan of one task per source, whose costs are a second each and have that source."""
    plan, _ = tiny.build(*(tiny.task(f"t{number}", 1.0) for number in range(len(sources))))
    costs = [Cost(f"key{number}", 1.0, 1.0, source) for number, source in enumerate(sources)]
    timeline = Timeline("predicted", (), step_s, (0.0, step_s))
    scenario, shares = Scenario(plan, tiny.gpu(), costs), Shares(measured=1, fitted=0, guessed=0)
    return Forecast(scenario, timeline, shares, 0.0, Sensitivity(step_s, (), {}), StepParts(step_s, {}, {}))


def a_testbed(interleaved: bool) -> SimpleNamespace:
    return SimpleNamespace(interleaved=interleaved, units_per_round=3, round_s=math.inf, plain_steps_per_round=2)


#: Steps of a program without rounds (numerics, peak memory, warm-up) and of plain PyTorch (numerics, warm-up).
STEPS, PLAIN = 5 + 4 + 4, 5 + 3


@pytest.mark.parametrize("rounds", [4, 10])
def test_every_program_and_plain_pytorch_take_their_steps(rounds):
    forecasts = {"baseline": forecast(2.0, ()), "turbodl": forecast(1.0, ())}
    expected = (2 + 2 + 1) * (STEPS + 3 * rounds) + 2 * (PLAIN + 2 * rounds)
    assert validation_seconds(forecasts, a_testbed(True), rounds, calibrate=False) == pytest.approx(expected)


def test_keys_are_sampled_in_every_round_on_a_cpu_and_once_on_a_gpu():
    forecasts = {"baseline": forecast(0.0, (MEASURED, DATASHEET))}
    assert validation_seconds(forecasts, a_testbed(True), 10, calibrate=True) == pytest.approx((1 + 10 * 2) * 2 * (2 + CPU_SAMPLE_S))
    assert validation_seconds(forecasts, a_testbed(False), 10, calibrate=True) == pytest.approx(GPU_KEY_S)


def test_keys_are_sampled_before_and_after_the_steps_of_the_programs_that_have_them():
    """Three programs take turns. key0 is everyone's; key1 is one program's alone, so it is sampled twice a round, not three times."""
    forecasts = {"baseline": forecast(0.0, (MEASURED,)), "owt": forecast(0.0, (MEASURED, MEASURED))}
    first, rounds = 2, 10 * (3 + 2)
    assert validation_seconds(forecasts, a_testbed(True), 10, calibrate=True) == pytest.approx((first + rounds) * (2 + CPU_SAMPLE_S))


@pytest.fixture
def by_cost(monkeypatch):
    """A strategy `by-cost` that puts the baseline's updates on a second stream if it knows their costs.

    Yields the list of its plans so far, each "measured" or "guessed".
    """
    kinds = []
    baseline = strategies.get("baseline")

    def plan(job, machine, costs, options):
        plain = baseline.plan(job, machine, costs, options)
        known = not costs.missing(plain)
        tasks = tuple(replace(task, stream=int(known and task.phase == "update")) for task in plain.tasks)
        kinds.append("measured" if known else "guessed")
        return replace(plain, strategy="by-cost", tasks=tasks)

    discovered = {name: strategies.get(name) for name in strategies.names(1)}
    discovered["by-cost"] = strategies.Strategy("by-cost", "for this test", baseline.options_type, plan, "by-cost", uses_costs=True)
    monkeypatch.setattr(strategies, "_discover", lambda: discovered)
    monkeypatch.setattr(contention, "ROUNDS", 1)
    monkeypatch.setattr(contention, "FEWEST", 1)
    return kinds


class CountingTestbed(CpuTestbed):
    """Records how many keys each preview has measured."""

    def __init__(self):
        super().__init__()
        self.previews = []

    def preview(self, plans, machine, profile):
        """Measure, and record the number of keys."""
        self.previews.append(super().preview(plans, machine, profile))
        return self.previews[-1]


def planned(texts, profile, calibrate=True):
    """The forecasts and the testbed."""
    testbed = CountingTestbed()
    job = Job(MLP, 4)
    forecasts, refused = plan_calibrated(testbed, job, ["baseline", *texts], {}, profile, calibrate, None, no_progress)
    assert refused == {}
    return forecasts, testbed


def empty() -> Profile:
    """A profile of this machine without measurements."""
    return Profile(identity=CpuTestbed().identity)


def test_a_strategy_that_uses_costs_plans_with_measured_ones(by_cost):
    profile = empty()
    forecasts, testbed = planned(["by-cost"], profile)
    assert by_cost == ["guessed", "measured"]
    assert testbed.previews == [len(profile.costs), 0]  # the plan made with them has no other keys
    assert {cost.warm.samples for cost in profile.costs.values()} == {2}
    assert {task.stream for task in forecasts["by-cost"].plan.tasks} == {0, 1}


def test_costs_in_the_profile_are_used_at_once(by_cost):
    profile = empty()
    planned(["by-cost"], profile)
    del by_cost[:]
    _, testbed = planned(["by-cost"], profile)
    assert by_cost == ["measured"]
    assert testbed.previews == [0]


def test_other_strategies_need_no_preview(by_cost):
    profile = empty()
    _, testbed = planned(["forward-fusion"], profile)
    assert (by_cost, testbed.previews, profile.costs) == ([], [], {})


def test_without_calibration_nothing_is_measured(by_cost):
    profile = empty()
    _, testbed = planned(["by-cost"], profile, calibrate=False)
    assert (by_cost, testbed.previews, profile.costs) == (["guessed"], [], {})
    assert not profile.contention.known


def test_the_strategies_here_say_whether_they_use_costs():
    assert not strategies.get("baseline").uses_costs
    assert not strategies.get("backward-fusion").uses_costs
