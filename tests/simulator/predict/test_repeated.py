"""Steps of many microbatches from plans with few: the same time, memory and parts, and when a step is planned with all of them."""

from dataclasses import replace

import pytest

from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.engine.utilization import planned_mfu
from simulator.model.job import Job
from simulator.plan.editor.order import Order
from simulator.plan.json import dump, load
from simulator.plan.task import FORWARD
from simulator.predict.forecast import Forecast, answer, forecast, plan_of
from simulator.predict.repeated import NEARLY, repeated_group
from simulator.predict.target import Target, preset_target
from simulator.strategies import compact
from simulator.strategies.pipeline.grid_csv import schedule_of
from tests.support import models
from tests.support.applicable import core_groups
from tests.support.refusals import refuses
from traces.documents.timeline import Timeline
from traces.errors import Code

#: A decoder whose ops keep an H100 busy for longer than the host takes to issue them.
DECODER = "lm:form=llama,layers=4,d_model=2048,heads=16,kv_heads=4,ffn=5632,vocab=8192"
CHAIN = f"{models.__file__}:chain"
THOROUGH = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    """Plans of few tasks omit microbatches, too."""
    monkeypatch.setattr(compact, "MOST_TASKS", 0)


def both(text: str, job: Job, target: Target) -> tuple[Forecast, Forecast]:
    """The forecasts of the plans with few and with all microbatches."""
    return forecast(plan_of(job, text, target, compact=True), target), forecast(plan_of(job, text, target), target)


def check_same(shown: Forecast, whole: Forecast) -> None:
    """Everything that is said of a step is the same; an interval nearly, where several lanes are as long as the step."""
    assert shown.plan.repeat is not None, "the microbatches that are shown do not repeat themselves"
    assert len(shown.plan.tasks) < len(whole.plan.tasks)
    assert shown.timeline.step_s == pytest.approx(whole.timeline.step_s, rel=1e-9)
    assert shown.memory_bytes == whole.memory_bytes
    assert shown.peak_bytes == whole.peak_bytes
    assert shown.timeline.bubble_share == pytest.approx(whole.timeline.bubble_share, abs=1e-9)
    assert shown.timeline.exposed_transfer_s == pytest.approx(whole.timeline.exposed_transfer_s, rel=1e-9, abs=1e-12)
    for part, seconds in whole.parts.on_path.items():
        assert shown.parts.on_path[part] == pytest.approx(seconds, abs=1e-9 * whole.timeline.step_s)
    assert sum(shown.parts.on_path.values()) == pytest.approx(shown.timeline.step_s)
    assert shown.interval_s == pytest.approx(whole.interval_s, rel=0.02)
    mfus = [planned_mfu(each.plan, each.machine, each.timeline.step_s, each.float32) for each in (shown, whole)]
    assert mfus[0] == (mfus[1] and pytest.approx(mfus[1], rel=1e-9))


@THOROUGH
@pytest.mark.parametrize(
    "text",
    ["baseline", "pytorch", "fsdp:fold=on", "fsdp:fold=on,prefetch=0", "fsdp:fold=on,shard=2",
     "fsdp:fold=on,shard=1,prefetch=0,gradients=kept", "fsdp:fold=on,shard=1,prefetch=0,gradients=held",
     "data-parallel:fold=on,gradients=held", "fsdp:fold=on,shard=0", "fsdp:fold=on,tp=2", "data-parallel:fold=on",
     "data-parallel:fold=on,update=backward-fusion", "forward-fusion"],
)  # fmt: skip
def test_accumulated_microbatches_take_what_all_of_them_take(text):
    job = Job(DECODER, 8 * 19, 4096, "adamw", precision="mixed", accumulate=19)
    check_same(*both(text, job, preset_target(job, "8xh200")))


OTHER_PIPELINES = (
    "1f1b:stages=4", "1f1b:stages=2,replicas=2", "1f1b:stages=2,tp=2,replicas=2,shard=1", "1f1b:stages=2,update=backward-fusion",
    "interleaved-1f1b:stages=4,per_device=2", "zero-bubble:stages=2",
)  # fmt: skip


@pytest.mark.parametrize("microbatches", [20, pytest.param(31, marks=THOROUGH)])
@pytest.mark.parametrize("text", ["1f1b:stages=2", *(pytest.param(text, marks=THOROUGH) for text in OTHER_PIPELINES)])
def test_the_microbatches_of_a_pipeline_take_what_all_of_them_take(text, microbatches):
    job = Job(DECODER, 2 * microbatches, 4096, "adamw", precision="mixed")
    check_same(*both(f"{text},microbatches={microbatches},fold=on", job, preset_target(job, "8xh200")))


