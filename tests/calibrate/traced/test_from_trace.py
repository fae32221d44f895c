"""A trace of training steps, synthetic or recorded, becomes a profile with its costs; ops of a plan are aligned with recorded ones."""

import statistics
from functools import cache
from pathlib import Path

import pytest

from calibrate.traced.from_trace import Traced, profile_from_trace
from calibrate.traced.recorded_ops import common_name
from calibrate.traced.steps import Token, aligned
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.keys import cost_key
from simulator.predict.answers import answers
from simulator.predict.target import Target
from tests.support.plan_traces import PAUSE_US, Recorder, kernel_us, v100_plan
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from traces.documents.comparison import PYTORCH
from traces.errors import Code

A, B, C = (Token(name, ((2, 3),), "forward") for name in "abc")


def test_ops_of_either_side_may_be_missing():
    assert aligned([A, B, C], [A, A, C]) == [(0, 0), (2, 2)]
    assert aligned([B, C], [A, A, B, A, C, A]) == [(0, 2), (1, 4)]
    assert aligned([A], []) == aligned([], [A]) == []


def test_shapes_of_the_plan_are_among_the_recorded_ones():
    recorded = [A._replace(shapes=((2, 4),)), A._replace(shapes=((2, 3), (7,)))]
    assert aligned([A], recorded) == [(0, 1)]
    assert aligned([A, A], recorded, with_shapes=False) == [(0, 0), (1, 1)]


def test_an_op_on_scalars_is_none_on_tensors():
    assert aligned([A._replace(shapes=())], [A]) == []


def test_the_phase_decides_between_two_ops_that_are_alike():
    assert aligned([A._replace(phase="backward")], [A, A._replace(phase="backward"), A]) == [(0, 1)]


def test_names_of_versions_and_libraries_are_one():
    assert {common_name(name) for name in ("aten.convolution.default", "aten::conv2d", "aten::cudnn_convolution")} == {"convolution"}
    assert common_name("aten::relu_") == common_name("aten.relu_.default") == "relu"
    assert common_name("aten::_batch_norm_impl_index") == common_name("aten.native_batch_norm.default")
    forward = (
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten::scaled_dot_product_attention",
        "aten::_flash_attention_forward",
    )
    assert {common_name(name) for name in forward} == {"attention"}
    assert common_name("aten::_scaled_dot_product_efficient_attention_backward") == "attention_backward"


JOB = Job("lenet5", 4, optimizer="sgd")


@pytest.fixture
def traced(tmp_path):
    """Takes a recorder, and returns what becomes of its trace."""

    def become(recorder):
        return profile_from_trace(recorder.trace.save(tmp_path / "trace.json.gz"), recorder.job)

    return become


def microseconds(traced, task):
    machine = gpu_machine(traced.profile)
    return traced.profile.costs[cost_key(task, machine)].warm.median_s * 1e6


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("form", ["for", "foreach"])
def test_every_key_gets_the_time_of_its_kernels(traced, old, form):
    job = Job("lenet5", 4, optimizer="sgd", form=form)
    result = traced(Recorder(job, old=old).steps(4))
    assert (result.share, result.steps, dict(result.missing), result.others) == (1.0, 4, {}, ())
    for task in v100_plan(job).tasks:
        assert microseconds(result, task) == pytest.approx(kernel_us(task)), task.name


@pytest.mark.parametrize("old", [False, True])
def test_a_backward_op_is_divided_where_the_weights_gradient_begins(traced, old):
    result = traced(Recorder(JOB, old=old).steps(2))
    whole = next(task for task in v100_plan(JOB).tasks if task.layer == "features.3" and task.phase == "backward")
    parts = [task for task in v100_plan(JOB, "baseline").tasks if task.layer == "features.3" and task.phase == "backward"]
    assert [task.name.rpartition(".")[2] for task in parts] == ["dX", "dW"]
    assert [microseconds(result, part) for part in parts] == pytest.approx([0.25 * kernel_us(whole), 0.75 * kernel_us(whole)])


def test_a_backward_op_that_shows_no_border_is_divided_by_flops_and_counts_as_uncertain(traced):
    recorder = Recorder(JOB).steps(2)
    recorder.trace.events = [event for event in recorder.trace.events if event["name"] != "aten::empty"]
    result = traced(recorder)
    part = next(task for task in v100_plan(JOB, "baseline").tasks if task.layer == "features.3" and task.phase == "backward")
    cost = result.profile.costs[cost_key(part, gpu_machine(result.profile))]
    assert cost.warm.spread > 0.3
    assert all(cost.warm.spread < 0.01 for key, cost in result.profile.costs.items() if "convolution_backward" not in key)


