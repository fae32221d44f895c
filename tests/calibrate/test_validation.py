"""Validations, real and simulated: which error counts when keys are measured in the rounds or costs come from another time."""

import statistics
from dataclasses import replace
from statistics import median

import pytest

from calibrate import rounds
from calibrate.cpu import contention
from calibrate.cpu.testbed import CpuTestbed
from calibrate.validation import validate
from executors.cpu.cores import available_cores
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.fake_gpu import FakeGpu, FakeGpus, Times
from tests.support import mlp, models
from tests.support.gpu_testbeds import SMALL, TIMES, WORKSPACE_BYTES, few_repetitions, hard_gpu, measured_profile, open_testbed
from tests.support.jobs import MLP
from tests.support.page_samples import result, skipped, validation
from tests.support.refusals import refuses
from traces.documents.profile import Profile
from traces.documents.shipped import shipped_validations
from traces.errors import Code


@pytest.mark.thorough
def test_drift_corrects_only_costs_from_another_time(monkeypatch):
    for module, name in ((rounds, "ROUNDS"), (contention, "ROUNDS"), (contention, "FEWEST")):
        monkeypatch.setattr(module, name, 2)
    job, profile = Job(MLP, 4), Profile(identity=CpuTestbed().identity)
    interleaved = validate(job, ["forward-fusion"], {}, profile, CpuTestbed(), timelines=False).validation
    assert interleaved.calibration == "interleaved"
    assert [row.strategy for row in interleaved.ran] == ["baseline", "forward-fusion"]
    assert all(row.scored_error == row.error == row.error_drift_corrected for row in interleaved.ran)
    base, fused = interleaved.ran
    assert base.against_pytorch == pytest.approx(interleaved.reference_step_s / base.measured_step_s)
    assert (base.predicted_speedup_interval, base.measured_speedup_interval) == (None, None)
    for value, (low, high) in (
        (fused.predicted_speedup, fused.predicted_speedup_interval),
        (fused.measured_speedup, fused.measured_speedup_interval),
        (fused.against_pytorch, fused.against_pytorch_interval),
        (base.against_pytorch, base.against_pytorch_interval),
    ):
        assert low <= value <= high
    low, high = fused.measured_speedup_interval
    assert min(high / fused.measured_speedup, fused.measured_speedup / low) >= 1 + interleaved.aa_spread - 1e-9
    assert interleaved.reference_threads == len(available_cores())
    assert interleaved.reference_step_s == median(interleaved.reference_runs_s)
    assert interleaved.fastest in interleaved.ran
    assert interleaved.fastest.against_pytorch is not None
    assert profile.costs, "the keys that the rounds measured are in the profile"
    profile.anchor_s = 1.0  # as if the machine were far slower when the profile was measured
    again = validate(job, ["forward-fusion"], {}, profile, CpuTestbed(), calibrate=False, timelines=False).validation
    assert again.calibration == "profile"
    assert 0 < again.anchor_drift < 0.5
    for row in again.ran:
        assert row.scored_error == row.error_drift_corrected == pytest.approx((1 + row.error) * again.anchor_drift - 1)


@pytest.mark.thorough
def test_a_loop_that_cannot_be_predicted_is_a_skipped_row_but_is_timed(monkeypatch):
    """The other rows are validated as ever."""
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    job, profile = Job("rnn_bitstream", 2, 8), Profile(identity=CpuTestbed().identity)
    document = validate(job, [], {}, profile, CpuTestbed(), timelines=False).validation
    assert document.pytorch.status.startswith("skipped: plain PyTorch is not predicted for recurrent layers")
    assert [row.strategy for row in document.ran] == ["baseline"]
    assert document.reference_step_s > 0


@pytest.mark.parametrize(("calibration", "scored"), [("interleaved", 0.1), ("profile", 0.2), (None, 0.2)])
def test_the_error_that_counts(calibration, scored):
    document = validation(result(error=0.1, error_drift_corrected=0.2, calibration=calibration), skipped())
    assert (document.calibration, document.scored_errors, document.median_abs_error) == (calibration, (scored,), scored)
    assert document.worst.scored_error == scored
    assert [row.scored_error for row in document.results if not row.ok] == [None]


