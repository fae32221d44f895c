"""Reading profiler traces, and recovering launches, waits and iterations from them. Times are microseconds."""

import gzip
import json
import tracemalloc
from itertools import pairwise

import pytest

from tests.support.kineto_traces import Trace
from tests.support.shared_data import shared_folder
from traces.errors import UnusableFileError
from traces.formats import collected, iterations, json_stream, synchronization
from traces.formats.kineto import load_trace
from traces.formats.recording import CallKind, is_communication
from traces.formats.streams import hand_overs
from traces.formats.synchronization import recover


def load(trace: Trace, tmp_path, name: str = "trace.json"):
    return load_trace(trace.save(tmp_path / name))


def us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def simple() -> Trace:
    trace = Trace()
    trace.kernel("void a<float>(int)", 0, 8, 10)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32", 10, 20, 30, stream=20)
    trace.work("Memcpy HtoD (Pinned -> Device)", 60, 4, trace.call("cudaMemcpyAsync", 50, 5), cat="gpu_memcpy", bytes=4096)
    return trace


def test_reads_work_calls_and_their_joins(tmp_path):
    recording = load(simple(), tmp_path)
    assert [(w.category, us(w.start_s), us(w.end_s), w.stream, w.call) for w in recording.works] == [
        ("kernel", 8, 18, 7, 0), ("collective", 20, 50, 20, 1), ("memcpy", 60, 64, 7, 2),
    ]  # fmt: skip
    assert recording.works[0].grid == 6
    assert recording.works[2].bytes == 4096
    assert [(c.name, c.kind, c.thread) for c in recording.calls] == [("cudaLaunchKernel", CallKind.LAUNCH, 0)] * 2 + [
        ("cudaMemcpyAsync", CallKind.LAUNCH, 0)
    ]
    assert recording.unmatched == 0
    assert recording.streams == 2
    assert recording.notes == ()


def test_gzip_and_a_bare_list_of_events_are_the_same_trace(tmp_path):
    plain = load(simple(), tmp_path)
    packed = load(simple(), tmp_path, "trace.json.gz")
    (tmp_path / "list.json").write_text(json.dumps(simple().events))
    bare = load_trace(tmp_path / "list.json")
    assert plain.works == packed.works == bare.works
    assert plain.calls == packed.calls == bare.calls


def test_schema_of_pytorch_1_8(tmp_path):
    """Other category names, streams as text, no deviceProperties, no deviceInfo, and other args next to the correlation id."""
    trace = Trace()
    trace.events = [
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": "99", "ts": 10, "dur": 5,
         "args": {"cbid": 211, "correlation": 160663, "external id": 24213, "external ts": 9}},
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 20, "dur": 2,
         "args": {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 160663, "grid": [13, 1, 1]}},
        {"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7", "ts": 30, "dur": 1, "args": {}},
        {"ph": "X", "cat": "Operator", "name": "ProfilerStep#16", "pid": 1, "tid": "99", "ts": 0, "dur": 50, "args": {}},
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 99, "ts": 1},
        {"ph": "s", "id": 160663, "pid": 1, "tid": 99, "ts": 10, "cat": "async", "name": "launch"},
    ]  # fmt: skip
    recording = load(trace, tmp_path)
    assert [(w.name, w.stream, w.call) for w in recording.works] == [("k", 7, 0), ("Memset (Device)", 7, -1)]
    assert recording.annotations[0].name == "ProfilerStep#16"
    assert "1 memset" in recording.notes[0]


def test_nanoseconds_survive_and_base_time_counts(tmp_path):
    path = tmp_path / "t.json"
    event = '{"ph":"X","cat":"%s","name":"k","pid":0,"tid":7,"ts":%s,"dur":1.250,"args":{"device":0,"stream":7,"correlation":3}}'
    events = event % ("cuda_runtime", "1712195495533685.110") + "," + event % ("kernel", "1712195495533687.385")
    path.write_text('{"baseTimeNanoseconds": 5000, "traceEvents": [' + events + "]}")
    recording = load_trace(path)
    assert recording.works[0].start_s == 2.275e-6
    assert recording.works[0].end_s == 3.525e-6
    assert recording.origin_ns == 1712195495533685110 + 5000


