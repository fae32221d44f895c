"""Replaying the synthetic trace, comparing it with the recording, and applying rules to it."""

import pytest

from simulator.whatif.phases import optimizer_of
from simulator.whatif.replayed import ask, one_step, period_s, replayed, typical_step
from tests.support.small_traces import write_trace


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
    number = typical_step(replayed_trace.result)
    assert number in (1, 2, 3)
    for timeline in (replayed_trace.simulated, replayed_trace.replay.recorded):
        step = one_step(replayed_trace.replay, timeline, number, "shown")
        begin, end = step.window_s
        assert step.kind == "shown"
        assert step.step_s == end - begin == pytest.approx(1e-3, rel=0.01)
        assert {span.device for span in step.spans} == {"cuda:0"}
        assert len(step.window()) == 6


def test_the_period_is_that_of_the_changed_plan(replayed_trace):
    answer = ask(replayed_trace, ["remove:nccl", "optimizer=fused"])
    assert answer.what_if.gpu_period_after_s == period_s(answer.replay, answer.timeline)
    assert [step.name for step in answer.replay.steps] == [step.name for step in replayed_trace.result.steps]
    assert answer.what_if.gpu_period_before_s == replayed_trace.result.gpu_period_simulated_s
