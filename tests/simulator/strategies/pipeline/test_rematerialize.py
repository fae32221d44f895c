"""Forwards that are repeated before their backward: the same numbers, less memory, more work."""

import pytest
import torch

from executors.cpu.backend import CpuBackend
from executors.run import execute
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, TRANSFER, UPDATE
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies.pipeline import orders, planning
from simulator.strategies.pipeline.grid_csv import schedule_of
from simulator.strategies.pipeline.pipeline import at_once
from tests.support.jobs import job_of
from tests.support.pipeline_plans import devices, plan_pipeline
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

MACHINE = this_cpu(devices=2)


def job(name: str, batch: int = 8, **fields) -> Job:
    return job_of(name, batch, **fields)


def again(plan: Plan) -> list[str]:
    return [task.name for task in plan.tasks if task.name.endswith("#again")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["gpipe", "1f1b", "interleaved-1f1b:per_device=2", "zero-bubble"])
@pytest.mark.parametrize("model", ["residual", "chain"])
def test_numbers_do_not_change(strategy, model):
    """The residual model has batch-norm, whose running statistics must change once, dropout, and ops in place."""
    training = job(model, optimizer="adam")
    plan = plan_pipeline(strategy + (",rematerialize=on" if ":" in strategy else ":rematerialize=on"), training, MACHINE)
    assert again(plan)
    assert largest_error(training, plan, CpuBackend(MACHINE), 4) == 0.0


@pytest.mark.thorough
def test_buffers_end_as_they_do_without_it():
    """Running statistics and the count of batches, bit by bit."""
    training, backend = job("residual"), CpuBackend(MACHINE)
    tensors = job_tensors(training, training.build(), training.graph())
    ends = []
    for option in ("off", "on"):
        plan = plan_pipeline(f"gpipe:rematerialize={option}", training, MACHINE)
        run = execute(plan, tensors, backend, steps=3)
        ends.append({name: run.tensors[name] for name, value in plan.values.items() if value.kind == BUFFER})
    assert any("running_mean" in name for name in ends[0])
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize(("strategy", "repeats"), [("gpipe", 8), ("1f1b", 4)])
def test_a_forward_is_repeated_unless_its_backward_follows_at_once(strategy, repeats):
    """Of two stages with four microbatches: all of them under gpipe; under 1F1B not those of the last stage."""
    training = job("chain")
    plan = plan_pipeline(f"{strategy}:microbatches=4,rematerialize=on", training, MACHINE)
    actions = {task.action for task in plan.tasks if "R" in task.action}
    assert len(actions) == repeats
    order = {"gpipe": orders.gpipe_order, "1f1b": orders.one_f_one_b_order}[strategy](2, 4)
    assert len(at_once(order)) == 8 - repeats
    assert schedule_of(plan) == order, "the schedule is that of plain actions"


def test_dropout_is_not_repeated_and_batch_norm_leaves_its_statistics():
    plan = plan_pipeline("gpipe:microbatches=2,rematerialize=on", job("residual"), MACHINE)
    repeats = [task for task in plan.tasks if task.name.endswith("#again")]
    assert any("native_batch_norm" in task.body.target for task in repeats)
    assert not any("dropout" in task.body.target for task in repeats)
    assert not any(plan.values[operand.value].kind == BUFFER for task in repeats for operand in task.mutates)


def test_it_takes_less_memory_and_more_time():
    machine = load_machine("p100x4")
    model, training = CostModel(machine), Job("vgg11", 256)
    plain, repeated = (
        forecast(plan_pipeline(f"gpipe:stages=4,microbatches=16,rematerialize={option}", training, machine), Target(machine, model))
        for option in ("off", "on")
    )
    activations = [max(timeline.peak_bytes for timeline in one.timeline.devices) for one in (plain, repeated)]
    assert activations[1] < 0.75 * activations[0]
    assert 1.05 < repeated.timeline.step_s / plain.timeline.step_s < 1.5


@pytest.mark.thorough
def test_the_executor_holds_less_too():
    """As much as predicted, within a tenth."""
    training, backend = job("chain", 1 << 13), CpuBackend(MACHINE)
    tensors = job_tensors(training, training.build(), training.graph())
    measured, predicted = {}, {}
    for option in ("off", "on"):
        plan = plan_pipeline(f"gpipe:microbatches=8,rematerialize={option}", training, MACHINE)
        measured[option] = max(backend.peak_bytes(plan, tensors).values())
        timeline = forecast(plan, Target.of(CostModel(MACHINE))).timeline
        predicted[option] = max(device.peak_bytes for device in timeline.devices)
    assert measured["on"] < 0.8 * measured["off"]
    assert measured == pytest.approx(predicted, rel=0.1)


# Coarse plans of pipelines: one task for each action, the same numbers and nearly the same times.


def test_an_action_is_one_task_if_it_sends_only_what_it_ends_with():
    plan = plan_pipeline("1f1b:microbatches=4,granularity=stage", job("chain"), MACHINE)
    actions = [task for task in plan.tasks if task.phase not in (TRANSFER, UPDATE)]
    assert [task.name for task in actions if task.device == "cpu:0" and task.phase == "forward"] == ["0F0", "0F1", "0F2", "0F3"]
    assert {task.layer for task in actions if task.device == "cpu:1"} == {"stage 1"}
    assert schedule_of(plan) == orders.one_f_one_b_order(2, 4)
    assert load(dump(plan)).tasks == plan.tasks


def test_a_plan_of_too_many_ops_is_one_of_few_actions(monkeypatch):
    monkeypatch.setattr(planning, "MOST_TASKS", 20)
    with refuses(Code.REQUEST, "ops in a step.*; use granularity=stage, or fewer stages or microbatches"):
        plan_pipeline("gpipe:microbatches=4", job("chain"), MACHINE)
    assert len(plan_pipeline("gpipe:microbatches=4,granularity=stage", job("chain"), MACHINE).tasks) > 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["gpipe:", "1f1b:", "zero-bubble:", "gpipe:rematerialize=on,", "1f1b:update=backward-fusion,"])
@pytest.mark.parametrize("model", ["residual", "chain"])
def test_numbers_of_coarse_plans_do_not_change(strategy, model):
    """The residual model has dropout, batch-norm and ops in place."""
    training = job(model, optimizer="adam")
    plan = plan_pipeline(f"{strategy}granularity=stage", training, MACHINE)
    assert largest_error(training, plan, CpuBackend(MACHINE), 4) == 0.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", [devices(4), load_machine("p100x4")], ids=["cpu", "p100x4"])
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
    training, backend = job("chain", 1 << 15), CpuBackend(MACHINE)
    tensors = job_tensors(training, training.build(), training.graph())
    plan = plan_pipeline("gpipe:microbatches=4,granularity=stage", training, MACHINE)
    timeline = forecast(plan, Target.of(CostModel(MACHINE))).timeline
    assert max(backend.peak_bytes(plan, tensors).values()) == pytest.approx(max(d.peak_bytes for d in timeline.devices), rel=0.1)