def test_kernels_of_a_cuda_graph_share_a_launch_and_its_branches_get_lanes(tmp_path):
    trace = Trace()
    graph = trace.call("cudaGraphLaunch", 0, 10)
    trace.work("a", 12, 10, graph)
    trace.work("b", 24, 10, graph)
    trace.work("c", 24, 20, graph)
    trace.work("d", 46, 5, graph)
    recording = load(trace, tmp_path)
    assert [w.call for w in recording.works] == [0, 0, 0, 0]
    assert recording.notes == ()
    order = recover(recording)
    assert order.lanes == {(0, 7): [0, 1, 3], (0, 8): [2]}
    assert order.work_after == {2: [0], 3: [2]}


def test_duplicate_correlation_ids_are_joined_in_order_with_a_note(tmp_path):
    trace = Trace()
    for start in (0, 10):
        trace.call("cudaLaunchKernel", start, 5, correlation=77)
    trace.work("a", 20, 5, 77)
    trace.work("b", 26, 5, 77)
    recording = load(trace, tmp_path)
    assert [w.call for w in recording.works] == [0, 1]
    assert "used more than once" in recording.notes[0]


def test_events_without_usable_times_are_left_out_with_a_note(tmp_path):
    trace = simple()
    for times in ({"ts": 5, "dur": -3}, {"ts": None, "dur": 1}, {"ts": "x", "dur": 1}, {"ts": True}, {"ts": float("nan")}, {}):
        trace.events.append({"ph": "X", "cat": "kernel", "name": "bad", "pid": 0, "tid": 7, "args": {}, **times})
    recording = load(trace, tmp_path)
    assert len(recording.works) == 3
    assert recording.notes == ("6 events without usable times were dropped",)


def test_a_clock_that_goes_backwards_is_noted(tmp_path):
    trace = Trace()
    trace.kernel("a", 100, 40, 10)
    trace.kernel("b", 90, 95, 10)
    recording = load(trace, tmp_path)
    assert [w.name for w in recording.works] == ["a", "b"]
    assert recording.notes == ("1 kernels start before their own launch: the clocks of host and device disagree",)


def test_hip_and_driver_calls_are_known(tmp_path):
    trace = Trace()
    trace.work("k", 10, 10, trace.call("cuLaunchKernelEx", 0, 5, cat="cuda_driver"))
    trace.call("hipDeviceSynchronize", 6, 20)
    trace.call("cudaStreamSynchronize_ptsz", 30, 1)
    trace.call("cudaFuncGetAttributes", 31, 1)
    assert [c.kind for c in load(trace, tmp_path).calls] == [CallKind.LAUNCH, CallKind.DEVICE_SYNC, CallKind.STREAM_SYNC]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1 << 20])
