"""The Chrome trace: a golden example, and rules that every trace must satisfy for the viewer."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace

from simulator.strategies.pipeline import orders
from tests.support.page_samples import two_lanes
from tests.support.small_pipelines import pipeline_timeline
from traces.documents.spans import critical_spans, lanes
from traces.documents.timeline import DeviceUse, HeldByKind, Span, Timeline
from traces.formats.perfetto import export, trace_document


def test_golden_trace_of_one_arrow():
    document = trace_document({"predicted": two_lanes()})
    place = {"pid": 1, "tid": 1}
    args = {"layer": "block<1>", "microbatch": 0, "iteration": 0}
    assert document["traceEvents"] == [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "predicted gpu0"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 1}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "stream 0"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "args": {"sort_index": 1}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "stream 1"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": 2}},
        {"ph": "X", "name": 'a "λ"\n', "cat": "forward", **place, "ts": 0.0, "dur": 1000.0,
         "args": {"phase": "forward", **args, "cause": "start"}},
        {"ph": "X", "name": "b", "cat": "transfer", "pid": 1, "tid": 2, "ts": 0.0, "dur": 500.0,
         "args": {"phase": "transfer", **args, "layer": ""}},
        {"ph": "C", "name": "memory", "pid": 1, "tid": 0, "ts": 0.0, "args": {"MB": 1.0}},
        {"ph": "s", "name": "critical path: dependency", "cat": "arrow", "id": "predicted 0", **place, "ts": 999.999},
        {"ph": "X", "name": "c", "cat": "backward", **place, "ts": 1000.0, "dur": 2000.0,
         "args": {"phase": "backward", **args, "cause": "dependency"}},
        {"ph": "f", "name": "critical path: dependency", "cat": "arrow", "id": "predicted 0", **place, "ts": 1000.0, "bp": "e"},
        {"ph": "C", "name": "memory", "pid": 1, "tid": 0, "ts": 2000.0, "args": {"MB": 2.5}},
    ]  # fmt: skip
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"]["predicted"] == {"step_s": 0.003, "mode": "eager"}


def test_a_counter_per_kind_of_value_where_it_changes():
    held = HeldByKind((0.0, 0.001, 0.002), {"parameter": (10**6, 10**6, 10**6), "activation": (0, 2 * 10**6, 0)})
    events = trace_document({"predicted": replace(two_lanes(memory=False), memory_kinds={"gpu0": held})})["traceEvents"]
    assert [(e["name"], e["ts"], e["args"]["MB"]) for e in events if e["ph"] == "C"] == [
        ("memory: parameter", 0.0, 1.0), ("memory: activation", 0.0, 0.0), ("memory: activation", 1000.0, 2.0),
        ("memory: activation", 2000.0, 0.0),
    ]  # fmt: skip


def test_file_reads_back_plain_and_gzip(tmp_path):
    timelines = {"predicted": two_lanes(), "measured": two_lanes("measured", shift=7.0)}
    plain = json.loads(export(tmp_path / "t.json", timelines).read_text())
    packed = json.loads(gzip.decompress(export(tmp_path / "t.json.gz", timelines).read_bytes()))
    assert plain == packed == json.loads(json.dumps(trace_document(timelines)))


def test_viewer_rules_hold_for_two_timelines():
    events = trace_document({"predicted": two_lanes(), "measured": two_lanes("measured", shift=7.0)})["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "predicted gpu0", 2: "measured gpu0"}
    timed = [e for e in events if e["ph"] != "M"]
    assert all(e["ts"] >= 0 for e in timed)
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    slices = [e for e in timed if e["ph"] == "X"]
    starts = [e["ts"] for e in slices if e["name"].startswith("a")]
    assert len(set(starts)) == 1, "both steady periods begin together"
    pairs = defaultdict(list)
    for event in timed:
        if event["ph"] in "sf":
            pairs[event["id"]].append(event)
            at = [s for s in slices if (s["pid"], s["tid"]) == (event["pid"], event["tid"]) and s["ts"] <= event["ts"] < s["ts"] + s["dur"]]
            assert len(at) == 1, "an arrow's end lies on exactly one slice"
    assert len(pairs) == 2  # the critical path of both
    assert all([e["ph"] for e in pair] == ["s", "f"] for pair in pairs.values())


def test_overlapping_spans_of_a_lane_get_a_row_of_their_own():
    spans = (
        Span("a", "d", "0", 0.0, 2e-3, "forward"),
        Span("b", "d", "0", 1e-3, 3e-3, "forward"),
        Span("c", "d", "0", 2e-3, 3e-3, "forward"),
    )
    events = trace_document({"measured": Timeline("measured", spans, 3e-3, (0.0, 3e-3))})["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["0", "0 (2)"]
    assert [(e["name"], e["tid"]) for e in events if e["ph"] == "X"] == [("a", 1), ("b", 2), ("c", 1)]


def test_critical_links_without_a_span_are_left_out():
    timeline = two_lanes()
    assert [span.task for span, _ in critical_spans(timeline)] == ['a "λ"\n', "c"]
    moved = two_lanes(shift=1.0)
    assert critical_spans(Timeline("predicted", moved.spans, 1.0, (0.0, 1.0), critical_path=timeline.critical_path)) == ()


def test_lanes_are_in_the_timelines_device_order_and_count_as_people_do():
    spans = [Span("t", device, lane, 0.0, 1.0, "forward") for device, lane in (("b", "s10"), ("a", "s1"), ("b", "s2"), ("b", "s2"))]
    timeline = Timeline("predicted", tuple(spans), 1.0, (0.0, 1.0), devices=(DeviceUse("a", 1.0, 0), DeviceUse("b", 1.0, 0)))
    assert lanes(timeline, timeline.spans) == (("a", "s1"), ("b", "s2"), ("b", "s10"))


def test_a_pipelines_devices_have_a_thread_with_their_actions():
    events = trace_document({"predicted": pipeline_timeline(orders.gpipe_order(2, 2))})["traceEvents"]
    schedules = {e["pid"]: e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "schedule"}
    assert sorted(schedules) == [1, 2]
    slices = [e for e in events if e["ph"] == "X" and schedules[e["pid"]] == e["tid"]]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices if e["pid"] == 1] == [
        ("0F0", 0.0, 1000.0), ("0F1", 1000.0, 1000.0), ("0B0", 5000.0, 2000.0), ("0B1", 7000.0, 2000.0),
    ]  # fmt: skip
    assert {e["args"]["tasks"] for e in slices} == {2}
