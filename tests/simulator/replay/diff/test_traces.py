"""Two traces with known edits: every term has its part of the difference, and the terms add up."""

from dataclasses import replace
from math import fsum

import pytest

from simulator.predict.waterfall import COMMUNICATION, LAUNCHES
from simulator.replay.diff.diff import NOT_REPLAYED, difference
from simulator.replay.diff.run import KERNELS, ORDER, PYTHON, SYNCHRONIZATION, run_of_replay
from simulator.replay.diff.traces import compare_traces
from simulator.replay.nodes import GAP, short_name
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.edit import device_work, with_durations
from simulator.replay.whatif.replayed import replayed
from tests.support.kineto_traces import Trace
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from tests.support.training_traces import MAIN, TrainingJob
from traces.errors import Code
from traces.formats.recording import is_loading

JOB = TrainingJob()
SLOW_KERNEL = {"backward": (("wgrad_a", 100.0), ("wgrad_b", 190.0), ("wgrad_c", 300.0))}
OTHER_ORDER = {"backward": (("wgrad_a", 100.0), ("wgrad_c", 300.0), ("wgrad_b", 150.0))}


def compared(tmp_path, job, other):
    return compare_traces(job.save(tmp_path / "before.json"), other.save(tmp_path / "after.json"))


def terms(diff):
    """The terms in microseconds, and whether they add up to the difference."""
    assert fsum(term.seconds for term in diff.terms) == pytest.approx(diff.difference_s, abs=1e-15)
    assert diff.difference_s == diff.b_step_s - diff.a_step_s
    return {term.part: term.seconds * 1e6 for term in diff.terms}


@pytest.mark.parametrize(
    ("change", "term"),
    [
        (SLOW_KERNEL, KERNELS), ({"extra": 90.0}, KERNELS), ({"loader": 260.0}, PYTHON),
        ({"launch": 45.0, "forward": 30.0}, None), (OTHER_ORDER, ORDER), ({"side_stream": MAIN}, ORDER),
        ({"item_sync": True}, SYNCHRONIZATION),
    ],
    ids=["a slower kernel", "one more kernel", "slower data loading", "two changes", "other order", "other stream", "one more sync"],
)  # fmt: skip
def test_an_edit_is_attributed_to_its_term(tmp_path, change, term):
    diff = compared(tmp_path, JOB, replace(JOB, **change)).diff
    parts = terms(diff)
    assert abs(diff.difference_s) > 5e-6
    assert abs(parts.get(NOT_REPLAYED, 0.0)) <= 0.05 * abs(diff.difference_s * 1e6)
    if term is not None:
        assert parts[term] == pytest.approx(diff.difference_s * 1e6, rel=0.05)
    back = terms(compared(tmp_path, replace(JOB, **change), JOB).diff)
    assert {part: -seconds for part, seconds in back.items()} == pytest.approx(parts, abs=1e-6)


def test_two_edits_have_a_term_each(tmp_path):
    slow_kernel = compared(tmp_path, JOB, replace(JOB, **SLOW_KERNEL)).diff.difference_s * 1e6
    slow_loader = compared(tmp_path, JOB, replace(JOB, loader=260.0)).diff.difference_s * 1e6
    parts = terms(compared(tmp_path, JOB, replace(JOB, loader=260.0, **SLOW_KERNEL)).diff)
    assert parts[KERNELS] == pytest.approx(slow_kernel, rel=0.05)
    assert parts[PYTHON] == pytest.approx(slow_loader, rel=0.05)
    assert (slow_kernel, slow_loader) == pytest.approx((40.0, 160.0), abs=1e-6)


def test_slow_launches_are_told_from_slow_python(tmp_path):
    """With kernels of 10 us, the device waits for every launch."""
    short = replace(JOB, forward=10.0, backward=(("wgrad_a", 10.0), ("wgrad_b", 10.0), ("wgrad_c", 10.0)), side=10.0, update=10.0)
    launches = compared(tmp_path, short, replace(short, launch=9.0)).diff
    python = compared(tmp_path, short, replace(short, python=24.0)).diff
    assert terms(launches)[LAUNCHES] == pytest.approx(launches.difference_s * 1e6, rel=0.05)
    assert terms(python)[PYTHON] == pytest.approx(python.difference_s * 1e6, rel=0.05)