def test_streaming_reads_what_json_reads(tmp_path, monkeypatch, size):
    document = {"a": 1, "b": [1, {"c": None}], "traceEvents": [{"x": 'ü\\"]}'}, 12345, True, [], {}], "z": 67, "é": {}}
    path = tmp_path / "d.json"
    path.write_text("\ufeff \n" + json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", size)
    pairs = list(json_stream.items(path, "traceEvents", "trace"))
    assert [item for key, item in pairs if key == "traceEvents"] == document["traceEvents"]
    assert {key: item for key, item in pairs if key != "traceEvents"} == {k: v for k, v in document.items() if k != "traceEvents"}


NO_GPU = {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1}]}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 5}
BAD = {
    "empty": (b"", "it is empty"),
    "not JSON": (b"hello", "not valid JSON"),
    "a number": (b"5", "not valid JSON"),
    "another document": (b'{"schema": "schedcast.plan/1"}', "not a profiler trace"),
    "no events": (b'{"traceEvents": []}', "not a profiler trace"),
    "events of another kind": (b'{"traceEvents": 7}', "not a profiler trace"),
    "no GPU work": (json.dumps(NO_GPU).encode(), "no GPU work"),
    "truncated": (json.dumps(simple().document()).encode()[:-30], "after 6 whole items of traceEvents: expected ':'|it ends"),
    "truncated in an event": (json.dumps(simple().document(), indent=1).encode()[:500], r"line 34, column 8, .* 1 whole .*it ends"),
    "a path of Windows": (b'[{"ph": "X",\n "name": "C:\\Users"}]', r"line 2, column 13, after 0 whole .*backslash must be doubled.*Users"),
    "pairs of begins and ends": (b'[{"ph": "B", "cat": "kernel", "ts": 1}, {"ph": "E", "ts": 2}]', "no GPU work; 1 are begins"),
    "a kernel in nanoseconds": (b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1700000000000000000, "dur": 9}]', "in nanoseconds"),
    "launches in nanoseconds": (json.dumps([LAUNCH | {"dur": 4000 + i} for i in range(20)]).encode(), "in nanoseconds"),
    "launches alone": (json.dumps([LAUNCH] * 20).encode(), "no GPU work; its 20 launches"),
    "two documents": (json.dumps(simple().document()).encode() * 2, "more after its end"),
    "truncated gzip": (gzip.compress(json.dumps(simple().document()).encode())[:-20], "damaged gzip"),
    "bad gzip": (b"\x1f\x8b" + b"x" * 100, "damaged gzip"),
    "deep nesting": (b'{"traceEvents": [' + b"[" * 200_000, "nested too deeply"),
    "deep nesting beside events": (b'{"a": ' + b'{"a":' * 200_000, "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_line(tmp_path, name):
    content, expected = BAD[name]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnusableFileError, match=expected):
        load_trace(path)


def test_a_file_that_lacks_only_its_end_is_read_with_a_note(tmp_path):
    path = tmp_path / "trace.json"
    events = json.dumps(simple().document()["traceEvents"])
    for end in (events[:-1], f'{{"traceEvents": {events[:-1]}', f'{{"traceEvents": {events}', events[:-1] + ", "):
        path.write_text(end)
        recording = load_trace(path)
        assert len(recording.works) == 3
        assert recording.notes == ("the file lacks its end: its 6 whole events were read, and what followed them is not known",)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read(tmp_path, encoding):
    path = tmp_path / "trace.json"
    path.write_bytes(("\ufeff" + json.dumps(simple().document())).encode(encoding))
    assert load_trace(path).works == load(simple(), tmp_path).works


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_numbers_that_are_not_finite_are_text(tmp_path, monkeypatch, size):
    """Kineto prints C++'s inf, nan and -nan; what stands in strings stays."""
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", size)
    path = tmp_path / "d.json"
    path.write_text(r'[{"a": inf, "inf": [-nan, nan,-inf]}, {"b": "\" nan, inf"}, NaN]')
    assert [item for _, item in json_stream.items(path, "traceEvents", "trace")] == [
        {"a": "NaN", "inf": ["NaN"] * 3}, {"b": '" nan, inf'}, "NaN",
    ]  # fmt: skip


def test_launches_of_other_accelerators_are_known(tmp_path):
    trace = Trace()
    trace.work("k", 10, 10, trace.call("urEnqueueKernelLaunch", 0, 5, cat="xpu_runtime"))
    trace.call("urQueueFinish", 6, 20, cat="xpu_runtime")
    trace.call("urEventWait", 30, 1, cat="xpu_runtime")
    recording = load(trace, tmp_path)
    assert (recording.unmatched, [c.kind for c in recording.calls]) == (0, [CallKind.LAUNCH, CallKind.STREAM_SYNC, CallKind.EVENT_SYNC])


