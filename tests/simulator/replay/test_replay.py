"""Replay of small synthetic traces: exact starts and ends, in microseconds."""

import subprocess
import sys
from dataclasses import replace

import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.plan import json as plan_json
from simulator.plan.bodies.host import Host, Recorded
from simulator.plan.plan import Plan
from simulator.replay.build import build_replay
from simulator.replay.compare import compare, device_part
from simulator.replay.replay import Replay, simulate_replay, span_phase
from simulator.replay.whatif.edit import with_durations
from simulator.replay.whatif.registry import apply_rules
from simulator.replay.whatif.replayed import replayed, typical_step
from tests.support.kineto_traces import Trace
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from tests.support.small_replays import diagnose, host, kernel, launched, load_replay, random_recording, recording
from tests.support.small_traces import rank, write_trace
from tests.support.training_traces import LATENCY, TrainingJob, write_ranks
from traces.documents.replay_result import Part
from traces.documents.timeline import Cause, Timeline
from traces.errors import Code


def replay_of(tmp_path, *traces: Trace) -> Replay:
    replay = load_replay(*(trace.save(tmp_path / f"rank{number}.json") for number, trace in enumerate(traces)))
    replay.plan.validate(replay.machine)
    return replay


def device_rows(timeline: Timeline) -> list[tuple[str, float, float]]:
    return [(s.task, round(s.start_s * 1e6, 3), round(s.end_s * 1e6, 3)) for s in timeline.spans if s.device != "host"]


def scaled(replay: Replay, task: str, factor: float) -> Replay:
    """The replay with one task's duration multiplied by `factor`."""
    return with_durations(replay, {t.name: t.body.duration_s * factor for t in replay.tasks if t.name == task})


def stream_pair() -> Trace:
    """A kernel, a collective that waits for it, and a kernel that waits for the collective. Launches take 5 and arrive 2 later."""
    trace = Trace()
    trace.kernel("void gemm<float>(int)", 0, 7, 20)
    trace.call("cudaStreamWaitEvent", 8, 1)
    trace.kernel("ncclDevKernel_AllReduce", 10, 27, 50, stream=20)
    trace.kernel("other", 20, 27, 10)
    trace.call("cudaStreamWaitEvent", 30, 1)
    trace.kernel("update", 32, 77, 10)
    trace.call("cudaDeviceSynchronize", 40, 50)
    trace.kernel("next", 95, 102, 10)
    return trace


@pytest.mark.parametrize(
    ("gpu", "call", "prefix"), [("AMD Instinct MI300X", "hip_runtime", "hip"), ("NVIDIA B200", "cuda_runtime", "cuda")]
)
def test_other_gpus_replay_alike(tmp_path, gpu, call, prefix):
    """ROCm's traces have HIP's calls, and RCCL's kernels under NCCL's names or its own; a new GPU is only another name."""
    trace = stream_pair()
    trace.gpus = [{"id": 0, "name": gpu}]
    for event in trace.events:
        if event["cat"] == "cuda_runtime":
            event |= {"cat": call, "name": event["name"].replace("cuda", prefix)}
        event["name"] = event["name"].replace("ncclDevKernel_AllReduce", "ncclDevKernel_Generic(ncclDevKernelArgs)")
    other, usual = (replay_of(tmp_path, each) for each in (trace, stream_pair()))
    times = [[row[1:] for row in device_rows(simulate_replay(replay))] for replay in (other, usual)]
    assert times[0] == times[1]
    assert compare(other, simulate_replay(other)).exposed_measured_s == compare(usual, simulate_replay(usual)).exposed_measured_s > 0


def test_replay_gives_back_what_was_recorded(tmp_path):
    replay = replay_of(tmp_path, stream_pair())
    expected = [
        ("gemm #1", 7, 27), ("ncclDevKernel_AllReduce #1", 27, 77), ("other #1", 27, 37), ("update #1", 77, 87),
        ("next #1", 102, 112),
    ]  # fmt: skip
    assert device_rows(simulate_replay(replay)) == expected
    assert device_rows(replay.recorded) == expected
    host_rows = [
        [(span.task, round(span.end_s * 1e6, 3), span.phase) for span in t.spans if span.device == "host"]
        for t in (simulate_replay(replay), replay.recorded)
    ]
    assert host_rows[0] == host_rows[1]
    assert host_rows[0][:3] == [("cudaLaunchKernel #1", 7, "launch"), ("gap #1", 10, "python"), ("cudaLaunchKernel #2", 17, "launch")]
    assert [(s.name, s.first_task, s.last_task) for s in replay.steps] == [("recording", "gemm #1", "next #1")]
    assert replay.steps[0].measured_s == pytest.approx(105e-6)


