"""Traces that are damaged or made to be slow: read in bounded time and memory, or refused in one line."""

import gzip
import json
import tracemalloc

import pytest

from tests.support.kineto_traces import Trace
from traces.errors import UnusableFileError
from traces.formats import json_stream, kineto, synchronization
from traces.formats.kineto import load_trace
from traces.formats.synchronization import recover


def simple(**args) -> Trace:
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
    monkeypatch.setattr(kineto, "MOST_EVENTS", 10)
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
    trace = simple()
    trace.kernel("k", 20, 28, 10)
    trace.events[0]["ts"] = time
    trace.events[1]["dur"] = time
    recording = read(trace, tmp_path)
    assert len(recording.works) == len(recording.calls) == 1
    assert recording.notes[0] == "2 events without usable times were left out"


def test_names_can_be_printed_and_saved(tmp_path):
    trace = simple()
    trace.events[1]["name"] = "half \ud800 character" + "x" * 10_000
    (work,) = read(trace, tmp_path).works
    assert work.name.startswith("half ? character")
    assert len(work.name.encode()) <= kineto.LONGEST_NAME


@pytest.mark.parametrize("label", [{}, [[]], None, HUGE, "\ud800", 1.5])
def test_a_thread_may_be_anything(tmp_path, label):
    trace = simple()
    trace.events[0]["tid"] = label
    trace.events[0]["cat"] = "cuda_runtime"
    assert [call.thread for call in read(trace, tmp_path).calls] == [0]


@pytest.mark.parametrize("category", [{}, [], 7, None, True])
def test_a_category_may_be_anything(tmp_path, category):
    trace = simple()
    trace.annotate("x", 0, 1, cat=category)
    assert len(read(trace, tmp_path).works) == 1


def test_a_pipe_and_a_device_are_no_traces(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UnusableFileError, match="it is a device or a pipe, not a file"):
            load_trace(path)
    with pytest.raises(UnusableFileError, match="embedded null byte"):
        load_trace(f"{tmp_path}/a\0b")


def test_a_document_that_is_only_nested_brackets_is_refused(tmp_path):
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": []})[:-2] + "[" * 200_000)
    with pytest.raises(UnusableFileError, match="nested too deeply"):
        load_trace(tmp_path / "trace.json")
