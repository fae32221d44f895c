"""Coarse plans of pipelines: one task for each action, the same numbers and nearly the same times."""

import pytest

from calibrate.numerics import References, compare
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Device, Machine, Memory
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.plan.task import TRANSFER, UPDATE
from simulator.predict.forecast import forecast
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.grid_csv import schedule_of
from tests.support import staged_models
from tests.support.pipeline_plans import plan_pipeline

HERE = this_cpu(devices=2)


def job(name: str, batch: int = 8, **fields) -> Job:
    return Job(f"{staged_models.__file__}:{name}", batch, precision="fp64", **fields)


def test_an_action_is_one_task_if_it_sends_only_what_it_ends_with():
    plan = plan_pipeline("1f1b:microbatches=4,granularity=stage", job("chain"), HERE)
    actions = [task for task in plan.tasks if task.phase not in (TRANSFER, UPDATE)]
    assert [task.name for task in actions if task.device == "cpu:0" and task.phase == "forward"] == ["0F0", "0F1", "0F2", "0F3"]
    assert {task.layer for task in actions if task.device == "cpu:1"} == {"stage 1"}
    assert schedule_of(plan) == orders.one_f_one_b_order(2, 4)
    assert load(dump(plan)).tasks == plan.tasks


@pytest.mark.parametrize("strategy", ["gpipe:", "1f1b:", "zero-bubble:", "gpipe:rematerialize=on,", "1f1b:update=backward-fusion,"])
@pytest.mark.parametrize("model", ["residual", "chain"])
def test_numbers_do_not_change(strategy, model):
    """The residual model has dropout, batch-norm and ops in place."""
    training, backend = job(model, optimizer="adam"), CpuBackend(HERE)
    built = training.build()
    plan = plan_pipeline(f"{strategy}granularity=stage", training, HERE)
    numerics = compare(training, built, plan, backend, References(training, built, 4, backend).of(plan), 4)
    assert (numerics.max_grad_error, numerics.max_param_error) == (0.0, 0.0)


def without_overheads() -> Machine:
    """Four devices of one lane each that add no time to tasks."""
    each = (Device(f"cpu:{i}", "cpu", 1, {"fp32": 1e12}, "ram", priority_levels=2) for i in range(4))
    return Machine("made up", tuple(each), (Memory("ram", 1 << 40, 1e13, 1),))


@pytest.mark.parametrize("machine", [without_overheads(), load_machine("p100x4")], ids=["cpu", "p100x4"])
@pytest.mark.parametrize("strategy", ["gpipe", "1f1b"])
@pytest.mark.parametrize("model", ["lenet5", "resnet20"])
def test_steps_take_as_long_within_a_percent(model, strategy, machine):
    costs = CostModel(machine)
    step_s, tasks = [], []
    for granularity in ("op", "stage"):
        plan = plan_pipeline(f"{strategy}:microbatches=8,granularity={granularity}", Job(model, 64), machine)
        step_s.append(simulate(plan, machine, costs.resolve(plan)).step_s)
        tasks.append(sum(task.phase != TRANSFER for task in plan.tasks))
    assert step_s[1] == pytest.approx(step_s[0], rel=0.01)
    assert tasks[1] < tasks[0] / 2


def test_the_executor_holds_as_much_as_predicted():
    """Values inside a list are freed after their last use, and count as scratch."""
    training, backend = job("chain", 1 << 15), CpuBackend(HERE)
    tensors = job_tensors(training, training.build(), training.graph())
    plan = plan_pipeline("gpipe:microbatches=4,granularity=stage", training, HERE)
    timeline = forecast(plan, HERE, CostModel(HERE)).timeline
    assert max(backend.peak_bytes(plan, tensors).values()) == pytest.approx(max(d.peak_bytes for d in timeline.devices), rel=0.1)
