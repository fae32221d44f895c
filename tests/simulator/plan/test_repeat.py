"""Plans that have one group of microbatches for many: written out, they are the plans of all microbatches; and predicted, as long."""

import random
from dataclasses import replace

import pytest

from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.repeat import expand
from simulator.plan.task import Task
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target, preset_target
from simulator.strategies import compact
from tests.support import models
from tests.support.refusals import refuses
from traces.errors import Code, UnusableFileError

LLAMA = "lm:form=llama,layers=2,d_model=16,heads=4,kv_heads=2,ffn=24,vocab=32"
#: Strategies that run microbatches one after another.
IN_TURN = (
    "baseline", "pytorch", "pytorch-ddp", "pytorch-fsdp", "forward-fusion", "backward-fusion", "turbodl", "data-parallel:fold=on",
    "data-parallel:fold=on,update=backward-fusion", "data-parallel:fold=on,update=asynchronous", "data-parallel:fold=on,gradients=held",
    "data-parallel:fold=on,update=forward-fusion,priorities=on", "fsdp:fold=on", "fsdp:fold=on,prefetch=0", "fsdp:fold=on,shard=2",
    "fsdp:fold=on,reshard=off", "fsdp:fold=on,shard=0", "fsdp:fold=on,update=backward-fusion", "fsdp:fold=on,shard=2,update=forward-fusion",
    "fsdp:fold=on,update=asynchronous", "fsdp:fold=on,streams=turbodl", "fsdp:fold=on,tp=2", "fsdp:fold=on,cp=2",
)  # fmt: skip
#: Pipelines, with ranks of one stage and of two.
PIPELINES = (
    "1f1b:stages=2", "1f1b:stages=3", "1f1b:stages=2,replicas=2", "1f1b:stages=2,tp=2", "1f1b:stages=2,tp=2,replicas=2,shard=1",
    "1f1b:stages=2,update=backward-fusion", "1f1b:stages=2,gradients=kept", "1f1b:stages=3,rematerialize=on",
    "1f1b:stages=2,tp=2,replicas=2,shard=1,update=backward-fusion", "1f1b:stages=2,replicas=2,update=asynchronous",
    "1f1b:stages=2,tp=2,update=forward-fusion", "interleaved-1f1b:stages=4,per_device=2", "zero-bubble:stages=2", "zero-bubble:stages=4",
    "zero-bubble:stages=4,shape=v",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    """Plans of few tasks omit microbatches, too."""
    monkeypatch.setattr(compact, "MOST_TASKS", 0)


def both(text: str, job: Job, target: Target) -> tuple[Plan, Plan]:
    """The plan that omits microbatches, and that of all."""
    plans = plan_of(job, text, target, compact=True), plan_of(job, text, target)
    assert plans[0].repeat is not None
    assert plans[0].microbatches < plans[1].microbatches
    return plans


def unnamed(plan: Plan) -> list[Task]:
    """The tasks without their own names: some are numbered by the microbatches or the tasks that a plan has."""
    return [replace(task, name="", after=()) for task in plan.tasks]


def check_equal(plan: Plan, whole: Plan) -> None:
    """Check that two plans are equal, but for the order in which values are listed, and what waits for tasks with other names."""
    assert (unnamed(plan), plan.values, plan.storages) == (unnamed(whole), whole.values, whole.storages)
    assert (plan.losses, plan.gradients, plan.semantics) == (whole.losses, whole.gradients, whole.semantics)
    pairs = [*zip(plan.tasks, whole.tasks, strict=True)]
    renamed = {one.name for one, other in pairs if one.name != other.name}
    assert all(one.after == other.after or renamed.intersection(one.after) for one, other in pairs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", IN_TURN)
def test_written_out_it_is_the_plan_of_all_microbatches(text):
    job = Job(LLAMA, 8 * 12, 8, "adamw", precision="mixed", accumulate=12)
    compact_plan, whole = both(text, job, preset_target(job, "8xh200"))
    check_equal(expand(compact_plan), whole)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", PIPELINES)
def test_written_out_it_is_the_plan_of_a_whole_pipeline(text):
    job = Job(LLAMA, 8 * 20, 8, "adamw", precision="mixed", checkpoint="none")
    compact_plan, whole = both(f"{text},microbatches=20,fold=on", job, preset_target(job, "8xh200"))
    check_equal(expand(compact_plan), whole)


def random_case(number: int) -> tuple[str, Job]:
    """A strategy of eight GPUs, and a job with many microbatches."""
    draw = random.Random(number)
    microbatches = draw.randrange(12, 40)
    fields = {
        "optimizer": draw.choice(["sgd", "adamw"]),
        "precision": draw.choice(["fp32", "mixed", "amp"]),
        "checkpoint": draw.choice(["none", "full", "selective"]),
        "form": draw.choice(["foreach", "fused"]),
    }
    model = draw.choice(
        [
            LLAMA,
            LLAMA.replace("llama", "gpt").replace(",kv_heads=2,ffn=24", ""),
            *(f"{models.__file__}:{name}" for name in ("chain", "square_dropout")),
        ]
    )
    size = 8 if model.startswith("lm:") else None
    if draw.random() < 0.5 or model.endswith("square_dropout"):  # which is one layer
        text = draw.choice([*IN_TURN] if size else [*IN_TURN[:-2]])
        return text, Job(model, 8 * microbatches, size, accumulate=microbatches, **fields)
    text = draw.choice([text for text in PIPELINES if (model.startswith("lm:") or "tp=" not in text)])
    if "rematerialize" in text:
        fields["checkpoint"] = "none"
    return f"{text},microbatches={microbatches},fold=on", Job(model, 8 * microbatches, size, **fields)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("number", range(300))
def test_random_plans_written_out_are_those_of_all_microbatches(number):
    text, job = random_case(number)
    target = preset_target(job, "8xh200")
    check_equal(expand(plan_of(job, text, target, compact=True)), plan_of(job, text, target))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("number", range(40))
def test_random_plans_take_as_long_as_those_of_all_microbatches(number):
    """By arithmetic, or written out where that does not suffice."""
    text, job = random_case(number)
    target = preset_target(job, "8xh200")
    steps_s = [forecast(plan_of(job, text, target, compact=few), target).timeline.step_s for few in (True, False)]
    assert steps_s[0] == pytest.approx(steps_s[1], rel=1e-9)


def test_it_is_written_out_in_part():
    """With two more groups, it is the plan of two rounds more; all of them are the same either way."""
    job = Job(LLAMA, 8 * 20, 8, "adamw", precision="mixed")
    compact_plan, whole = both("1f1b:stages=2,microbatches=20,fold=on", job, preset_target(job, "8xh200"))
    longer = expand(compact_plan, 2)
    assert (compact_plan.repeat.shown, compact_plan.repeat.times) == (8, 6)
    assert (longer.repeat.shown, longer.repeat.times, longer.microbatches) == (12, 4, 12)
    assert longer.semantics["shown"] == "12 of 20 microbatches are shown; those between do the same"
    check_equal(expand(longer), whole)
    assert expand(whole) is whole


def test_tasks_that_do_not_repeat_others_are_refused():
    job = Job(LLAMA, 8 * 12, 8, accumulate=12)
    plan = plan_of(job, "baseline", preset_target(job, "h200"), compact=True)
    with pytest.raises(UnusableFileError, match="tasks that it does not have repeat"):
        load(dump(replace(plan, repeat=replace(plan.repeat, tasks=("no task",)))))
    tasks = [replace(task, stream=1) if task.name == plan.repeat.tasks[3] else task for task in plan.tasks]
    with refuses(Code.PLAN, "the microbatches of the plan do not repeat themselves: .*; use fold=off"):
        expand(replace(plan, tasks=tuple(tasks)))