def test_a_key_gets_the_median_of_the_steps(traced):
    recorder = Recorder(JOB)
    for factor in (1.0, 10.0, 2.0):
        recorder.kernel_us = lambda task, factor=factor: factor * kernel_us(task)
        recorder.steps(1)
    result = traced(recorder)
    first = v100_plan(JOB).tasks[0]
    assert (result.steps, microseconds(result, first)) == (3, pytest.approx(2 * kernel_us(first)))


def test_the_host_gets_the_time_of_the_call_and_the_loop_the_rest(traced):
    result = traced(Recorder(JOB).steps(5))
    plan = v100_plan(JOB)
    ops = [task for task in plan.tasks if isinstance(task.body, OpCall)]
    costs = CostModel(gpu_machine(result.profile), result.profile).for_pytorch.resolve(plan)
    assert statistics.median(cost.issue_s for cost in result.profile.costs.values()) == pytest.approx(30e-6, rel=0.1)
    # Of the 50 us from one op's start to the next one's, the executor's call takes 30.
    assert sum(cost.issue_s for cost in costs) == pytest.approx(len(ops) * 50e-6, rel=0.1)
    assert result.outside_s == pytest.approx((PAUSE_US + 20) * 1e-6, rel=0.1)


def test_one_step_alone_is_predicted_as_recorded(traced):
    result = traced(Recorder(JOB).steps(4))
    assert result.check.step_s == pytest.approx(result.step_s, rel=0.05)
    assert result.check.held_out_s == pytest.approx(result.step_s, rel=0.3)


def test_what_the_job_lacks_is_listed(traced):
    recorder = Recorder(JOB)
    for _ in range(3):
        recorder.extra("aten::histc", 30.0, [[4, 10]], count=2)
        recorder.steps(1)
    result = traced(recorder)
    assert [(name, count) for name, count, _ in result.others] == [("histc", 1)]
    assert 0.9 < result.share < 1.0


def test_a_task_without_a_recorded_op_is_listed_and_priced_by_the_table(traced):
    """No other op of its class was recorded."""
    recorder = Recorder(JOB).steps(3)
    loss = [event for event in recorder.trace.events if event["name"] == "aten::_log_softmax"]
    recorder.trace.events = [event for event in recorder.trace.events if event not in loss]
    result = traced(recorder)
    assert list(result.missing.values()) == ["loss/_log_softmax"]
    plan = v100_plan(JOB)
    costs = CostModel(gpu_machine(result.profile), result.profile).resolve(plan)
    assert {cost.source for task, cost in zip(plan.tasks, costs, strict=True) if task.name == "loss/_log_softmax"} == {"guessed"}


