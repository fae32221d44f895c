"""Replaying the synthetic trace, comparing it with the recording, and applying rules to it."""

import gzip
import json
from itertools import count

import pytest

from simulator.plan.bodies.host import Recorded
from simulator.replay.diff.traces import compare_traces
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.edit import optimizer_of
from simulator.replay.whatif.matching import class_of, kernel_classes, kernel_matches, matching
from simulator.replay.whatif.ranking import changed_step_s, no_gain_reason, rank_changes
from simulator.replay.whatif.registry import apply_rules
from simulator.replay.whatif.replayed import (
    LONGER,
    MOST_RULES,
    NEW,
    REMOVED,
    SHORTER,
    ask,
    changes,
    marked,
    one_step,
    ranked,
    replayed,
    slow_steps,
    typical_step,
)
from tests.support.loader_traces import LOADER, write_loader_trace
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from tests.support.small_replays import kernel, launched, recording
from tests.support.small_traces import write_trace, write_unexplained_trace
from traces.documents.replay_result import Part, StepPart
from traces.errors import Code
from traces.formats.perfetto import export
from ui.present import replays as words


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
    with refuses(Code.REQUEST):
        ask(replayed_trace, ["remove:/(/", "faster"])
    with refuses(Code.REQUEST):
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
        "kernel:/^gemm$/ 2x faster": 100,
        "host 2x faster": 100,
        "network 2x faster": 100,
        "priority:/(?i:nccl)/=-1": 100,
        "optimizer=fused": 54,
        "kernel:/optimizer kernels/ 2x faster": 50,
        "cuda-graph": 0,
        "backward-fusion": -60,
        "loader workers=4": None,
        "optimizer=foreach": None,
    }
    gains = [answer.gain_s for answer in result.ladder if answer.gain_s is not None]
    assert gains == sorted(gains, reverse=True)
    reasons = {answer.rule: answer.reason for answer in result.ladder if answer.reason}
    assert reasons == {
        "cuda-graph": "host time between steps and synchronizations stays",
        "loader workers=4": "the recording names no data loader, as torch.utils.data.DataLoader does by itself",
        "optimizer=foreach": "the optimizer is already in its foreach form",
    }
    assert microseconds(result.bounds) == {"host free": 200, "loader free": None, "network free": 100, "optimizer=free": 100}
    assert result.ladder_left_out == ()


def test_a_ladder_without_time_names_what_it_left_out(replayed_trace):
    ticks = count()
    short = rank_changes(replayed_trace.before, 3.0, lambda: float(next(ticks)))
    assert len(short.rows) == 3
    assert short.bounds == ()
    assert short.left_out[-4:] == ("host free", "loader free", "network free", "optimizer=free")


@pytest.mark.parametrize(
    ("rule", "shares", "reason"),
    [
        ("host 2x faster", {Part.HOST: 0.0004}, "the GPU waits for the host 0.0 % of the step"),
        ("kernel:/gemm/ 2x faster", {Part.HOST: 0.3}, "the host sets the pace: the GPU waits for it 30.0 % of the step"),
        ("remove:/gemm/", {Part.COMPUTE: 0.99}, "what it shortens is too short to matter, or runs beside longer work"),
        (
            "network 2x faster",
            {Part.COMMUNICATION: 0.2, Part.HOST: 0.1},
            "the host sets the pace: the GPU waits for it 10.0 % of the step",
        ),
        (
            "network 2x faster",
            {Part.COMMUNICATION: 0.01, Part.HOST: 0.3},
            "1.0 % of the step is communication not hidden; the GPU waits for the host 30.0 % of the step",
        ),
        ("kernel:/gemm/ 2x faster", {Part.OTHER_RANK: 0.2}, "the slowest rank sets the pace: others wait 20.0 % of the step"),
        ("loader workers=4", {Part.LOADER: 0.0}, "the GPU waits for the data loader 0.0 % of the step"),
    ],
)
def test_a_rule_without_effect_says_why(rule, shares, reason):
    assert (
        no_gain_reason(rule, [StepPart(part=part, seconds=share, share=share) for part, share in shares.items()], lambda: False) == reason
    )


def test_a_host_that_takes_as_long_as_the_gpu_sets_the_pace():
    step = [StepPart(part=Part.COMPUTE, seconds=0.99, share=0.99)]
    assert no_gain_reason("remove:/gemm/", step, lambda: True).startswith("the host sets the pace: what it does between its recorded calls")


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


# What a regular expression matches before a rule is applied, and what rules have changed afterwards.


REPLAY = recording(
    launched("a", 3.0, called="void gemm_128<float>(int)"),
    launched("b", 1.0, called="relu"),
    launched("c", 2.0, called="void gemm_64<x>(y)"),
)