@THOROUGH
@pytest.mark.parametrize("text", ["1f1b:stages=4,microbatches=33", "1f1b:stages=2,replicas=2,microbatches=33"])
def test_images_on_four_gpus(text):
    """Inputs are large, and those of microbatches that are left out are held, too."""
    job = Job("resnet18", 4 * 66, 64)
    check_same(*both(f"{text},fold=on", job, preset_target(job, "p100x4")))


@THOROUGH
def test_a_cpu_and_a_graph():
    machine = core_groups(2)
    job = Job(CHAIN, 40, accumulate=20)
    for text in ("baseline", "data-parallel:fold=on"):
        check_same(*both(text, job, Target.of(CostModel(machine))))
    job = Job(DECODER, 19, 4096, "adamw", precision="mixed", accumulate=19)
    check_same(*both("baseline", job, preset_target(job, "h100", mode="graph")))


def test_a_plan_says_what_it_shows_and_does_not_run():
    machine = core_groups(2)
    job = Job(CHAIN, 40, accumulate=20)
    plan = plan_of(job, "baseline", Target.of(CostModel(machine)), compact=True)
    assert plan.semantics["shown"] == "4 of 20 microbatches are shown; those between do the same"
    assert plan.microbatches == 4
    assert load(dump(plan)) == plan
    with refuses(Code.PLAN, "4 of 20 microbatches are shown.*plan it with fold=off"):
        CpuBackend(machine, cores=[0, 0]).load(plan, job_tensors(job, job.build(), job.graph()))
    for write in (Order.of, schedule_of):
        with refuses(Code.PLAN, "4 of 20 microbatches"):
            write(plan)
    whole = plan_of(job, "baseline", Target.of(CostModel(machine)))
    assert (whole.repeat, whole.microbatches) == (None, 20)


@pytest.mark.parametrize(
    ("text", "microbatches"),
    [("gpipe:stages=2,fold=on", 20), ("1f1b:stages=2,fold=off", 20), ("1f1b:stages=2,fold=on", 6), ("model-parallel", 20)],
)
def test_steps_that_grow_with_each_microbatch_or_are_short_have_all_of_them(text, microbatches):
    """GPipe holds the activations of all microbatches."""
    machine = core_groups(2)
    job = Job(CHAIN, 2 * microbatches, accumulate=microbatches)
    assert plan_of(job, text, Target.of(CostModel(machine)), compact=True).microbatches == microbatches


def test_a_step_below_the_limit_has_all_its_tasks(monkeypatch):
    monkeypatch.setattr(compact, "MOST_TASKS", 20_000)
    machine = core_groups(2)
    job = Job(CHAIN, 40, accumulate=20)
    assert answer(job, "baseline", Target.of(CostModel(machine))).plan.repeat is None


def test_groups_are_nearly_alike_unless_a_device_falls_behind():
    """The last device begins each microbatch later after the one before, by a share of what a group takes."""
    job = Job(DECODER, 40, 4096, "adamw", precision="mixed")
    target = preset_target(job, "8xh200")
    machine, model = target.machine, target.costs
    plan = plan_of(job, "1f1b:stages=2,microbatches=20,fold=on", target, compact=True)
    timeline = simulate(plan, machine, model.resolve(plan), pair_multipliers=model.pair_multipliers)
    group = repeated_group(plan, timeline, [])

    def falls_behind(share: float) -> Timeline:
        late_s = {span: share * group.seconds * span.microbatch if span.device == plan.devices[-1] else 0.0 for span in timeline.spans}
        return replace(timeline, spans=tuple(replace(span, start_s=span.start_s + s, end_s=span.end_s + s) for span, s in late_s.items()))

    assert repeated_group(plan, falls_behind(NEARLY / 2), []).seconds == group.seconds
    assert repeated_group(plan, falls_behind(2 * NEARLY), []) is None
    without = tuple(span for span in timeline.spans if span.device != plan.devices[0] or span.phase != FORWARD)
    assert repeated_group(plan, replace(timeline, spans=without), []) is None


@THOROUGH
def test_a_step_that_does_not_get_into_its_pace_is_written_out():
    """The host issues the tasks of a microbatch in nearly the time that they take: stage after stage, GPUs catch up with it for long."""
    job = Job("lm:form=llama,layers=2,d_model=64,heads=4,kv_heads=2,ffn=96,vocab=100", 24, 16, precision="mixed")
    target = preset_target(job, "8xh200")
    text = "1f1b:stages=4,fold=on,microbatches=24"
    plan = plan_of(job, text, target, compact=True)
    assert plan.repeat.shown < 24
    predicted = forecast(plan, target)
    assert predicted.plan.repeat is None
    assert predicted.timeline.step_s == pytest.approx(forecast(plan_of(job, text, target), target).timeline.step_s, rel=1e-9)