def test_the_plan_is_made_of_hosts_and_recorded_work(tmp_path):
    plan = replay_of(tmp_path, stream_pair()).plan
    by_name = {task.name: task for task in plan.tasks}
    gemm = by_name["gemm #1"]
    assert gemm.body == Recorded("void gemm<float>(int)", "kernel", 20e-6, 0.0, 6)
    assert gemm.lane == ("cuda:0", 7)
    assert gemm.after == ("cudaLaunchKernel #1",)
    assert by_name["ncclDevKernel_AllReduce #1"].after == ("cudaLaunchKernel #2", "gemm #1")
    assert by_name["update #1"].after == ("cudaLaunchKernel #4", "ncclDevKernel_AllReduce #1")
    assert set(by_name["cudaDeviceSynchronize #1"].after) == {"ncclDevKernel_AllReduce #1", "update #1"}
    gap = by_name["gap #1"].body
    assert (type(gap), gap.label, round(gap.duration_s * 1e6, 3)) == (Host, "gap", 3)
    assert plan_json.load(plan_json.dump(plan)) == plan


def test_starts_follow_from_dependencies_not_from_the_recording(tmp_path):
    """If the collective takes half the time, the update, the host's wait and the work after it start earlier by the same amount."""
    replay = replay_of(tmp_path, stream_pair())
    rows = device_rows(simulate_replay(scaled(replay, "ncclDevKernel_AllReduce #1", 0.5)))
    assert rows[1:] == [("ncclDevKernel_AllReduce #1", 27, 52), ("other #1", 27, 37), ("update #1", 52, 62), ("next #1", 77, 87)]


def test_a_longer_kernel_delays_the_host_that_waits_for_it(tmp_path):
    replay = replay_of(tmp_path, stream_pair())
    assert device_rows(simulate_replay(scaled(replay, "update #1", 3)))[-1] == ("next #1", 122, 132)


def test_comparison_of_period_busy_time_and_exposed_communication(tmp_path):
    replay = replay_of(tmp_path, stream_pair())
    result = compare(replay, simulate_replay(replay))
    assert result.error == pytest.approx(0)
    assert result.period_measured_s == pytest.approx(105e-6)
    assert result.exposed_measured_s == pytest.approx(40e-6)
    assert result.exposed_simulated_s == pytest.approx(40e-6)
    assert [(u.stream, round(u.measured_s * 1e6, 3)) for u in result.streams] == [("stream 7", 50), ("stream 20", 50)]
    assert result.kernels == 5
    assert result.worst == ()


def test_period_is_between_ends_of_device_work_and_not_the_profiler_step(tmp_path):
    """The host finishes each step in 40, the device in 100, so that it falls behind. The spread is that of the recording."""
    trace = Trace()
    for step in range(4):
        trace.annotate(f"ProfilerStep#{step}", step * 40, 40)
        trace.kernel("a", step * 40, 7 + step * 100, 70)
        trace.kernel("b", step * 40 + 10, 77 + step * 100, 30)
    replay = replay_of(tmp_path, trace)
    result = compare(replay, simulate_replay(replay))
    assert [round(s.measured_s * 1e6, 3) for s in result.steps] == [100] * 4
    assert result.period_simulated_s == pytest.approx(100e-6)
    assert result.spread == pytest.approx(0)


def test_usual_gaps_between_kernels_are_part_of_the_stream(tmp_path):
    trace = Trace()
    for i in range(10):
        trace.kernel("k", i * 10, 7 + i * 102, 100)
    replay = replay_of(tmp_path, trace)
    assert replay.machine.device("cuda:0").task_overhead_s == pytest.approx(2e-6)
    assert device_rows(simulate_replay(replay))[-1] == ("k #10", 925, 1025)