def test_matches_are_counted_before_a_rule_is_applied():
    matches = kernel_matches(REPLAY, "gemm")
    assert (matches.kernels, matches.seconds, matches.share, matches.steps) == (2, 5.0, pytest.approx(5 / 6), 1)
    assert [(count, seconds) for _, count, seconds in matches.names] == [(1, 3.0), (1, 2.0)]


@pytest.mark.parametrize(("regex", "line"), [("conv", "no kernel matches 'conv'"), ("(", "is not a regular expression")])
def test_what_matches_nothing_or_cannot_be_read_is_one_line(regex, line):
    with refuses(Code.REQUEST, line):
        kernel_matches(REPLAY, regex)


def test_changed_tasks_are_marked():
    faster, _ = apply_rules(REPLAY, ["kernel:/gemm_128/ 2x faster", "kernel:/gemm_64/ 2x slower", "remove:/relu/"])
    before, after = simulate_replay(REPLAY), simulate_replay(faster)
    changed = changes(before, after)
    assert {task: kind for task, kind in changed.kind.items() if not task.startswith("l.")} == {"a": SHORTER, "c": LONGER, "b": REMOVED}
    assert changed.seconds[SHORTER] == -1.5
    assert changed.counts[LONGER] == 1
    phases = {span.task: span.phase for span in marked(after, changed).spans}
    assert (phases["a"], phases["c"]) == (SHORTER, LONGER)
    assert changes(before, before).kind == {}


def test_a_task_that_only_the_change_has_is_new():
    before, after = simulate_replay(recording(kernel("a", 1.0))), simulate_replay(recording(kernel("a", 1.0), kernel("d", 1.0)))
    assert changes(before, after).kind == {"d": NEW}


# The steps of a recording: which one stands for the others, which ones are slow, and what they wait for. Times are microseconds.


def test_a_replay_that_does_not_explain_the_recording_says_so_before_any_answer(tmp_path):
    recorded = replayed([write_unexplained_trace(tmp_path / "trace.json")])
    result = ranked(recorded)
    assert result.disagreement == result.error == pytest.approx(-0.4)
    assert (result.ladder, result.bounds) == ((), ())
    assert words.headline(result) == ("The replay does not explain the recording: mean step 1.00 ms recorded, 0.600 ms replayed, -40.0 %.")
    assert words.ladder_words(result)[0].endswith("No changes are ranked: their gains could not be trusted.")
    asked = ask(recorded, ["kernel:gemm 2x faster"]).what_if
    assert asked.remark == words.what_if_words(asked)[0]
    assert asked.remark == "The replay that these answers rest on is -40.0 % off the recording: they may be wrong by as much."


def test_a_replay_within_the_tolerance_has_no_remark(tmp_path):
    recorded = replayed([write_trace(tmp_path / "trace.json")])
    assert recorded.result.disagreement is None
    assert ask(recorded, ["kernel:gemm 2x faster"]).what_if.remark == ""