def test_the_committed_validations_are_interleaved_so_that_their_raw_error_counts():
    """On CPUs; the keys of a GPU, whose clocks are steady, are measured before."""
    documents = [document for document in shipped_validations() if document.device["kind"] == "cpu"]
    assert {document.calibration for document in documents} == {"interleaved"}
    assert all(row.scored_error == row.error for document in documents for row in document.ran)


def test_plain_pytorch_in_one_graph_is_timed_beside_the_schedules():
    """Its replays wait for no host. Rates that change cannot be captured once for all, and the other rows are validated as ever."""
    profile = measured_profile()
    with few_repetitions(), hard_gpu() as gpu:
        testbed = open_testbed(gpu, "graph")
        document = validate(Job(MLP, 4, optimizer="adam"), [], {}, profile, testbed, timelines=False, rounds=2).validation
        job = Job(MLP, 4, lr_schedule="0:0.1,1:0.01")
        changing = validate(job, [], {}, profile, open_testbed(gpu), timelines=False, rounds=1).validation
    (row,) = document.parallel
    assert (row.strategy, row.status) == ("pytorch-graph", "ok")
    assert row.error == pytest.approx(0.0, abs=0.03)
    assert row.against_pytorch > 2
    (row,) = changing.parallel
    assert row.status == "skipped: one CUDA graph of plain PyTorch cannot train with learning rates that change"
    assert [row.status for row in changing.results] == ["ok"]


def test_plain_pytorch_in_one_graph_makes_room_for_the_schedules():
    """Of 3 MiB the baseline and a step of plain PyTorch take one each, with their workspaces; the driver takes 0.4."""
    profile = measured_profile()
    with few_repetitions(), hard_gpu() as gpu:
        testbed = open_testbed(gpu)
        testbed.memory_limit_bytes = 3 << 20
        tight = validate(Job(MLP, 4), [], {}, profile, testbed, timelines=False, rounds=1).validation
    assert tight.parallel[0].status.startswith("skipped: comparing 1 strategy at once does not fit: needs 3.41 MiB")
    assert [row.status for row in tight.results] == ["ok"]


# Calibrate, predict, run and compare on a simulated GPU, whose kernel times only measuring can reveal.


