"""Replaying the synthetic trace, comparing it with the recording, and applying rules to it."""

from itertools import count

import pytest

from simulator.plan.bodies.host import Recorded
from simulator.replay.diagnosis import Part, PartTime, diagnose
from simulator.replay.whatif.edit import optimizer_of
from simulator.replay.whatif.matching import class_of, kernel_classes, matching
from simulator.replay.whatif.ranking import changed_step_s, no_gain_reason, rank_changes
from simulator.replay.whatif.replayed import MOST_RULES, ask, one_step, ranked, replayed
from tests.support.shared_data import shared_folder
from tests.support.small_replays import kernel, recording
from tests.support.small_traces import write_trace
from traces.errors import SchedcastError


@pytest.fixture(scope="module")
def replayed_trace(tmp_path_factory):
    return replayed([write_trace(tmp_path_factory.mktemp("traces") / "trace.json")])


def phases(timeline):
    return {span.task.rpartition(" ")[0]: span.phase for span in timeline.spans if span.device != "host"}


def test_phases_come_from_annotations_and_threads(replayed_trace):
    expected = {
        "gemm": "forward",
        "wgrad_1": "backward",
        "wgrad_2": "backward",
        "ncclDevKernel_AllReduce_Sum_f32": "collective",
        "multi_tensor_apply_kernel": "update",
    }
    assert phases(replayed_trace.simulated) == phases(replayed_trace.replay.recorded) == expected
    assert optimizer_of([task for task in replayed_trace.replay.plan.tasks if task.phase == "update"]) == "momentum"


def test_one_step_of_recording_and_replay(replayed_trace):
    number = replayed_trace.result.median_step
    assert number in (1, 2, 3)
    for timeline in (replayed_trace.simulated, replayed_trace.replay.recorded):
        step = one_step(replayed_trace.replay, timeline, number, "shown")
        begin, end = step.window_s
        assert step.kind == "shown"
        assert step.step_s == end - begin == pytest.approx(1e-3, rel=0.01)
        devices = [span for span in step.window() if span.device == "cuda:0"]
        hosts = [span for span in step.window() if span.device == "host"]
        assert len(devices) == 6
        assert {span.lane for span in hosts} == {"thread 0", "thread 1"}
        assert {span.phase for span in hosts} == {"launch", "python"}
        assert len(step.window()) == len(devices) + len(hosts)


def test_the_period_is_that_of_the_changed_plan(replayed_trace):
    answer = ask(replayed_trace, ["remove:nccl", "optimizer=fused"])
    assert answer.what_if.gpu_period_after_s == changed_step_s(answer.replay)
    assert sum(part.seconds for part in answer.what_if.diagnosis) == pytest.approx(answer.what_if.gpu_period_after_s)
    assert [step.name for step in answer.replay.steps] == [step.name for step in replayed_trace.result.steps]
    assert answer.what_if.gpu_period_before_s == replayed_trace.result.gpu_period_simulated_s


def test_a_bad_rule_does_not_affect_the_others(replayed_trace):
    rules = ["faster", "kernel:/gemm/ 2x faster", "remove:/(/", "kernel:/attention/ 2x faster", "network free"]
    what_if = ask(replayed_trace, rules).what_if
    assert what_if.rules == ("kernel:/gemm/ 2x faster", "network free")
    assert [answer.rule for answer in what_if.answers] == rules
    assert [answer.readable for answer in what_if.answers] == [False, True, False, True, True]
    assert [answer.gain_s and round(answer.gain_s * 1e6) for answer in what_if.answers] == [None, 100, None, None, 100]
    assert "unknown what-if rule 'faster'" in what_if.answers[0].reason
    assert "'(' is not a regular expression" in what_if.answers[2].reason
    assert what_if.answers[3].reason.startswith(
        "no kernel matches 'attention', of 6 names in the recording; the largest are: ncclDevKernel"
    )
    assert round((what_if.gpu_period_before_s - what_if.gpu_period_after_s) * 1e6) == 200


def test_only_rules_that_cannot_be_read_are_an_error(replayed_trace):
    with pytest.raises(SchedcastError, match="'\\(' is not a regular expression"):
        ask(replayed_trace, ["remove:/(/", "faster"])
    with pytest.raises(SchedcastError, match="expected at most 16"):
        ask(replayed_trace, ["cuda-graph"] * (MOST_RULES + 1))
    nothing = ask(replayed_trace, ["remove:/attention/"]).what_if
    assert (nothing.rules, nothing.speedup) == ((), 1.0)


def test_a_rule_that_an_earlier_one_has_made_pointless_says_so(replayed_trace):
    what_if = ask(replayed_trace, ["remove:/nccl/", "network free"]).what_if
    assert what_if.rules == ("remove:/nccl/",)
    assert what_if.answers[1].reason.startswith("after the rules before it: network free changes nothing")


def microseconds(answers):
    return {answer.rule: answer.gain_s and round(answer.gain_s * 1e6) for answer in answers}