def test_the_kernels_that_contribute_are_named(tmp_path):
    diff = compared(tmp_path, JOB, replace(JOB, **SLOW_KERNEL, extra=30.0)).diff
    kernels = next(term for term in diff.terms if term.part == KERNELS)
    assert {row.label: round(row.seconds * 1e6, 3) for row in kernels.contributions} == {
        "wgrad_b": 40.0,
        "check_finite (only in B)": 30.0,
    }
    assert [(round(row.a_s * 1e6), round(row.b_s * 1e6)) for row in kernels.contributions] == [(150, 190), (0, 30)]


def test_a_kernel_in_place_of_another_is_compared_with_it(tmp_path):
    other = replace(JOB, backward=(("wgrad_a", 100.0), ("wgrad_b", 150.0), ("dgrad_fast", 250.0)))
    diff = compared(tmp_path, JOB, other).diff
    (kernels,) = (term for term in diff.terms if term.part == KERNELS)
    assert [row.label for row in kernels.contributions] == ["wgrad_c as dgrad_fast"]
    assert kernels.seconds == pytest.approx(diff.difference_s, rel=0.05)
    assert diff.notes == ("4 kernels of A were compared with kernels of another name, but of one kind, in their place in B",)


def precision(half: bool, layers: int = 6) -> Trace:
    """A trace of steps of forward and backward: in half precision the products have other kernels, and casts of weights before them."""
    product = ("sm80_xmma_gemm_f16f16", 10.0) if half else ("ampere_sgemm_128x64", 25.0)
    cast = [("aten::linear aten::to aten::_to_copy aten::copy_", ("unrolled_elementwise_kernel", 4.0))] if half else []
    layer = [*cast, ("aten::linear aten::addmm", product), ("aten::native_layer_norm", ("vectorized_layer_norm_kernel", 4.0))]
    trace = Trace()
    for step in range(3):
        at = free = 1000.0 * step
        for ops, (name, length) in [*layer * layers, *[("AddmmBackward0 aten::mm", product)] * 2 * layers]:
            for depth, op in enumerate(ops.split()):
                trace.op(op, at + 0.1 * depth, 4 - 0.2 * depth)
            start = max(free, at + 8)
            trace.kernel(name, at + 1, start, length, call=2)
            at, free = at + 5, start + length + 1
        trace.call("cudaDeviceSynchronize", at, free - at)
        trace.annotate(f"ProfilerStep#{step}", 1000.0 * step, 999)
    return trace


def test_one_script_in_two_precisions_is_compared_op_by_op(tmp_path):
    fp32, amp = (precision(half).save(tmp_path / f"{name}.json") for name, half in (("fp32", False), ("amp", True)))
    diff = compare_traces(fp32, amp).diff
    (kernels,) = (term for term in diff.terms if term.part == KERNELS)
    assert {row.label: round(row.seconds * 1e6) for row in kernels.contributions} == {
        "ampere_sgemm_128x64 as sm80_xmma_gemm_f16f16": -270,
        "unrolled_elementwise_kernel (only in B)": 20,  # the first of six hides behind a launch
    }
    assert diff.aligned_share > 0.9
    assert diff.notes == ("54 kernels of A were compared with kernels of another name, launched by the same op in B",)


def test_models_with_other_numbers_of_one_op_have_it_not_in_common(tmp_path):
    fp32, amp = precision(False).save(tmp_path / "fp32.json"), precision(True, layers=9).save(tmp_path / "amp.json")
    with refuses(Code.REQUEST, "of their device time in common; expected two runs of one model"):
        compare_traces(fp32, amp)


def test_a_trace_does_not_differ_from_itself(tmp_path):
    diff = compared(tmp_path, JOB, JOB).diff
    assert (diff.difference_s, diff.aligned_share, diff.terms) == (0.0, pytest.approx(1.0), ())


def test_traces_of_different_lengths_are_compared_over_the_steps_that_both_have(tmp_path):
    diff = compare_traces(JOB.save(tmp_path / "a.json", steps=6), replace(JOB, **SLOW_KERNEL).save(tmp_path / "b.json", steps=3)).diff
    assert diff.steps == 3
    assert terms(diff)[KERNELS] == pytest.approx(40.0, rel=0.05)


def test_traces_of_different_models_are_refused(tmp_path):
    with refuses(Code.REQUEST, r"before.json and after.json have only \d+\.\d % of their device time in common; expected two"):
        compared(tmp_path, JOB, replace(JOB, names="_of_another_model"))


def test_a_trace_without_steps_is_refused(tmp_path):
    trace = Trace()
    for number, name in enumerate(("f", "g", "h")):
        trace.kernel(name, 100.0 * number, 100.0 * number + 10, 50.0)
    with refuses(Code.REQUEST):
        compare_traces(JOB.save(tmp_path / "a.json"), trace.save(tmp_path / "b.json"))