CASES = shared_folder("cases")


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
@pytest.mark.parametrize("name", ["09_utf16", "09_inf_nan", "09_only_the_end_is_missing", "14_xpu"])
def test_unusual_files_of_others_are_read(name):
    recording = load_trace(CASES / "traces" / f"{name}.json")
    steps = iterations.find(recording).of_work
    ends = [max(work.end_s for work, step in zip(recording.works, steps, strict=True) if step == number) for number in range(5)]
    assert (len(recording.works), recording.unmatched) == (100, 0)
    assert [round(1e3 * (after - before), 2) for before, after in pairwise(ends)] == [9.05] * 4


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
@pytest.mark.parametrize(("name", "says"), [("git_lfs_pointer", "git lfs pull"), ("launches_without_kernels", "its 100 launches show")])
def test_unusable_files_of_others_are_refused_for_what_they_are(name, says):
    with pytest.raises(UnusableFileError, match=says):
        load_trace(CASES / "traces" / f"09_{name}.json")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UnusableFileError, match="no trace at"):
        load_trace(tmp_path / "none.json")
    with pytest.raises(UnusableFileError, match="cannot read"):
        load_trace(tmp_path)


@pytest.mark.thorough
def test_memory_does_not_grow_with_what_is_passed_over(tmp_path):
    trace = simple()
    filler = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "args": {"Call stack": "x" * 1000}}
    trace.events += [filler] * 20_000
    path = trace.save(tmp_path / "trace.json.gz")
    tracemalloc.start()
    recording = load_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(recording.works) == 3
    assert peak < 12e6  # the text is 21 MB


def test_an_endless_value_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "LARGEST_ITEM", 1 << 16)
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 1 << 12)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": ["' + "x" * (1 << 20))
    with pytest.raises(UnusableFileError, match="no end of a value"):
        load_trace(path)


def test_explicit_ids_say_who_waits_for_whom(tmp_path):
    """The event was recorded before the second kernel of its stream, so only the first kernel is waited for."""
    trace = Trace()
    trace.kernel("a", 0, 10, 20, stream=7)
    record = trace.call("cudaEventRecord", 6, 1)
    trace.kernel("b", 8, 30, 200, stream=7)
    wait = trace.call("cudaStreamWaitEvent", 15, 1)
    trace.sync("Stream Wait Event", 15, 1, wait, stream=20, wait_on_stream=7, wait_on_cuda_event_record_corr_id=record)
    trace.kernel("other", 17, 24, 5, stream=9)
    trace.kernel("c", 25, 32, 10, stream=20)
    recording = load(trace, tmp_path)
    names = [w.name for w in recording.works]
    assert {names[i]: [names[j] for j in others] for i, others in recover(recording).work_after.items()} == {"c": ["a"]}


def test_a_wait_without_ids_after_a_launch_to_another_stream_is_for_that_stream(tmp_path):
    trace = Trace()
    trace.kernel("unrelated", 0, 7, 10, stream=3)
    trace.kernel("a", 8, 15, 50, stream=7)
    trace.call("cudaStreamWaitEvent", 14, 1)
    trace.kernel("nccl_all_reduce", 16, 66, 20, stream=20)
    recording = load(trace, tmp_path)
    assert recover(recording).work_after == {2: [1]}


def test_a_wait_without_ids_takes_the_latest_work_that_had_ended(tmp_path):
    """Compute waits for the first collective while the second is running: the recorded times rule out an edge from the second."""
    trace = Trace()
    trace.kernel("a", 0, 7, 10, stream=7)
    trace.kernel("nccl_1", 10, 17, 50, stream=20)
    trace.kernel("nccl_2", 20, 67, 100, stream=20)
    trace.kernel("b", 30, 37, 10, stream=7)
    trace.call("cudaStreamWaitEvent", 38, 1)
    trace.kernel("c", 40, 68, 10, stream=7)
    recording = load(trace, tmp_path)
    names = [w.name for w in recording.works]
    assert {names[i]: [names[j] for j in others] for i, others in recover(recording).work_after.items()} == {"c": ["nccl_1"]}


def test_a_late_start_without_a_call_waits_for_what_ended_just_before(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 100, stream=7)
    trace.kernel("b", 10, 108, 10, stream=20)
    order = recover(load(trace, tmp_path))
    assert order.work_after == {1: [0]}
    assert order.delayed == {}