def test_a_kernel_that_starts_before_the_one_before_it_ends_still_follows_it(tmp_path):
    """Programmatic dependent launch: b starts 8 early and waits for a, so that 12 of its 20 are its own."""
    trace = Trace()
    for number, (name, start, length) in enumerate((("a", 7, 93), ("b", 92, 20), ("c", 112, 10))):
        trace.kernel(name, number * 10, start, length)
    replay = replay_of(tmp_path, trace)
    assert {task.lane for task in replay.plan.tasks if task.device != "host"} == {("cuda:0", 7)}
    assert device_rows(simulate_replay(replay)) == [("a #1", 7, 100), ("b #1", 100, 112), ("c #1", 112, 122)]
    assert device_rows(simulate_replay(scaled(replay, "a #1", 2)))[1:] == [("b #1", 193, 205), ("c #1", 205, 215)]


def test_a_stream_whose_kernels_overlap_does_not_make_launches_look_slow(tmp_path):
    """The host is far ahead of the device all the time, so that no kernel shows how long a launch takes."""
    trace = Trace()
    trace.work("launched before the recording", 0, 1000, 900)
    for number in range(20):
        trace.kernel("k", 1 + number * 10, 1000 + number * 50, 55)
    replay = replay_of(tmp_path, trace)
    launches = [task.body.duration_s for task in replay.plan.tasks if task.name.startswith("cudaLaunchKernel")]
    assert launches == pytest.approx([5e-6] * 20)
    assert compare(replay, simulate_replay(replay)).error == pytest.approx(0.0)


def graph_with_pauses() -> Trace:
    """A CUDA graph of three kernels, of which the profiler missed what ran for 100 before the second and for 200 after the third."""
    trace = Trace()
    graph = trace.call("cudaGraphLaunch", 0, 10)
    for name, start in (("a", 12), ("b", 122), ("c", 132)):
        trace.work(name, start, 10, graph)
    trace.kernel("after", 20, 342, 10)
    return trace


def test_pauses_of_a_cuda_graph_without_recorded_work_stay(tmp_path):
    replay = replay_of(tmp_path, graph_with_pauses())
    assert "2 pauses of CUDA graphs have no recorded work, 0.300 ms in all: they stay as they are, whatever the host does" in replay.notes
    recorded = [("a #1", 12, 22), ("b #1", 122, 132), ("c #1", 132, 142), ("after #1", 342, 352)]
    assert device_rows(simulate_replay(replay)) == recorded
    free, _ = apply_rules(replay, ["host free"])
    assert device_rows(simulate_replay(free)) == [(name, start - 12, end - 12) for name, start, end in recorded]
    assert device_rows(simulate_replay(scaled(replay, "a #1", 2)))[1:] == [
        (name, start + 10, end + 10) for name, start, end in recorded[1:]
    ]
    parts = {part.part: part.seconds for part in diagnose(replay, replay.recorded)}
    assert parts[Part.UNEXPLAINED] == pytest.approx(300e-6)


def test_a_job_that_launches_cuda_graphs_is_not_told_to_use_them(tmp_path):
    replay = replay_of(tmp_path, graph_with_pauses())
    with refuses(Code.REQUEST, "^cuda-graph changes nothing: 3 of the 4 kernels are launched by 1 CUDA graph already$"):
        apply_rules(replay, ["cuda-graph"])


def test_a_full_queue_holds_the_host_only_as_long_as_the_device_takes(tmp_path):
    """The last launch waits for room in the queue; if the kernels take half as long, so does its wait."""
    trace = Trace()
    for i in range(400):
        trace.kernel("k", i * 2, 10 + i * 100, 100, call=1)
    trace.kernel("last", 900, 40_010, 100, call=9_200)
    replay = replay_of(tmp_path, trace)
    assert device_rows(simulate_replay(replay))[-1] == ("last #1", 40_010, 40_110)
    halved = {task.name: task.body.duration_s / 2 for task in replay.tasks if task.name.startswith("k #")}
    timeline = simulate_replay(with_durations(replay, halved))
    wait = next(span for span in reversed(timeline.spans) if span.task.startswith("cudaLaunchKernel"))
    assert wait.end_s < 5.2e-3


def test_work_without_a_launch_starts_no_earlier_after_what_ran_before(tmp_path):
    """Work launched before the recording: the first starts as recorded, the second follows it, the third keeps its pause."""
    trace = Trace()
    trace.call("cudaDeviceSynchronize", 0, 1)
    for start, stream in ((50, 7), (60, 7), (200, 20)):
        trace.work("early", start, 10, 900 + start, stream=stream)
    trace.kernel("k", 300, 307, 10)
    replay = replay_of(tmp_path, trace)
    assert device_rows(simulate_replay(replay)) == [("early #1", 50, 60), ("early #2", 60, 70), ("early #3", 200, 210), ("k #1", 307, 317)]
    assert device_rows(simulate_replay(scaled(replay, "early #2", 2)))[2] == ("early #3", 210, 220)