#: The first step does not count. Of the others, three take 320 and two much more.
LOADING = (900.0, 300.0, 300.0, 1300.0, 300.0, 4300.0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return replayed([write_loader_trace(tmp_path_factory.mktemp("traces") / "trace.json", LOADING)])


def test_the_median_step_stands_for_the_others_and_slow_ones_are_listed(recorded):
    result = recorded.result
    lengths = [round(step.measured_s * 1e6) for step in result.steps]
    assert lengths == [920, 320, 320, 1320, 320, 4320]
    assert lengths[result.median_step] == 320
    assert round(result.gpu_period_measured_s * 1e6) == 1320, "the mean of five steps"
    assert result.slow_steps == (5, 3)
    assert words.slow_words(result) == ["2 of 5 steps are slow: 1.32 to 4.32 ms, the median 0.320 ms."]
    assert words.headline(result) == "The GPU waits for the data loader 65.6 % of the median step, 0.210 of 0.320 ms."


def test_the_parts_of_every_step_add_up_and_their_mean_is_the_diagnosis(recorded):
    result = recorded.result
    for step in result.steps:
        assert sum(part.seconds for part in step.parts) == pytest.approx(step.measured_s)
    for index, part in enumerate(result.diagnosis):
        assert part.seconds == pytest.approx(sum(step.parts[index].seconds for step in result.steps[1:]) / 5)
    assert [cells["ms"] for cells in words.diagnosis_cells(result, 5)][-1] == "4.32"


def test_slow_steps_say_what_they_wait_for(recorded):
    first, second = words.slow_cells(recorded.result)
    assert (first["slow step"], first["longer by ms"], second["longer by ms"]) == ("ProfilerStep#5", "4.00", "1.00")
    assert first["most of it"] == f"idle, waits for the data loader +4 ms; {LOADER} +4 ms"
    (sentence,) = words.wait_words(recorded.result, 3)
    assert sentence.startswith(f"Meanwhile the host is in {LOADER} (1.21 ms)")


def test_the_changed_step_stands_beside_the_recorded_one(recorded):
    answer = ask(recorded, ["host free"])
    cells = words.diagnosis_cells(recorded.result.model_copy(update={"what_if": answer.what_if}), 5)
    assert (cells[-1]["ms"], cells[-1]["ms after the changes"]) == ("4.32", words.units.ms(answer.what_if.steps[5].seconds))
    assert answer.what_if.steps[5].seconds < 0.2e-3


def test_one_step_is_not_ranked(tmp_path):
    result = ranked(replayed([write_loader_trace(tmp_path / "one.json", LOADING[:1])]))
    assert (result.ladder, result.bounds) == ((), ())
    assert "Only one step is recorded" in words.ladder_words(result)[0]
    assert ranked(replayed([write_loader_trace(tmp_path / "two.json", LOADING[:2])])).ladder


CASES = shared_folder("cases")
needs_cases = pytest.mark.skipif(
    CASES is None, reason="no shared/data/cases beside the repository; SCHEDCAST_SHARED may name another place"
)


@needs_cases
def test_layers_of_one_pass_are_one_step():
    result = ranked(replayed([CASES / "traces" / "04_layers_of_one_pass.json"]))
    assert [step.measured_s for step in result.steps] == [pytest.approx(25.3e-3, rel=0.01)]
    assert result.ladder == ()


@needs_cases
def test_a_step_that_lost_half_of_its_kernels_is_neither_the_median_nor_its_measure():
    result = replayed([CASES / "traces" / "10_second_half_at_zero.json"]).result
    assert result.steps[result.median_step].measured_s == pytest.approx(9.05e-3, rel=0.01)
    assert ([step.name for step in result.steps], result.slow_steps) == (["ProfilerStep#0", "ProfilerStep#1"], ())


@needs_cases
def test_collectives_of_serving_engines_are_communication():
    result = replayed([CASES / "traces" / "11_communication_by_name.json"]).result
    assert result.gpu_period_measured_s == pytest.approx(9.05e-3, rel=0.01)
    assert result.exposed_communication_measured_s == pytest.approx(4.5e-3, rel=0.01)


def test_the_step_that_stands_for_the_others_is_one_of_them():
    assert typical_step([5.0]) == 0
    assert typical_step([9.0, 1.0, 3.0]) == 1
    assert slow_steps([5.0]) == ()
    assert slow_steps([9.0, 4.0, 4.0, 5.0, 4.9]) == (3,)


def test_gaps_are_called_after_what_covers_them_wherever_they_are_shown(recorded, tmp_path):
    gaps = [task.name for task in recorded.replay.plan.tasks if LOADER in task.name]
    assert gaps == [f"{LOADER} #{number}" for number in range(1, len(LOADING) + 1)]
    document = json.loads(gzip.decompress(export(tmp_path / "run.json.gz", {"recorded": recorded.replay.recorded}).read_bytes()))
    assert sum(LOADER in event["name"] for event in document["traceEvents"] if event["ph"] == "X") == len(LOADING)
    slower = write_loader_trace(tmp_path / "slower.json", [length + 500 for length in LOADING])
    diff = compare_traces(write_loader_trace(tmp_path / "trace.json", LOADING), slower).diff
    assert (diff.terms[0].part, diff.terms[0].contributions[0].label) == ("Python between launches", LOADER)
    assert diff.terms[0].contributions[0].seconds == pytest.approx(500e-6, rel=0.01)


CASES = shared_folder("cases")


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
@pytest.mark.parametrize(
    ("name", "rule", "step_ms"),
    [
        ("02_graph_launches_without_kernels", "host 2x faster", 9.87),
        ("03_name_begins_another", "kernel:/^gemm_tile$/ 2x faster", 6.80),
        ("06_allocator", "cuda-graph", 9.98),  # the calls that allocate stay
        ("06_allocator", "host 2x faster", 9.94),
        ("08_item_after_each_kernel", "cuda-graph", None),
    ],
)
def test_rules_on_recordings_of_others(name, rule, step_ms):
    (answer,) = ask(replayed([CASES / "traces" / f"{name}.json"]), [rule]).what_if.answers
    assert answer.step_s == (step_ms and pytest.approx(1e-3 * step_ms, rel=2e-3))


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
def test_a_kernel_whose_name_begins_another_gains_its_own_share():
    ladder = ranked(replayed([CASES / "traces" / "03_name_begins_another.json"]), seconds=600.0).ladder
    assert [(each.label, round(each.speedup, 2)) for each in ladder[:2]] == [
        ("gemm_tile_swiglu 2x faster", 1.33),
        ("gemm_tile 2x faster", 1.33),
    ]