def test_a_late_start_in_the_last_wave_of_a_large_kernel_waits_for_it(tmp_path):
    trace = Trace()
    trace.kernel("large", 0, 7, 1000, stream=7)
    trace.kernel("b", 10, 950, 10, stream=20)
    assert recover(load(trace, tmp_path)).work_after == {1: [0]}


def test_what_nothing_explains_is_reported(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 10, stream=7)
    trace.kernel("b", 20, 27, 10, stream=7)
    trace.kernel("c", 40, 247, 10, stream=7)
    order = recover(load(trace, tmp_path))
    assert {i: us(s) for i, s in order.delayed.items()} == {2: 200.0}


def test_work_without_a_launch_waits_for_every_stream_that_had_ended(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 100, stream=7)
    trace.work("b", 150, 10, 999, stream=20)
    assert recover(load(trace, tmp_path)).work_after == {1: [0]}


def test_host_waits(tmp_path):
    trace = Trace()
    trace.kernel("a", 0, 7, 100, stream=7)
    trace.kernel("b", 10, 17, 30, stream=20)
    trace.call("cudaStreamSynchronize", 16, 33)  # of the stream used last
    trace.call("cudaDeviceSynchronize", 50, 60)
    trace.work("Memcpy DtoH (Device -> Pageable)", 120, 10, trace.call("cudaMemcpyAsync", 112, 20), cat="gpu_memcpy")
    trace.work("Memcpy DtoH (Device -> Pinned)", 145, 10, trace.call("cudaMemcpyAsync", 140, 4), cat="gpu_memcpy")
    trace.call("cudaEventSynchronize", 146, 12)
    recording = load(trace, tmp_path)
    names = {number: call.name for number, call in enumerate(recording.calls)}
    waits = [(names[number], sorted(works)) for number, works in sorted(recover(recording).call_after.items())]
    assert waits == [
        ("cudaStreamSynchronize", [1]), ("cudaDeviceSynchronize", [0, 1]), ("cudaMemcpyAsync", [2]), ("cudaEventSynchronize", [3]),
    ]  # fmt: skip


def test_a_launch_into_a_full_queue_waits_for_work_that_ended(tmp_path):
    trace = Trace()
    for i in range(400):
        trace.kernel("k", i * 2, 10 + i * 100, 100, call=1)
    trace.kernel("k", 900, 40_010, 100, call=9_200)  # until 10,100
    assert recover(load(trace, tmp_path)).call_after == {400: [99]}


def test_iterations_by_profiler_steps_follow_the_launch(tmp_path):
    trace = Trace()
    for step in range(3):
        trace.annotate(f"ProfilerStep#{step + 5}", step * 100, 100)
        trace.annotate(f"ProfilerStep#{step + 5}", step * 300, 300, cat="gpu_user_annotation")
        trace.kernel("k", step * 100 + 10, 50 + step * 300, 250)
    divided = iterations.find(load(trace, tmp_path))
    assert divided.names == ("ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7")
    assert divided.of_work == (0, 1, 2)


def test_iterations_by_optimizer_steps_end_with_them(tmp_path):
    trace = Trace()
    for step in range(2):
        trace.kernel("k", step * 100, step * 100 + 20, 30)
        trace.annotate("Optimizer.step#Adam.step", step * 100 + 60, 30)
        trace.annotate("Optimizer.step#Wrapped.step", step * 100 + 61, 20)
        trace.kernel("u", step * 100 + 65, step * 100 + 75, 10)
    divided = iterations.find(load(trace, tmp_path))
    assert divided.names == ("optimizer step 1", "optimizer step 2")
    assert divided.of_work == (0, 0, 1, 1)


def test_iterations_by_the_repeating_pattern_of_kernels(tmp_path):
    """Layers repeat within the pattern; the loss separates the iterations. It begins with two kernels of an earlier iteration."""
    trace = Trace()
    names = ["bwd", "bwd"] + ["fwd", "relu"] * 5 + ["loss"] + ["bwd"] * 9
    names += (["fwd", "relu"] * 5 + ["loss"] + ["bwd"] * 9) * 2
    for i, name in enumerate(names):
        trace.kernel(name, i * 20, i * 20 + 8, 10)
    divided = iterations.find(load(trace, tmp_path))
    assert divided.source == "the repeating pattern of kernels"
    assert [divided.of_work.count(step) for step in (-1, 0, 1, 2)] == [2, 20, 20, 20]


