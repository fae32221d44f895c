"""A run goes from one plan to another: each goes on with the parameters, buffers and optimizer state that the one before has left."""

import pytest
import torch

from calibrate.numerics import STEPS, References, compare, reference
from executors import in_turn
from executors.cpu.backend import CpuBackend
from executors.in_turn import run_steps_s, sample
from executors.measured import PlanTimes
from executors.run import Execution
from executors.tensors import job_tensors
from executors.trainer import Trainer
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target
from simulator.strategies.pipeline.staleness import staleness
from tests.support.jobs import job_of
from traces.errors import SchedcastError


@pytest.fixture(scope="module")
def machine():
    return this_cpu(devices=2)


@pytest.fixture(scope="module")
def job():
    """A model with dropout and batch-norm, whose masks and statistics must go on at the switch."""
    return job_of("residual", 8, optimizer="adam")


@pytest.fixture
def plan(job, machine):
    """Five iterations with stale weights, and then three plain ones."""
    return plan_of(job, "hybrid-pipeline:iterations=8,pipelined=0.6", Target.of(CostModel(machine)))


def trained_plainly(plan, job, built, backend, steps):
    """(losses, parameters) of plain PyTorch: with stale weights up to the switch, then without."""
    with built.restored():
        plain = reference(job, built, same_masks=True, backend=backend, stale=staleness(plan.sequence[0]))
        torch.set_num_threads(1)
        losses = []
        for iteration in range(steps):
            if iteration == plan.sequence[0].iterations:
                plain.stale({})
            losses.append(float(plain.step()))
        return losses, {name: tensor.clone() for name, tensor in plain.parameters().items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turns", [(10,), (5, 5), (2, 1, 4, 3)])
def test_numbers_are_those_of_stale_and_then_plain_training(turns, plan, job, machine):
    """However the run is divided into calls; it may go on for longer than planned."""
    backend, built = CpuBackend(machine), job.build()
    execution = Execution(plan, job_tensors(job, built, job.graph()), backend, job.seed)
    for steps in turns:
        execution.run(steps)
    assert len(execution.ends_s) == 10
    assert execution.ends_s == sorted(execution.ends_s)
    run = execution.finish()
    losses, parameters = trained_plainly(plan, job, built, backend, 10)
    assert list(run.losses) == losses
    assert all(torch.equal(run.tensors[name], parameters[name]) for name in parameters)


def test_without_the_switch_the_numbers_would_be_others(plan, job, machine):
    backend, built = CpuBackend(machine), job.build()
    _, parameters = trained_plainly(plan, job, built, backend, 10)
    _, stale = trained_plainly(plan.lasting(10, 1), job, built, backend, 10)
    assert any(not torch.equal(stale[name], parameters[name]) for name in parameters)


def test_the_plans_share_their_tensors(plan, job, machine):
    """Nothing is copied at a switch, and what the first plan alone needs is freed."""
    program = in_turn.load(CpuBackend(machine), plan, job_tensors(job, job.build(), job.graph()))
    program.run(5)
    before = program.binding
    program.run(1)
    assert program.binding is not before
    assert before.carried.keys() == program.binding.carried.keys()
    assert all(tensor is before.carried[name] for name, tensor in program.binding.carried.items())


def test_a_trainer_may_stop_to_evaluate_before_and_after_the_switch(plan, job, machine):
    built, other = job.build(), job.build()
    trainer = Trainer(plan, job, built, CpuBackend(machine))
    for _ in range(8):
        trainer.step(built.inputs, built.target)
        trainer.sync()  # without any iteration under way, no weights are stale
    backend = CpuBackend(machine)
    plain = reference(job, other, same_masks=True, backend=backend)
    torch.set_num_threads(1)
    for _ in range(8):
        plain.step()
    assert all(torch.equal(a, b) for a, b in zip(built.module.parameters(), other.module.parameters(), strict=True))


def test_a_run_counts_each_plan_as_often_as_it_is_followed(plan):
    """5 iterations of 2 s, a drain of 4 s, and 3 iterations of 6 s: 32 s for 8. The first step of each plan is not typical."""
    measured = [PlanTimes(0, (9.0, 2.0, 2.0)), PlanTimes(0, (), 4.0), PlanTimes(1, (9.0, 6.0, 6.0, 6.0))]
    assert run_steps_s(plan, measured, warm_up=1) == (4.0, 4.0)
    assert run_steps_s(plan, measured[:1]) == ()


def test_steps_are_sampled_of_every_plan(plan, job, machine):
    """A validation takes some steps of each in every round, whatever the run's numbers of iterations."""
    program = in_turn.load(CpuBackend(machine), plan, job_tensors(job, job.build(), job.graph()))
    for _ in range(3):
        chunk = sample(program, 4)
        assert len(chunk.steps_s) == 3
        assert {item.index for item in chunk.times} == set(range(len(plan.every_task)))
        assert [part.drain_s is None for part in chunk.parts] == [True, False, True, False]


def test_the_measured_timeline_shows_the_switch(plan, job, machine):
    execution = Execution(plan, job_tensors(job, job.build(), job.graph()), CpuBackend(machine))
    execution.run(8)
    timeline = execution.finish().timeline
    assert {span.task for span in timeline.spans} == {task.name for task in plan.every_task}
    assert {span.iteration for span in timeline.window()} >= {4, 5}
    before = max(span.end_s for span in timeline.spans if not span.task.endswith("'"))
    assert before <= min(span.start_s for span in timeline.spans if span.task.endswith("'"))
    assert max(span.iteration for span in timeline.spans) == 5


@pytest.mark.parametrize(
    "text",
    [
        "forward-fusion:then=baseline@3/6", "backward-fusion:then=turbodl@3/6", "gpipe:then=stale-pipeline@3/6",
        "pipedream:then=1f1b:microbatches=4@3/6", "stale-pipeline:then=zero-bubble@3/6",
    ],
)  # fmt: skip
def test_a_run_goes_on_with_any_strategy_that_holds_the_same_parameters(text, machine):
    """And its numbers are those of plain PyTorch that trains as the one does and then as the other."""
    job, backend = job_of("chain", 8, optimizer="adam", precision="fp64"), CpuBackend(machine)
    plan, built = plan_of(job, text, Target.of(CostModel(machine))), job.build()
    plan.validate(machine)
    assert [own.iterations for own in plan.sequence] == [3, 3]
    assert compare(job, built, plan, backend, References(job, built, STEPS, backend).of(plan)).equal("fp64")


def test_a_run_that_goes_on_is_predicted_as_the_mean_of_both(machine):
    job, target = job_of("chain", 8), Target.of(CostModel(machine))
    alone = [forecast(plan_of(job, text, target), target).timeline.step_s for text in ("gpipe", "1f1b:microbatches=2")]
    (_, first_s), (switch, then_s) = (both := forecast(plan_of(job, "gpipe:then=1f1b:microbatches=2@30/40", target), target)).phases
    assert switch == 30
    assert then_s == pytest.approx(alone[1])
    assert first_s == pytest.approx(alone[0], rel=0.1)  # the drain is extra
    assert both.timeline.step_s == pytest.approx((30 * first_s + 10 * then_s) / 40)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpipe:then=data-parallel@3/6", "cannot go from gpipe to data-parallel: .* is on cpu:1 and on cpu:0"),
        ("baseline:then=forward-fusion@6/6", "expected a strategy, the number of iterations before it, and that of the run"),
        ("baseline:then=forward-fusion", "as in gpipe@60/100"),
        ("baseline:then=pytorch@3/6", "your own loop, which no executor runs"),
        ("gpipe:then=hybrid-pipeline@3/6", "hybrid-pipeline is a run of two plans already"),
    ],
)
def test_two_plans_that_a_run_cannot_follow_are_refused(text, words, machine):
    with pytest.raises(SchedcastError, match=words):
        plan_of(job_of("chain", 8), text, Target.of(CostModel(machine)))