def test_nothing_but_device_work_keeps_its_pauses(tmp_path):
    trace = Trace()
    for i in range(4):
        trace.work("k", i * 100, 10, 0)
    assert device_rows(simulate_replay(replay_of(tmp_path, trace))) == [(f"k #{i + 1}", i * 100, i * 100 + 10) for i in range(4)]


def test_one_kernel(tmp_path):
    trace = Trace()
    trace.kernel("k", 0, 7, 10)
    replay = replay_of(tmp_path, trace)
    result = compare(replay, simulate_replay(replay))
    assert (round(result.period_measured_s * 1e6, 3), round(result.period_simulated_s * 1e6, 3), result.kernels) == (10, 10, 1)


def test_annotated_steps_without_work_are_ignored(tmp_path):
    """The recording is one iteration, as without annotations."""
    trace = stream_pair()
    trace.annotate("ProfilerStep#7", 1000, 50)
    replay = replay_of(tmp_path, trace)
    assert [step.name for step in replay.steps] == ["recording"]
    assert compare(replay, simulate_replay(replay)).period_measured_s == pytest.approx(105e-6)


def test_a_clock_that_goes_backwards_still_replays_in_order(tmp_path):
    trace = Trace()
    trace.kernel("a", 100, 40, 10)
    trace.call("cudaDeviceSynchronize", 106, 10)
    trace.kernel("b", 120, 60, 10)
    replay = replay_of(tmp_path, trace)
    names = [name for name, _, _ in device_rows(simulate_replay(replay))]
    assert names == ["a #1", "b #1"]
    assert any("clocks" in note for note in replay.notes)


def test_autograd_thread_follows_the_forward_thread(tmp_path):
    """A slower forward launch delays the backward pass, and the update that the first thread launches after it."""
    trace = Trace()
    trace.kernel("f", 0, 7, 5, thread=1)
    for i in range(10):
        trace.kernel("b", 30 + i * 20, 37 + i * 20, 5, thread=2)
    trace.kernel("u", 230, 237, 5, thread=1)
    replay = replay_of(tmp_path, trace)
    assert device_rows(simulate_replay(replay))[-1] == ("u #1", 237, 242)
    launch = next(task for task in replay.plan.tasks if task.name == "cudaLaunchKernel #1")
    assert launch.body.duration_s == pytest.approx(7e-6)
    assert device_rows(simulate_replay(scaled(replay, launch.name, 11)))[-1] == ("u #1", 307, 312)


def test_ranks_meet_at_collectives(tmp_path):
    """The end is the last arrival plus the shortest duration. If the late rank is faster, both end earlier; the other has no effect."""
    replay = replay_of(tmp_path, rank(0, 40), rank(1, 70))
    rows = {name: (start, end) for name, start, end in device_rows(simulate_replay(replay))}
    assert rows["rank 0: ncclDevKernel_AllReduce arrival #1"] == (40, 40)
    assert rows["rank 0: ncclDevKernel_AllReduce #1"] == (70, 100)
    assert rows["rank 0: u #1"] == rows["rank 1: u #1"] == (100, 110)
    late = {n: (s, e) for n, s, e in device_rows(simulate_replay(scaled(replay, "rank 1: f #1", 0.5)))}
    assert late["rank 0: u #1"] == late["rank 1: u #1"] == (70, 80)
    early = {n: (s, e) for n, s, e in device_rows(simulate_replay(scaled(replay, "rank 0: f #1", 0.5)))}
    assert early["rank 0: u #1"] == early["rank 1: u #1"] == (100, 110)
    result = compare(replay, simulate_replay(replay))
    assert result.exposed_measured_s == pytest.approx(45e-6)  # 60 on one, 30 on the other
    assert result.exposed_simulated_s == pytest.approx(45e-6)
    assert result.worst == ()
    assert "1 collectives joined between ranks, 0 without a partner" in replay.notes


def test_a_rank_whose_window_cut_a_collective_off_is_laid_beside_the_others(tmp_path):
    first, second = rank(0, 40), rank(1, 70)
    first.work("ncclDevKernel_AllReduce", 3, 4, 999, stream=20)
    replay = replay_of(tmp_path, first, second)
    assert "1 collectives joined between ranks, 1 without a partner" in replay.notes
    rows = {name: end for name, _, end in device_rows(simulate_replay(replay))}
    assert rows["rank 0: u #1"] == rows["rank 1: u #1"] == 110