def test_the_ladder_ranks_every_change_by_its_gain(replayed_trace):
    """A step of 1000: gemm 200, wgrads 400, of the all-reduce 100 not hidden, updates 100, and 200 while the host starts again."""
    result = ranked(replayed_trace)
    assert microseconds(result.ladder) == {
        "kernel:/convolutions/ 2x faster": 100,  # the first 100 are hidden by the all-reduce
        "kernel:/gemm/ 2x faster": 100,
        "host 2x faster": 100,
        "network 2x faster": 100,
        "priority:/(?i:nccl)/=-1": 100,
        "optimizer=fused": 54,
        "kernel:/optimizer kernels/ 2x faster": 50,
        "cuda-graph": 0,
        "backward-fusion": -60,
        "optimizer=foreach": None,
    }
    gains = [answer.gain_s for answer in result.ladder if answer.gain_s is not None]
    assert gains == sorted(gains, reverse=True)
    reasons = {answer.rule: answer.reason for answer in result.ladder if answer.reason}
    assert reasons == {
        "cuda-graph": "host time between steps and synchronizations stays",
        "optimizer=foreach": "the optimizer is already in its foreach form",
    }
    assert microseconds(result.bounds) == {"host free": 200, "network free": 100, "optimizer=free": 100}
    assert result.ladder_left_out == ()


def test_a_ladder_without_time_names_what_it_left_out(replayed_trace):
    ticks = count()
    short = rank_changes(
        replayed_trace.replay, 1e-3, diagnose(replayed_trace.replay, replayed_trace.simulated), 3.0, lambda: float(next(ticks))
    )
    assert len(short.rows) == 3
    assert short.bounds == ()
    assert short.left_out[-3:] == ("host free", "network free", "optimizer=free")


@pytest.mark.parametrize(
    ("rule", "shares", "reason"),
    [
        ("host 2x faster", {Part.HOST: 0.0004}, "the GPU waits for the host 0.0 % of the step"),
        ("kernel:/gemm/ 2x faster", {Part.HOST: 0.3}, "the GPU waits for the host anyway, 30.0 % of the step"),
        ("remove:/gemm/", {Part.COMPUTE: 0.99}, "what it shortens is too short to matter, or runs beside longer work"),
        (
            "network 2x faster",
            {Part.COMMUNICATION: 0.2, Part.HOST: 0.1},
            "the GPU waits for the host anyway, 10.0 % of the step",
        ),
        (
            "network 2x faster",
            {Part.COMMUNICATION: 0.01, Part.HOST: 0.3},
            "1.0 % of the step is communication not hidden; the GPU waits for the host 30.0 % of the step",
        ),
    ],
)
def test_a_rule_without_effect_says_why(rule, shares, reason):
    assert no_gain_reason(rule, [PartTime(part, share, share) for part, share in shares.items()]) == reason


def test_kernels_are_classed_by_what_they_compute():
    names = {
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_tn>(Params)": "matrix products",
        "volta_sgemm_64x64_nt": "matrix products",
        "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_nhwckrsc": "convolutions",
        "void implicit_convolve_sgemm<float, float>(int)": "convolutions",
        "void at::native::vectorized_elementwise_kernel<4, Add>(int)": "element-wise operations",
        "void mine::my_kernel<int>(int)": "my_kernel",
    }
    work = [kernel(f"k{number}", 1.0 + number, called=name) for number, name in enumerate(names)]
    classes = kernel_classes([*work, kernel("copy", 9.0, category="memcpy")])
    assert {each.name: each.seconds for each in classes} == {
        "convolutions": 7.0, "my_kernel": 6.0, "element-wise operations": 5.0, "matrix products": 3.0,
    }  # fmt: skip
    found = {each.name: [task.body.name for task in matching(recording(*work), each.pattern)] for each in classes}
    assert found == {kind: [name for name, own in names.items() if own == kind] for kind in found}


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)", "aten::cudnn_batch_norm", "normalization"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(int)", "", "normalization"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "", "convolutions"),
        ("volta_sgemm_64x64_nt", "aten::cudnn_convolution_backward_weight", "convolutions"),
        ("volta_sgemm_64x64_nt", "aten::addmm", "matrix products"),
        ("volta_sgemm_64x64_nt", "my::op", "matrix products"),
        ("void cudnn::ops::nchwToNhwcKernel<float>(int)", "aten::cudnn_convolution", "layout changes"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "Optimizer.step#SGD.step", "optimizer kernels"),
        ("triton_poi_fused_convolution_relu_3", "triton_poi_fused_convolution_relu_3", "triton_poi_fused_convolution_relu_3"),
    ],
)
def test_the_op_that_launched_a_kernel_decides_on_its_class_before_the_name_does(name, op, kind):
    assert class_of(Recorded(name, "kernel", 1.0, op=op)) == kind


FOLDER = shared_folder("kineto")


@pytest.mark.skipif(FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
def test_bounds_of_a_real_trace_are_at_least_the_gains_of_the_changes_they_bound():
    rules = ["optimizer=free", "optimizer=fused", "optimizer=foreach"]
    rules += ["host free", "host 2x faster", "network free", "network 2x faster"]
    answers = ask(replayed([FOLDER / "v100_dlrm_rank0of8.json.gz"]), rules).what_if.answers
    gains = {answer.rule: answer.gain_s for answer in answers}
    assert gains["host free"] >= gains["host 2x faster"] > 1e-3
    assert gains["network free"] >= gains["network 2x faster"] > 1e-3
    assert gains["optimizer=free"] >= gains["optimizer=fused"] >= gains["optimizer=foreach"] > 0