def four_steps() -> Trace:
    """A trace of steps of 100 us: three kernels, for which the host waits."""
    trace = Trace()
    for step in range(4):
        trace.annotate(f"ProfilerStep#{step}", step * 100, 99)
        for i in range(3):
            trace.kernel("k", step * 100 + i * 5, step * 100 + 8 + i * 20, 19, call=2)
        trace.call("cudaDeviceSynchronize", step * 100 + 20, 60)
    return trace


def test_a_step_that_lost_kernels_does_not_count(tmp_path):
    """The profiler had no room for some kernels of the third step, and wrote no times for those of the fourth."""
    trace = four_steps()
    kernels = [event for event in trace.events if event["cat"] == "kernel"]
    trace.events.remove(kernels[7])
    for event in kernels[9:]:
        event["ts"] = -4e14
    divided = iterations.find(load(trace, tmp_path))
    assert divided.names == ("ProfilerStep#0", "ProfilerStep#1")
    assert divided.of_work == (0, 0, 0, 1, 1, 1, 2, 2)
    assert divided.source.endswith("kernels that they launched were not recorded: ProfilerStep#2 (1 of 3), ProfilerStep#3 (3 of 3)")


def test_a_launch_of_the_runtime_that_the_driver_makes_lost_no_kernel(tmp_path):
    trace = Trace()
    trace.call("cudaLaunchKernel", 0, 9)
    trace.kernel("k", 2, 12, 10)
    trace.call("cuLaunchKernel", 3, 2, cat="cuda_driver")
    trace.call("cudaLaunchKernel", 10, 2)
    assert load(trace, tmp_path).lost_s == (10e-6,)


@pytest.mark.parametrize("lost", [[3], [5, 6, 9], [6, 7, 8, 9, 10, 11]])
def test_work_whose_launch_was_not_recorded_belongs_to_the_step_in_which_the_device_was_idle_before_it(tmp_path, lost):
    trace = four_steps()
    launches = [event for event in trace.events if event["name"] == "cudaLaunchKernel"]
    for number in lost:
        trace.events.remove(launches[number])
    assert iterations.find(load(trace, tmp_path)).of_work == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)


def layers(passes: int, number: int) -> Trace:
    """A trace of forward passes of 100 us, each of equal layers of three kernels."""
    trace = Trace()
    for i in range(passes):
        for layer in range(number):
            for at, name in enumerate(("product", "norm", "activation")):
                launch = 100 * i + layer * 9 + at * 3
                trace.kernel(name, launch, launch + 2, 3, call=1)
    return trace


@pytest.mark.parametrize("passes", [1, 3])
def test_what_spans_layers_is_an_iteration_and_the_layers_are_not(tmp_path, passes):
    annotated, of_module, unnamed = layers(passes, 8), layers(passes, 8), layers(passes, 8)
    for i in range(passes):
        annotated.annotate(f"execute_context_{i}", 100 * i, 80)
        of_module.op("nn.Module: GPT_0", 100 * i, 80, cat="python_function")
    assert iterations.find(load(annotated, tmp_path)).names == tuple(f"execute_context_{i} #{i + 1}" for i in range(passes))
    assert iterations.find(load(of_module, tmp_path)).names == tuple(f"GPT_0 #{i + 1}" for i in range(passes))
    assert iterations.find(load(unnamed, tmp_path)).names[:2] == ("iteration 1", "iteration 2")


@pytest.mark.parametrize(("module", "number"), [("GPT_0", 4), ("Layer_{}", 1)])
def test_calls_of_one_module_are_iterations_under_an_annotation_and_different_modules_are_layers(tmp_path, module, number):
    trace = layers(4, 1)
    trace.annotate("all", -5, 500)
    for i in range(4):
        trace.op(f"nn.Module: {module.format(i)}", 100 * i - 1, 80, cat="python_function")
    assert len(iterations.find(load(trace, tmp_path)).names) == number