def test_absent_ranks_are_noted(tmp_path):
    trace = rank(1, 40)
    trace.info["world_size"] = 8
    assert "1 of 8 ranks replayed: collectives keep the time they waited for the others" in replay_of(tmp_path, trace).notes


def test_ranks_with_one_device_number_get_devices_of_their_own(tmp_path):
    second = rank(1, 70)
    for event in second.events:
        if event["cat"] == "kernel":
            event["args"]["device"] = 0
    assert {t.device for t in replay_of(tmp_path, rank(0, 40), second).plan.tasks} == {"host", "cuda:0", "cuda:1"}


def test_ranks_that_do_not_overlap_are_refused(tmp_path):
    second = rank(1, 70)
    for event in second.events:
        event["ts"] += 10_000
    with refuses(Code.REQUEST):
        replay_of(tmp_path, rank(0, 40), second)
    with refuses(Code.REQUEST):
        build_replay([])


def test_edges_that_contradict_one_another_do_not_stop_the_replay(tmp_path):
    """Two ranks meet at the same collectives in opposite orders on two streams."""
    ranks = []
    for number, (first, second) in enumerate([("nccl_x", "nccl_y"), ("nccl_y", "nccl_x")]):
        trace = Trace(rank=number, world=2)
        trace.kernel(first, 0, 10, 50, device=number, stream=20)
        trace.kernel(second, 10, 60, 10, device=number, stream=20)
        ranks.append(trace)
    replay = replay_of(tmp_path, *ranks)
    assert len(device_rows(simulate_replay(replay))) >= 4


def test_the_worst_placed_kernels_come_with_a_reason(tmp_path):
    trace = stream_pair()
    trace.kernel("stuck", 120, 427, 10)
    trace.kernel("behind", 130, 437, 10)
    replay = replay_of(tmp_path, trace)
    worst = compare(replay, simulate_replay(replay)).worst
    assert len(worst) == 1
    assert worst[0].task == "stuck #1"
    assert round((worst[0].simulated_start_s - worst[0].measured_start_s) * 1e6) == -300
    assert worst[0].reason.startswith("the recording waits for something that left no trace")
    assert "kernels and copies that started late for no recorded reason: 1, 0.300 ms in all" in replay.notes


def test_recorded_bodies_refuse_what_no_recording_shows():
    with pytest.raises(ValueError, match="category 'kernels'"):
        Recorded("k", "kernels", 1.0)
    with pytest.raises(ValueError, match="cannot take -1"):
        Recorded("k", "kernel", -1.0)


def test_a_replay_without_a_recording_cannot_be_compared(tmp_path):
    replay = replay_of(tmp_path, stream_pair())
    with pytest.raises(ValueError, match="no recorded timeline"):
        compare(replace(replay, recorded=None), simulate_replay(replay))
    assert isinstance(replay.plan, Plan)


def test_replay_does_not_need_torch():
    code = "import sys, simulator.replay.build, simulator.replay.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kernel_that_waits_for_another_stream_does_not_make_launches_look_slow(tmp_path):
    replay = load_replay(TrainingJob().save(tmp_path / "trace.json"))
    launches = [task.body.duration_s for task in replay.plan.tasks if task.name.startswith("cudaLaunchKernel")]
    assert max(launches) == pytest.approx((TrainingJob.launch + LATENCY) * 1e-6)


def test_host_time_is_of_the_same_kind_on_one_rank_and_on_several(tmp_path):
    one = load_replay(*write_ranks(tmp_path, [TrainingJob()]))
    two = load_replay(*write_ranks(tmp_path, [TrainingJob()] * 2))
    kinds = [{(task.body.label, span_phase(task)) for task in replay.plan.tasks if task.device == "host"} for replay in (one, two)]
    assert kinds[0] == kinds[1]
    assert ("gap", "python") in kinds[1]


# The simulation of a replay gives the same timeline as the engine, whose SMs and links nothing in a replay contends for.


def by_engine(replay: Replay) -> list[tuple[str, float, float]]:
    """(task, start, end) by the engine. A span of the engine includes the gap after it."""
    costs = [Cost(f"replay|{index}", task.body.duration_s, task.body.duration_s) for index, task in enumerate(replay.plan.tasks)]
    gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
    spans = simulate(replay.plan, replay.machine, costs, iterations=1, use_cache=False).spans
    return [(span.task, span.start_s, max(span.start_s, span.end_s - gaps[span.device])) for span in spans]


