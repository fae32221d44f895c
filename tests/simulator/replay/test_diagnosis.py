"""Where the time of a step goes, on recordings small enough to add up by hand. Times are seconds, or microseconds in traces."""

from dataclasses import replace

import pytest

from simulator.replay.compare import boundaries, times_of
from simulator.replay.diagnosis import diagnose_steps
from simulator.replay.replay import RecordedStep, Replay, simulate_replay
from simulator.replay.steady import pace_s
from simulator.replay.whatif.registry import apply_rules
from simulator.replay.whatif.replayed import replayed
from tests.support.kineto_traces import Trace
from tests.support.shared_data import shared_folder
from tests.support.small_replays import diagnose, host, launched, load_replay, random_recording, recording
from tests.support.small_traces import rank
from traces.documents.replay_result import Part


def parts(replay: Replay, timeline=None) -> dict[str, float]:
    """Seconds of the parts that are not empty."""
    times = diagnose(replay, timeline or simulate_replay(replay))
    assert sum(each.share for each in times) == pytest.approx(1.0)
    return {str(each.part): round(each.seconds, 9) for each in times if each.seconds > 1e-12}


def one_step(*tasks) -> Replay:
    names = [task.name for item in tasks for task in (item if isinstance(item, list) else [item]) if task.device != "host"]
    return recording(*tasks, steps=(RecordedStep("step", names[0], names[-1], 1.0),))


def test_a_device_that_waits_for_launches_waits_for_the_host():
    replay = one_step(launched("a", 2.0), host("python", 3.0, label="gap"), launched("b", 1.0))
    assert parts(replay) == {"compute": 3.0, "host": 2.0}  # a: 1 to 3, b: 5 to 6


def test_a_host_that_was_blocked_by_the_device_is_a_synchronization():
    replay = one_step(launched("a", 4.0), host("sync", 0.5, after="a"), host("python", 1.0, label="gap"), launched("b", 1.0))
    assert parts(replay) == {"compute": 5.0, "synchronization": 2.5}  # a: 1 to 5, b: 7.5 to 8.5
    late = one_step(launched("a", 1.0), host("python", 4.0, label="gap"), host("sync", 0.5, after="a"), launched("b", 1.0))
    assert parts(late) == {"compute": 2.0, "host": 4.5}, "the kernel had ended when the host came to wait for it"


def test_a_synchronization_costs_as_long_as_it_holds_the_host_and_what_the_host_does_then_is_its_own():
    replay = one_step(launched("a", 4.0), host("sync", 0.5, after="a"), host("python", 10.0, label="gap"), launched("b", 1.0))
    assert parts(replay) == {"compute": 5.0, "synchronization": 4.5, "host": 7.0}  # a: 1 to 5, the host is held from 1 to 5.5, b: 16.5


def test_memory_that_is_taken_or_returned_is_allocation():
    calls = [host("sync", 0.0, after="a"), host("free", 2.0, label="cudaFree"), host("take", 3.0, label="hipExtMallocWithFlags")]
    replay = one_step(launched("a", 1.0), *calls, launched("b", 1.0))
    assert parts(replay) == {"compute": 2.0, "allocation": 5.0, "host": 1.0}


def test_a_call_that_allocates_is_in_the_recording(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 20)
    trace.call("cudaMalloc", 10, 300)
    trace.kernel("b", 320, 327, 20)
    replay = load_replay(trace.save(tmp_path / "trace.json"))
    assert parts(replay, replay.recorded)["allocation"] == pytest.approx(283e-6)  # a ends at 27


def test_after_a_graph_without_recorded_work_idle_time_is_not_known(tmp_path):
    """The host waits for a graph of 900, of which nothing is recorded: the wait is no synchronization's cost, and not the host's time."""
    trace = Trace()
    for number in range(3):
        at = 1000.0 * number
        trace.annotate(f"ProfilerStep#{number}", at, 990.0)
        trace.work("Memcpy HtoD (Pinned -> Device)", at + 6, 10, trace.call("cudaMemcpyAsync", at, 5), cat="gpu_memcpy")
        trace.call("cudaGraphLaunch", at + 10, 20)
        trace.call("cudaStreamSynchronize", at + 40, 900)
    replay = load_replay(trace.save(tmp_path / "trace.json"))
    assert parts(replay, replay.recorded) == {"copies": 10e-6, "unexplained": 990e-6}
    assert "no work is recorded for 3 of 3 graph launches: what the GPU does after them is not known" in replay.notes
    faster = apply_rules(replay, ["host 2x faster"])[0]
    assert pace_s(faster) > 900e-6


def test_a_copy_behind_a_graph_without_recorded_work_comes_as_late_as_recorded(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 20)
    trace.call("cudaGraphLaunch", 10, 20)
    trace.work("Memcpy DtoH (Device -> Pageable)", 900, 10, trace.call("cudaMemcpyAsync", 40, 875), cat="gpu_memcpy")
    replay = load_replay(trace.save(tmp_path / "trace.json"))
    assert times_of(simulate_replay(apply_rules(replay, ["host free"])[0]))["Memcpy DtoH (Device -> Pageable) #1"][0] > 850e-6