def test_files_of_one_name_are_told_apart_by_their_folders_alone(tmp_path):
    places = [tmp_path / name / "trace.json" for name in ("before", "after")]
    for place in places:
        place.parent.mkdir()
    diff = compare_traces(*(JOB.save(place) for place in places)).diff
    assert (diff.a, diff.b) == ("before/trace.json", "after/trace.json")


def test_a_comparison_says_what_it_is_doing(tmp_path):
    heard = []
    compare_traces(JOB.save(tmp_path / "a.json"), JOB.save(tmp_path / "b.json"), heard.append)
    assert heard == ["reading a.json", "replaying", "reading b.json", "replaying", "comparing"]


# Differences of public recordings. A missing folder skips these tests.


FOLDER = shared_folder("kineto")
needs_recordings = pytest.mark.skipif(
    FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place"
)
RESNET, CNN = "v100_resnet50_bs32_1gpu_oldschema.json.gz", "v100_cnn_1gpu.json.gz"


def terms_of(diff):
    assert fsum(term.seconds for term in diff.terms) == pytest.approx(diff.difference_s, abs=1e-15)
    return {term.part: term.seconds for term in diff.terms}


def runs(replay, seconds):
    """The recording, with the times that its own replay gives, and as it would have been with other durations of some tasks."""
    pair = (replay, with_durations(replay, seconds))
    simulated = [replace(each, recorded=simulate_replay(each)) for each in pair]
    return [run_of_replay(each, name, len(each.steps)) for each, name in zip(simulated, ("beside", "inside"), strict=True)]


@pytest.mark.thorough
@needs_recordings
def test_resnet50_with_data_loading_in_the_process():
    """Recorded with its data loading beside the process. In the process, it would take 12 ms before the first launch of each step."""
    replay = replayed([FOLDER / RESNET]).replay
    tasks = replay.plan.tasks
    position = {task.name: index for index, task in enumerate(tasks)}
    launch_of = replay.rows.launch_of
    loading = {}
    for step in replay.steps[1:]:  # the first begins with a launch
        gaps = [task for task in tasks[: position[launch_of[step.first_task]]] if task.device == "host" and task.body.label == GAP]
        last = next(task for task in reversed(gaps) if is_loading(task.body.op))
        loading[last.name] = last.body.duration_s + 12e-3
    diff = difference(*runs(replay, loading), "traces", NOT_REPLAYED)
    parts = terms_of(diff)
    assert 9e-3 < diff.difference_s < 12.1e-3  # what the GPU still has to do when the loading begins hides some of it
    assert parts[PYTHON] == pytest.approx(diff.difference_s, rel=0.05)
    python = next(term for term in diff.terms if term.part == PYTHON)
    assert python.contributions[0].label == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert python.contributions[0].seconds == pytest.approx(diff.difference_s, rel=0.05)


@pytest.mark.thorough
@needs_recordings
def test_a_slower_kind_of_kernel_of_a_real_recording():
    """The GPU of this recording is never idle for its host, so that all of it counts."""
    replay = replayed([FOLDER / CNN]).replay
    of_name = {}
    for task in device_work(replay):
        if task.body.category == "kernel":
            of_name.setdefault(short_name(task.body.name), []).append(task)
    name, longest = max(of_name.items(), key=lambda item: sum(task.body.duration_s for task in item[1]))
    diff = difference(*runs(replay, {task.name: 1.3 * task.body.duration_s for task in longest}), "traces", NOT_REPLAYED)
    assert terms_of(diff)[KERNELS] == pytest.approx(diff.difference_s, rel=0.05)
    kernels = next(term for term in diff.terms if term.part == KERNELS)
    assert fsum(row.seconds for row in kernels.contributions if row.label.startswith(name)) == pytest.approx(diff.difference_s, rel=0.05)


@needs_recordings
def test_two_ranks_of_one_job_differ_in_how_long_they_wait_for_the_others():
    diff = compare_traces(FOLDER / "v100_dlrm_rank0of8.json.gz", FOLDER / "v100_dlrm_rank1of8.json.gz").diff
    assert terms_of(diff)[COMMUNICATION] == pytest.approx(diff.difference_s, rel=0.05)
    assert diff.aligned_share > 0.98


@pytest.mark.thorough
@needs_recordings
@pytest.mark.parametrize("other", [RESNET, "v100_dlrm_rank0of8.json.gz", "h100_vgg13_bs512_adam_one_step.json.gz"])
def test_recordings_of_different_models_are_refused(other):
    with refuses(Code.REQUEST):
        compare_traces(FOLDER / CNN, FOLDER / other)
