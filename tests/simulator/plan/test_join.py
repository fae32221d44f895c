"""Plans that follow one after the other share what lives as long as the job, and nothing else."""

import pytest

from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.strategies.hybrid_pipeline import in_turn
from tests.support import staged_models
from tests.support.jobs import planned
from tests.support.pipeline_plans import devices

JOB = Job(f"{staged_models.__file__}:chain", 8)


def test_a_later_plan_has_primes_but_for_what_is_carried():
    stale, plain = planned("stale-pipeline:placement=4", JOB, devices(2)), planned("gpipe:placement=4", JOB, devices(2))
    plan = in_turn("both", [(stale, 2), (plain, 3)], {}, {})
    plan.validate(devices(2))
    assert [segment.repeat for segment in plan.segments] == [2, 3]
    assert [task.name for task in plan.tasks] == [f"{task.name}'" for task in plain.tasks]
    assert plan.carried == stale.carried == plain.carried
    first, second = plan.parts
    assert (first.tasks, first.values, first.losses) == (stale.tasks, stale.values, stale.losses)
    assert set(first.values) & set(second.values) == {name for name, value in plan.values.items() if value.storage in plan.carried}
    assert load(dump(plan)) == plan


def test_plans_that_carry_a_parameter_on_two_devices_cannot_follow_each_other():
    with pytest.raises(ValueError, match="two segments of both carry different values called"):
        in_turn("both", [(planned("gpipe:placement=2", JOB, devices(2)), 1), (planned("gpipe:placement=6", JOB, devices(2)), 1)], {}, {})