def by_replay(replay: Replay) -> list[tuple[str, float, float]]:
    return [(span.task, span.start_s, span.end_s) for span in simulate_replay(replay).spans]


@pytest.mark.parametrize("seed", range(12))
def test_random_recordings(seed):
    replay = random_recording(seed)
    assert by_replay(replay) == by_engine(replay)


def test_two_ranks_with_gaps_and_rules(tmp_path):
    ranks = replayed([write_trace(tmp_path / f"{rank}.json", rank=rank) for rank in (0, 1)]).replay
    edited, _ = apply_rules(ranks, ["cuda-graph", "priority:nccl=-1", "network*=2"])
    for replay in (ranks, edited):
        assert by_replay(replay) == by_engine(replay)


def test_the_critical_path_names_launches_and_waits():
    replay = recording(
        launched("a", 4.0), launched("b", 1.0, stream=8, after="a"), kernel("c", 1.0, stream=8), host("sync", 1.0, after="c")
    )
    path = simulate_replay(replay).critical_path
    assert [(link.task, link.start_s, link.end_s, link.cause) for link in path] == [
        ("l.a", 0.0, 1.0, Cause.START), ("a", 1.0, 5.0, Cause.LAUNCH), ("b", 5.0, 6.0, Cause.DEPENDENCY),
        ("c", 6.0, 7.0, Cause.LANE), ("sync", 7.0, 8.0, Cause.DEPENDENCY),
    ]  # fmt: skip


# Real traces replay within the stated errors. The traces are not part of the project; without them these tests skip.


FOLDERS = [shared_folder("kineto"), shared_folder("kineto_more")]
TRACES = [path for folder in FOLDERS if folder for path in sorted(folder.glob("*.json*"))]

needs_traces = pytest.mark.skipif(not TRACES, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")


def check(paths) -> None:
    """Mean and median step within 1 %, exposed communication too; busy streams as recorded; nine of ten kernels within 5 % of a step."""
    replay = load_replay(*paths)
    replay.plan.validate(replay.machine)
    simulated = simulate_replay(replay)
    result = compare(replay, simulated)
    step = result.steps[typical_step([step.measured_s for step in result.steps])]
    assert abs(result.error) <= 0.01
    assert step.simulated_s == pytest.approx(step.measured_s, rel=0.01)
    assert result.exposed_simulated_s == pytest.approx(result.exposed_measured_s, abs=0.01 * result.period_measured_s)
    for use in result.streams:
        assert use.simulated_s == pytest.approx(use.measured_s, rel=0.02, abs=2e-6)
    starts = [{s.task: s.start_s for s in device_part(replay, timeline).spans} for timeline in (replay.recorded, simulated)]
    errors = sorted(abs(starts[1][task] - start_s) for task, start_s in starts[0].items())
    assert errors[9 * len(errors) // 10] <= 0.05 * result.period_measured_s


@pytest.mark.sampled(12)
@needs_traces
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_a_real_trace_replays(path):
    check([path])


@needs_traces
def test_two_ranks_of_one_job_replay_together():
    ranks = [path for path in TRACES if path.name.startswith("v100_dlrm_rank")]
    if len(ranks) < 2:
        pytest.skip("the two ranks of one job are not there")
    check(ranks)
    notes = load_replay(*ranks).notes
    assert "8 collectives joined between ranks, 0 without a partner" in notes


#: GPU periods in ms, as stated by the publishers of the traces or read from them by hand (shared/data/README.md).
PERIODS = {
    "v100_cnn_1gpu": (95.4, 95.7), "v100_resnet50_bs32_1gpu_oldschema": (149.5, 154.5), "a100_dlrm_rank3of8": (76.3, 81.2),
}  # fmt: skip


@pytest.mark.thorough
@needs_traces
@pytest.mark.parametrize("name", PERIODS)
def test_the_measured_period_is_the_known_one(name):
    path = next((path for path in TRACES if path.name.startswith(name)), None)
    if path is None:
        pytest.skip(f"{name} is not there")
    replay = load_replay(path)
    low, high = PERIODS[name]
    assert low <= 1e3 * compare(replay, simulate_replay(replay)).period_measured_s <= high
