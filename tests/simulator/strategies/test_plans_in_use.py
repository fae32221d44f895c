"""A plan that is still in use is not made again, and what follows from it is derived once."""

import pickle
from dataclasses import replace

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.recipes import resident_shares
from simulator.machine.presets import load_machine
from simulator.machine.scaled import Scale, scaled
from simulator.model.job import Job
from simulator.plan.check import PlanError
from simulator.plan.dependencies import dependencies_of
from simulator.strategies import registry as strategies
from tests.support.jobs import MLP, planned
from tests.support.small_plans import forward_fused, machine

MACHINE = load_machine("p100x4")
#: Every figure that a slider changes, but the number of SMs.
SLOWER = scaled(MACHINE, Scale(flops=0.3, memory=0.7, launch=5, link=0.1))
INDEPENDENT = [strategy.name for strategy in strategies.every() if not strategy.uses_costs]


def plan_of(job: Job, text: str, machine=MACHINE):
    return planned(text, job, machine, CostModel(machine))


def job() -> Job:
    """A job that has planned nothing."""
    return Job(MLP, 8)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_strategy_that_uses_no_costs_plans_the_same_for_every_speed_of_a_machine(name):
    assert plan_of(job(), name, SLOWER) == plan_of(job(), name)


def test_such_a_plan_is_made_once(monkeypatch):
    one = job()
    plan = plan_of(one, "backward-fusion")
    assert plan_of(one, "backward-fusion", SLOWER) is plan
    assert plan_of(one, "backward-fusion:update_stream=on") is not plan
    assert plan_of(one, "backward-fusion", load_machine("h100")) is not plan
    assert plan_of(replace(one, batch=4), "backward-fusion") is not plan
    assert plan_of(job(), "backward-fusion") is not plan, "another job may have read another version of the model's file"


def test_a_plan_that_uses_costs_is_made_again_and_kept_if_it_is_equal():
    one = job()
    plan = plan_of(one, "turbodl")
    assert plan_of(one, "turbodl") is plan
    faster = scaled(MACHINE, Scale(flops=100, memory=100))
    assert plan_of(one, "turbodl", faster) == plan_of(job(), "turbodl", faster)


def test_nothing_keeps_a_plan_that_is_not_in_use():
    one = job()
    plan_of(one, "baseline")
    assert not one.plans


def test_what_follows_from_a_plan_is_derived_once():
    plan = plan_of(job(), "baseline")
    assert dependencies_of(plan, SLOWER) is dependencies_of(plan, MACHINE)
    assert resident_shares(plan, SLOWER) is resident_shares(plan, MACHINE)
    bigger = replace(MACHINE, memories=tuple(replace(memory, cache_bytes=memory.cache_bytes * 2) for memory in MACHINE.memories))
    assert resident_shares(plan, bigger) is not resident_shares(plan, MACHINE)
    assert dependencies_of(plan, replace(MACHINE, receives="blocking")) is not dependencies_of(plan, MACHINE)


def test_other_processes_receive_the_plan_alone():
    one = job()
    plan = plan_of(one, "baseline")
    dependencies_of(plan, MACHINE)
    plans, received = pickle.loads(pickle.dumps((one.plans, plan)))
    assert received == plan
    assert not plans
    assert len(pickle.dumps(received)) == len(pickle.dumps(plan_of(job(), "baseline")))


def test_a_plan_that_was_valid_on_one_machine_is_checked_on_another():
    plan = forward_fused()
    plan.validate(machine())
    tasks = tuple(replace(task, priority=-2) for task in plan.tasks)
    urgent = replace(plan, segments=(replace(plan.segments[0], tasks=tasks),))
    urgent.validate(machine(levels=3))
    with pytest.raises(PlanError, match="priority -2"):
        urgent.validate(machine(levels=1))