def test_the_machine_has_the_recorded_properties_and_the_rest_of_a_similar_preset(traced):
    recorder = Recorder(JOB).steps(2)
    recorder.trace.gpus = [{**recorder.trace.gpus[0], "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34_000_000_000}]
    result = traced(recorder)
    machine = gpu_machine(result.profile)
    assert "peaks, bandwidth and links are those of a similar GPU" in result.profile.notes
    assert (machine.devices[0].sms, machine.memories[0].size_bytes) == (80, 34_000_000_000)
    assert machine.devices[0].peak_flops["fp32"] == 15.7e12


@pytest.mark.parametrize("form", ["for", "foreach"])
def test_nothing_needs_to_be_annotated(traced, form):
    job = Job("lenet5", 4, optimizer="sgd", form=form)
    recorder = Recorder(job).steps(4)
    recorder.trace.events = [event for event in recorder.trace.events if event["cat"] != "user_annotation"]
    kernels = [event for event in recorder.trace.events if event["cat"] == "kernel"]
    for number, kernel in enumerate(kernels):
        kernel["name"] = f"kernel {number % (len(kernels) // 4)}"  # steps are recognized by the kernels that repeat
    result = traced(recorder)
    assert (result.share, result.steps) == (1.0, 4)
    tasks = v100_plan(job).tasks
    assert [microseconds(result, task) for task in tasks] == pytest.approx([kernel_us(task) for task in tasks])


def test_geometry_is_that_of_the_longest_kernel(traced):
    result = traced(Recorder(JOB).steps(2))
    cost = result.profile.costs[cost_key(v100_plan(JOB).tasks[0], gpu_machine(result.profile))]
    assert (cost.grid, cost.blocks_per_sm, cost.geometry_from) == (6, 16, "profiler")


# Public traces of a V100 and an H100: matched shares, the recorded step predicted, layers held out, other batches.


KINETO = shared_folder("kineto")
needs_recordings = pytest.mark.skipif(KINETO is None, reason="needs the shared measurements (kineto)")

RESNET = ("v100_resnet50_bs32_1gpu_oldschema.json.gz", Job("resnet50", 32, optimizer="momentum", form="for"))
VGG = ("h100_vgg13_bs512_adam_one_step.json.gz", Job("vgg13", 512, optimizer="adam", precision="tf32"))
#: Seconds from the device synchronization before VGG-13's step to the one behind it.
VGG_STEP_S = 0.3481


@cache
def recorded(name: str, job: Job) -> Traced:
    return profile_from_trace(Path(KINETO) / name, job)


def forecasts(result: Traced, job: Job, strategies: list[str]) -> dict:
    machine = gpu_machine(result.profile)
    return answers(job, strategies, Target.of(CostModel(machine, result.profile, job.precision))).forecasts


@pytest.mark.thorough
@needs_recordings
@pytest.mark.parametrize(("name", "job", "steps"), [(*RESNET, 6), (*VGG, 1)])
def test_nearly_all_kernel_time_belongs_to_the_job(name, job, steps):
    result = recorded(name, job)
    assert result.share >= 0.95
    assert (result.steps, dict(result.missing)) == (steps, {})


@pytest.mark.thorough
@needs_recordings
@pytest.mark.parametrize(("name", "job"), [RESNET, VGG])
def test_the_recorded_step_is_predicted(name, job):
    result = recorded(name, job)
    assert result.check.step_s == pytest.approx(result.step_s, rel=0.05)


@needs_recordings
@pytest.mark.parametrize(("name", "job"), [RESNET, VGG])
def test_half_of_the_layers_are_priced_by_the_other_half(name, job):
    result = recorded(name, job)
    assert result.check.held_out_s == pytest.approx(result.step_s, rel=0.1)
    assert abs(result.check.held_out_kernels) < 0.3


@needs_recordings
def test_vgg13_takes_as_long_as_from_one_synchronization_to_the_next():
    result = forecasts(recorded(*VGG), VGG[1], ["baseline"])
    assert result["baseline"].timeline.step_s == pytest.approx(VGG_STEP_S, rel=0.02)
    assert result[PYTORCH].timeline.step_s == pytest.approx(VGG_STEP_S, rel=0.02)


@needs_recordings
def test_resnet50_without_its_data_loading_takes_as_long_as_its_host_or_its_kernels():
    result = recorded(*RESNET)
    plain = forecasts(result, RESNET[1], ["baseline"])[PYTORCH]
    kernels_s = sum(cost.cold_s for cost in plain.costs)
    assert kernels_s < plain.timeline.step_s < result.step_s < result.period_s
    assert result.period_s - result.outside_s == pytest.approx(plain.timeline.step_s, rel=0.05)


@pytest.mark.sampled(3)
@needs_recordings
@pytest.mark.parametrize("batch", [128, 256, 384])
def test_vgg13_at_another_batch_takes_nearly_proportional_time(batch):
    job = Job("vgg13", batch, optimizer="adam", precision="tf32")
    (baseline,) = [f for name, f in forecasts(recorded(*VGG), job, ["baseline"]).items() if name == "baseline"]
    proportional_s = VGG_STEP_S * batch / 512
    assert proportional_s * 0.95 < baseline.timeline.step_s < proportional_s * 1.15
    assert baseline.shares.fitted > 0.9
    low_s, high_s = baseline.interval_s
    assert low_s < proportional_s * 1.03, "a smaller batch takes a little longer per image"
    assert proportional_s < high_s


@needs_recordings
def test_every_strategy_of_one_gpu_is_predicted_with_measured_costs():
    result = forecasts(recorded(*RESNET), RESNET[1], ["baseline", "backward-fusion", "forward-fusion", "turbodl"])
    assert all(forecast.shares.guessed == 0 and forecast.shares.measured > 0.95 for forecast in result.values())


@pytest.mark.thorough
@needs_recordings
@pytest.mark.parametrize(
    ("name", "job", "words"),
    [
        (RESNET[0], Job("resnet101", 32, optimizer="momentum", form="for"), "of another model than resnet101"),
        (RESNET[0], Job("resnet50", 64, optimizer="momentum", form="for"), "another batch or image size"),
        (VGG[0], Job("vgg16", 512, optimizer="adam", precision="tf32"), "of another model than vgg16"),
        (VGG[0], Job("vgg13", 512, optimizer="adam"), "computes in TF32"),
        ("v100_cnn_1gpu.json.gz", Job("resnet50", 32), "recorded without shapes"),
        ("a100_dlrm_rank3of8.json.gz", Job("resnet50", 32), "of another model than resnet50"),
    ],
)
def test_other_jobs_are_refused(name, job, words):
    with refuses(Code.REQUEST, words):
        profile_from_trace(Path(KINETO) / name, job)