def test_one_kernel_is_one_iteration(tmp_path):
    trace = Trace()
    trace.kernel("k", 0, 8, 10)
    divided = iterations.find(load(trace, tmp_path))
    assert divided.names == ("recording",)
    assert divided.of_work == (0,)


def test_the_forward_thread_hands_over_to_autograd(tmp_path):
    trace = Trace()
    trace.kernel("f", 0, 10, 5, thread=1)
    for i in range(10):
        trace.kernel("b", 30 + i * 20, 40 + i * 20, 5, thread=2)
    trace.kernel("u", 230, 240, 5, thread=1)
    assert hand_overs(load(trace, tmp_path).calls) == {1: 0, 11: 10}


def test_threads_that_work_side_by_side_hand_over_nothing(tmp_path):
    trace = Trace()
    for i in range(50):
        trace.kernel("f", i * 20, i * 20 + 8, 5, thread=1)
        trace.kernel("g", i * 20 + 10, i * 20 + 18, 5, thread=2, stream=20)
    assert hand_overs(load(trace, tmp_path).calls) == {}


def test_thousands_of_streams_do_not_multiply_the_edges(tmp_path):
    trace = Trace()
    for i in range(6000):
        trace.call("cudaStreamWaitEvent", i * 10, 1)
        trace.kernel("k", i * 10 + 2, i * 10 + 9, 30, stream=i % 3000)
        if i % 4 == 0:
            trace.call("cudaDeviceSynchronize", i * 10 + 8, 1)
    recording = load(trace, tmp_path)
    order = recover(recording)
    assert recording.streams == 3000
    assert sum(map(len, order.work_after.values())) < 64 * len(recording.works)
    assert sum(map(len, order.call_after.values())) < 2 * len(recording.works)  # a device sync waits only for what came since the last


@pytest.mark.parametrize(
    ("kernel", "moves"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", True),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", True),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", True),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int, int)", True),
        ("nvshmemi_signal_op_kernel(unsigned long*)", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<half, 8>(Params)", True),
        ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, half>(half*)", True),
        ("void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel(Params)", True),
        ("void allreduce7<int>(mscclpp::DeviceHandle<mscclpp::MemoryChannel>*, int)", True),
        ("void reduce_scatter_kernel<8, half>(half*)", True),
        ("triton_poi_fused_add_all_reduce_wait_tensor_0", False),
        ("void layer_norm_with_BlockAllReduce<float>(float*)", False),
        ("void cdpsk::ep::CUB_200302::DeviceScanKernel<int>(int*)", False),
        ("void flash_fwd_mla_combine_kernel<float>(Params)", False),
        ("volta_sgemm_64x64_nt", False),
    ],
)
def test_kernels_that_move_data_between_devices_are_communication(kernel, moves):
    assert is_communication(kernel) is moves


# Traces that are damaged or made to be slow: read in bounded time and memory, or refused in one line.


def one_kernel(**args) -> Trace:
    trace = Trace()
    trace.kernel("k", 0, 8, 10, **args)
    return trace


def read(trace: Trace, tmp_path):
    return load_trace(trace.save(tmp_path / "trace.json"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(json_stream, "LARGEST_TEXT", 1 << 22)
    text = b'{"traceEvents":[' + b" " * (1 << 23) + b"]}"
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    tracemalloc.start()
    with pytest.raises(UnusableFileError, match="holds more than 4 MiB of text; record fewer steps"):
        load_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_too_many_events_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "MOST_ITEMS", 100)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents":[' + "{}," * 200 + "{}]}")
    with pytest.raises(UnusableFileError, match="more than 100 entries in traceEvents; record fewer steps"):
        load_trace(path)


def test_too_many_kernels_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(collected, "MOST_EVENTS", 10)
    trace = Trace()
    for i in range(6):
        trace.kernel("k", 10 * i, 10 * i + 2, 5)
    with pytest.raises(UnusableFileError, match="more than 10 kernels and CUDA calls; record fewer steps"):
        read(trace, tmp_path)