measured = pytest.fixture(scope="module")(measured_profile)
STRATEGIES = [
    "baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl", "turbodl:update=callback",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_predicted_is_measured(mode, measured):
    job = Job(MLP, 4, optimizer="adam")
    with hard_gpu() as gpu:
        outcome = validate(job, STRATEGIES, {}, measured, open_testbed(gpu, mode))
    validation = outcome.validation
    assert outcome.same_numbers
    assert (validation.mode, validation.aa_spread < 0.01) == (mode, True)
    assert [row.status for row in validation.results] == ["ok"] * len(STRATEGIES)
    assert {row.shares.measured for row in validation.results} == {1.0}
    errors = {row.strategy + str(row.options): row.error for row in validation.results}
    assert all(abs(error) < 0.02 for error in errors.values()), errors
    plain = validation.pytorch
    assert (plain.shares.measured, plain.measured_step_s) == (1.0, validation.reference_step_s)
    assert abs(plain.error) < 0.02, "plain PyTorch, which is eager in both modes"


PARALLEL = [
    "data-parallel", "data-parallel:bucket=0", "data-parallel:algorithm=tree", "owt", "model-parallel", "gpipe", "1f1b", "zero-bubble",
    "pipedream", "stale-pipeline",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("limit", ["host", "gpus"])
@pytest.mark.parametrize("count", [2, 4])
def test_predicted_is_measured_on_several_gpus(count, limit):
    """One thread issues to all of them. The GPUs are the limit if the memory and what joins them is slow, and the thread is fast.

    The host's time for views of what copies read is not predicted.
    """
    slow = {"least_s": 3e-6, "bytes_per_s": 1e8, "peer_bytes_per_s": 2e7}
    fast = {"op_s": 1e-6, "view_s": 0.1e-6, "record_s": 0.2e-6, "wait_s": 0.2e-6, "switch_s": 0.2e-6}
    times = replace(TIMES, **slow, **fast) if limit == "gpus" else TIMES
    with FakeGpus(count, times, SMALL) as gpus, few_repetitions():
        testbed = open_testbed(gpus[0], others=gpus[1:])
        profile = Profile(identity=testbed.identity)
        outcome = validate(Job(MLP, 8, optimizer="adam"), PARALLEL[: None if count == 2 else 4], {}, profile, testbed)
    assert outcome.same_numbers
    for label, row in zip(outcome.forecasts, outcome.validation.results, strict=True):
        assert (row.status, row.shares.measured) == ("ok", 1.0)
        copies = [task for task in outcome.forecasts[label].plan.tasks if task.body.is_copy]
        views_s = times.view_s * sum(len(operand.views) for task in copies for operand in (*task.reads, *task.mutates))
        assert -0.02 - views_s / row.measured_step_s < row.error < 0.02, label
        if limit == "gpus" and count == 2:
            assert abs(row.error) < 1e-4, label
    assert all(len(row.measured_peak_bytes_by_device) == count for row in outcome.validation.ran[1:])
    for comparison in outcome.comparisons.values():
        assert all(span.end_s >= span.start_s for span in comparison.measured.spans)


@pytest.mark.thorough
def test_a_graph_over_several_gpus_is_predicted():
    """What copies a graph's losses is not predicted, and little of these steps."""
    times = replace(TIMES, cross_gap_s=0.0, least_s=3e-6, bytes_per_s=1e9, peer_bytes_per_s=2e8)
    strategies = ["data-parallel:overlap=off", "1f1b", "model-parallel"]
    with FakeGpus(2, times, SMALL) as gpus, few_repetitions():
        testbed = open_testbed(gpus[0], "graph", others=gpus[1:])
        outcome = validate(Job("lenet5", 8), strategies, {}, Profile(identity=testbed.identity), testbed)
    assert (outcome.same_numbers, outcome.validation.mode) == (True, "graph")
    assert [(row.status, row.shares.measured) for row in outcome.validation.results] == [("ok", 1.0)] * 4
    errors = {row.strategy: row.error for row in outcome.validation.results}
    assert all(abs(error) < 0.005 for error in errors.values()), errors


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "periods", "gap_s"), [("eager", 1, 0.0), ("graph", 4, 1e-6)])
def test_task_times_are_those_of_the_kernels(mode, periods, gap_s, measured):
    """Task times are merged from instrumented runs with events on some tasks. Kernels take 2 us; in a graph with the gap before.

    An event of a graph is a node too, and its gap shows in the next task.
    """
    job = Job(MLP, 4)
    with hard_gpu() as gpu:
        outcome = validate(job, ["baseline"], {}, measured, open_testbed(gpu, mode))
    comparison = outcome.comparisons["baseline"]
    tasks = [task.name for task in outcome.forecasts["baseline"].plan.tasks]
    assert [span.task for span in comparison.measured.window()] == [span.task for span in comparison.predicted.window()] == tasks * periods
    assert comparison.measured.mode == mode
    single = [span.end_s - span.start_s for span in comparison.measured.window() if span.task != "update"]
    assert statistics.median(single) == pytest.approx(2e-6 + gap_s, abs=2e-8)
    assert max(single) < 2e-6 + 2.1 * gap_s + 2e-8


@pytest.mark.thorough
def test_the_gap_between_launched_kernels_is_not_that_between_nodes():
    """Kernels take 20 us, so the GPU is the limit; nodes of a graph are 1 us apart, launched kernels 3 us."""
    gap_s = 3e-6
    job = Job(MLP, 4)
    with FakeGpu(Times(kernel_s=lambda op, size: 20e-6, op_s=2e-6, launch_gap_s=gap_s), SMALL) as gpu:
        testbed = open_testbed(gpu)
        profile = Profile(identity=testbed.identity)
        outcome = validate(job, ["turbodl"], {}, profile, testbed)
    assert profile.dispatch.launch_gap_s == pytest.approx(gap_s - 1e-6, abs=1e-9)
    assert [row.error for row in outcome.validation.results] == pytest.approx([0.0, 0.0], abs=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "figures"), [("eager", {"switch_s": 6e-6}), ("graph", {"graph_node_s": 20e-6, "graph_branch_s": 2e-3})])
