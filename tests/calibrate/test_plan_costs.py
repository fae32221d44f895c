"""Strategies whose plan depends on costs plan with measured ones: where keys are measured in rounds, theirs are measured before."""

from dataclasses import replace

import pytest

from calibrate.cpu import contention
from calibrate.cpu.testbed import CpuTestbed
from calibrate.planned import plan_calibrated
from calibrate.testbed import no_progress
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.support.jobs import MLP
from traces.documents.profile import Profile


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
        return replace(plain, strategy="by-cost", segments=(replace(plain.segments[0], tasks=tasks),))

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