def test_work_of_one_correlation_id_is_joined_to_the_latest_call_before_it(tmp_path):
    """Thousands of calls and kernels with one id: a search per kernel, not a pass over all calls."""
    trace = Trace()
    for i in range(3000):
        trace.call("cudaLaunchKernel", 10 * i, 5, correlation=7)
        trace.work("k", 10 * i + 6, 3, 7)
    trace.work("k", 30_000, 3, 7)
    recording = read(trace, tmp_path)
    assert [work.call for work in recording.works] == [*range(3000), 2999]


def test_thousands_of_threads_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(synchronization, "MOST_PAIRS", 10_000)
    trace = Trace()
    for i in range(100):
        trace.kernel("k", 10 * i, 10 * i + 2, 5, thread=i)
    with pytest.raises(UnusableFileError, match="100 kernels on 1 streams, launched by 100 threads: too many at once to replay"):
        recover(read(trace, tmp_path))


def test_thousands_of_kernels_at_once_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(synchronization, "MOST_PAIRS", 1000)
    trace = Trace()
    for i in range(100):
        trace.kernel("k", i, i + 2, 10_000, stream=i)
    with pytest.raises(UnusableFileError, match="100 kernels on 100 streams, launched by 1 threads: too many at once to replay"):
        recover(read(trace, tmp_path))


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "args",
    [
        {"stream": f"stream {HUGE}"}, {"stream": 10**400}, {"device": 10**400}, {"grid": [10**18] * 1000}, {"grid": [10**400, 1, 1]},
        {"bytes": 10**400}, {"registers per thread": HUGE}, {"correlation": f"-{HUGE}"}, {"block": [[[]]]},
    ],
)  # fmt: skip
def test_numbers_beyond_64_bits_count_as_missing(tmp_path, args):
    trace = Trace()
    trace.work("k", 0, 10, -1)
    trace.events[0]["args"] |= args
    (work,) = read(trace, tmp_path).works
    assert all(abs(number) < 2**63 for number in (work.device, work.stream, work.registers))
    assert work.bytes == 0.0


@pytest.mark.parametrize("time", ["1" * 400, "1e308", "1e300", "1e999", 10**400, "nan", "-", "²"])
def test_events_at_impossible_times_are_left_out_with_a_note(tmp_path, time):
    trace = one_kernel()
    trace.kernel("k", 20, 28, 10)
    trace.events[0]["ts"] = time
    trace.events[1]["dur"] = time
    recording = read(trace, tmp_path)
    assert len(recording.works) == len(recording.calls) == 1
    assert recording.notes[0] == "2 events without usable times were dropped"


def test_names_can_be_printed_and_saved(tmp_path):
    trace = one_kernel()
    trace.events[1]["name"] = "half \ud800 character" + "x" * 10_000
    (work,) = read(trace, tmp_path).works
    assert work.name.startswith("half ? character")
    assert len(work.name.encode()) <= collected.LONGEST_NAME


@pytest.mark.parametrize("label", [{}, [[]], None, HUGE, "\ud800", 1.5])
def test_a_thread_may_be_anything(tmp_path, label):
    trace = one_kernel()
    trace.events[0]["tid"] = label
    trace.events[0]["cat"] = "cuda_runtime"
    assert [call.thread for call in read(trace, tmp_path).calls] == [0]


@pytest.mark.parametrize("category", [{}, [], 7, None, True])
def test_a_category_may_be_anything(tmp_path, category):
    trace = one_kernel()
    trace.annotate("x", 0, 1, cat=category)
    assert len(read(trace, tmp_path).works) == 1


def test_a_pipe_and_a_device_are_no_traces(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UnusableFileError, match="it is a device or a pipe, not a file"):
            load_trace(path)
    with pytest.raises(UnusableFileError, match=r"embedded null (byte|character)"):
        load_trace(f"{tmp_path}/a\0b")


def test_a_document_that_is_only_nested_brackets_is_refused(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": []})[:-2] + "[" * 200_000)
    with pytest.raises(UnusableFileError, match="nested too deeply"):
        load_trace(tmp_path / "trace.json")