def test_lanes_and_nodes_take_time_of_the_host(mode, figures, measured):
    """The host is the limit, so a profile without the figures predicts too short a step. What copies a graph's losses is not predicted."""
    profile = measured.model_copy(deep=True)
    profile.dispatch = profile.dispatch.model_copy(update=figures)
    with hard_gpu(replace(TIMES, **figures)) as gpu:
        outcome = validate(Job("lenet5", 4), ["turbodl"], {}, profile, open_testbed(gpu, mode), timelines=False)
    row = outcome.validation.results[-1]
    assert abs(row.error) < 0.02, row.error
    profile.dispatch = profile.dispatch.model_copy(update=dict.fromkeys(figures))
    machine = gpu_machine(profile)
    without = forecast(outcome.forecasts["turbodl"].plan, Target.of(CostModel(machine, profile), mode))
    assert without.timeline.step_s < 0.9 * row.measured_step_s


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_peaks_include_the_workspaces_of_matrix_products(mode, measured):
    """Each stream on which a product has run keeps a workspace; the model itself takes a few kilobytes."""
    job = Job(MLP, 4)
    with hard_gpu() as gpu:
        rows = validate(job, ["turbodl"], {}, measured, open_testbed(gpu, mode), timelines=False).validation.results
    for row, lanes in zip(rows, (1, 2), strict=True):
        assert lanes <= row.predicted_peak_bytes / WORKSPACE_BYTES < lanes + 0.1, row.strategy
        assert row.measured_peak_bytes == pytest.approx(row.predicted_peak_bytes, rel=0.02), row.strategy


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "precision", "mode", "bound"),
    [("batch_norm", "bf16", "graph", 0.02), ("attention", "fp32", "eager", 0.02), ("attention", "amp", "graph", 0.04)],
)
def test_norms_and_attention_are_predicted(model, precision, mode, bound, measured):
    """The memory is so slow that the GPU is the limit. Kernels take less time on what the cache holds.

    Casts of autocast are predicted less exactly, why is not known.
    """
    times = replace(TIMES, least_s=3e-6, op_s=1e-6, warm_factor=0.5, bytes_per_s=1e8)
    with hard_gpu(times) as gpu:
        job, testbed = Job(f"{models.__file__}:{model}", 4, precision=precision), open_testbed(gpu, mode)
        outcome = validate(job, ["turbodl", "forward-fusion"], {}, measured.model_copy(deep=True), testbed, timelines=False)
    assert outcome.same_numbers
    errors = {row.strategy: row.error for row in outcome.validation.results}
    assert all(abs(error) < bound for error in errors.values()), errors


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_gradient_scaler_decides_on_the_gpu_with_a_fused_optimizer(mode, measured):
    job = Job(f"{mlp.__file__}:steep", 4, precision="amp-fp16", optimizer="adam", form="fused")
    with hard_gpu() as gpu:
        outcome = validate(job, ["turbodl", "forward-fusion"], {}, measured.model_copy(deep=True), open_testbed(gpu, mode), timelines=False)
    assert outcome.same_numbers
    assert [row.status for row in outcome.validation.results] == ["ok"] * 3


@pytest.mark.thorough
def test_a_gradient_scaler_needs_a_fused_optimizer_on_a_gpu(measured):
    with (
        hard_gpu() as gpu,
        refuses(Code.REQUEST, r"foreach form of momentum decides on the host.*use a fused one"),
    ):
        validate(Job("lenet5", 4, precision="amp-fp16"), [], {}, measured, open_testbed(gpu, "eager"))


def test_the_workspace_is_measured(measured):
    assert measured.workspace_bytes == WORKSPACE_BYTES