def test_collectives_count_while_no_kernel_runs_and_copies_while_nothing_else_does():
    replay = one_step(
        launched("a", 4.0),
        launched("all-reduce", 5.0, category="collective", stream=20),
        launched("copy", 6.0, category="memcpy", stream=8),
        launched("b", 1.0, after="copy", stream=7),
    )
    assert parts(replay) == {"compute": 5.0, "communication": 2.0, "copies": 2.0}  # a 1-5, all-reduce 2-7, copy 3-9, b 9-10


def test_pauses_between_kernels_are_their_own_part():
    plain = one_step(*(launched(name, 100.0, launch_s=0.0) for name in "abcd"))
    devices = tuple(replace(device, task_overhead_s=2.0) if device.name != "host" else device for device in plain.machine.devices)
    assert parts(replace(plain, machine=replace(plain.machine, devices=devices))) == {"compute": 400.0, "between kernels": 6.0}


def two_ranks(tmp_path, arrive: tuple[float, float]) -> Replay:
    """Each rank computes from 9 until it arrives at an all-reduce, which ends at 100 on both; then it computes for 10."""
    return load_replay(*(rank(number, at).save(tmp_path / f"rank{number}.json") for number, at in enumerate(arrive)))


def test_a_rank_that_comes_early_waits_for_the_other(tmp_path):
    replay = two_ranks(tmp_path, (40, 70))
    for timeline in (replay.recorded, simulate_replay(replay)):
        # rank 0 computes 31 + 10 and waits 30; rank 1 computes 61 + 10; both transfer for 30
        assert parts(replay, timeline) == {"compute": 56e-6, "communication": 30e-6, "other rank": 15e-6}
        (step,) = diagnose_steps(replay, timeline)
        assert [(each.rank, each.seconds) for each in step.ranks] == [(1, pytest.approx(15e-6))]


def test_a_late_start_that_nothing_explains_is_said_so(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 20)
    trace.kernel("stuck", 8, 327, 10)
    replay = load_replay(trace.save(tmp_path / "trace.json"))
    assert parts(replay, replay.recorded) == {"compute": 30e-6, "unexplained": 300e-6}


def test_another_stream_is_a_dependency_while_the_device_is_idle(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 20)
    trace.call("cudaStreamWaitEvent", 8, 1)
    trace.kernel("b", 10, 30, 20, stream=8)
    replay = load_replay(trace.save(tmp_path / "trace.json"))
    assert parts(replay, replay.recorded) == {"compute": 40e-6, "dependency": 3e-6}


def test_work_outside_the_steps_does_not_count():
    """The last two kernels run after the only step; the idle time before them is not part of it either."""
    replay = recording(
        launched("a", 2.0),
        launched("b", 1.0, category="memcpy"),
        host("python", 9.0, label="gap"),
        launched("c", 5.0),
        launched("d", 5.0),
        steps=(RecordedStep("step", "a", "b", 3.0),),
    )
    assert parts(replay) == {"compute": 2.0, "copies": 1.0}


def test_steps_that_were_issued_out_of_order_have_no_negative_length():
    """In a damaged recording, a kernel of the second step may come before the last of the first."""
    steps = (RecordedStep("first", "a", "c", 3.0), RecordedStep("second", "b", "b", 1.0))
    replay = recording(*(launched(name, 1.0) for name in "abc"), steps=steps)
    assert boundaries(replay, times_of(simulate_replay(replay))) == [1.0, 4.0, 4.0]
    assert [each.share for each in diagnose(replay, simulate_replay(replay))] == [0.0] * len(Part)


@pytest.mark.parametrize("seed", range(8))
def test_parts_sum_to_the_step(seed):
    replay = random_recording(seed)
    parts(replay)
    assert {each.part for each in diagnose(replay, simulate_replay(replay))} == set(Part)


CASES = shared_folder("cases")


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
@pytest.mark.parametrize(
    ("name", "step_ms", "part", "least_ms", "labels"),
    [
        ("02_graph_launches_without_kernels", 9.88, Part.UNEXPLAINED, 9.8, []),
        ("05_python_after_sync", 32.0, Part.HOST, 28.5, ["make_batch"]),
        ("06_allocator", 9.97, Part.ALLOCATION, 7.89, ["cudaFree", "cudaMalloc"]),
        ("07_workers_are_the_limit", 30.0, Part.LOADER, 17.9, ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"]),
    ],
)
def test_what_the_gpu_waits_for_in_recordings_of_others(name, step_ms, part, least_ms, labels):
    result = replayed([CASES / "traces" / f"{name}.json"]).result
    median = result.steps[result.median_step]
    parts_ms = {each.part: 1e3 * each.seconds for each in median.parts}
    assert (median.measured_s, result.error) == (pytest.approx(1e-3 * step_ms, rel=2e-3), pytest.approx(0.0, abs=1e-3))
    assert max(parts_ms, key=parts_ms.__getitem__) is part
    assert parts_ms[part] >= least_ms
    assert [wait.label for wait in median.waits][: len(labels)] == labels


FOLDER = shared_folder("kineto")


@pytest.mark.thorough
@pytest.mark.skipif(FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
def test_a_resnet_waits_for_its_loader_and_for_python_for_a_third_of_the_step():
    replay = load_replay(FOLDER / "v100_resnet50_bs32_1gpu_oldschema.json.gz")
    shares = {each.part: each.share for each in diagnose(replay, replay.recorded)}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
    assert 0.20 < shares[Part.LOADER] < 0.25
    assert 0.30 < shares[Part.LOADER] + shares[Part.HOST] < 0.35
    assert shares[Part.UNEXPLAINED] < 0.01
