"""Exports of Nsight Systems, written from recordings: no real one was at hand. Times of exports are nanoseconds."""

import sqlite3

import pytest
from hypothesis import given

from simulator.replay.compare import compare
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.replayed import replayed
from tests.support.fuzzing import damaged_bytes, fuzzed, sound
from tests.support.kineto_traces import Trace
from tests.support.nsys_exports import Export, write_export
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from tests.support.small_replays import load_replay
from tests.support.small_traces import write_trace
from tests.support.training_traces import TrainingJob, write_ranks
from traces.errors import Code
from traces.formats import collected, iterations, nsys, sqlite_tables
from traces.formats.reading import load_ranks, load_trace
from traces.formats.recording import COLLECTIVE, KERNEL, MEMCPY, Recording


def as_known(recording: Recording) -> dict:
    """All that both formats hold, on the clock of the recordings; NVTX has neither shapes, types, autograd's numbers nor the source."""
    shift = recording.origin_ns

    def on_clock(item):
        return item._replace(start_s=round(item.start_s * 1e9) + shift, end_s=round(item.end_s * 1e9) + shift)

    return {
        "works": [on_clock(work) for work in recording.works],
        "calls": [on_clock(call) for call in recording.calls],
        "syncs": recording.syncs,
        "annotations": [on_clock(annotation) for annotation in recording.annotations],
        "operators": [on_clock(operator)._replace(shapes=None, types=(), sequence=-1) for operator in recording.operators.all],
        "launched by": dict(recording.operators.of_call),
        "notes": recording.notes,
    }


def check_same(trace, folder):
    """Check that a trace and the export of what it recorded are the same recording, with the same replay."""
    recording = load_trace(trace)
    export = write_export(folder / "report.sqlite", [recording])
    assert as_known(load_trace(export)) == as_known(recording)
    replays = [load_replay(path) for path in (trace, export)]
    results = [compare(replay, simulate_replay(replay)) for replay in replays]
    assert results[1].period_simulated_s == pytest.approx(results[0].period_simulated_s, rel=1e-9)
    assert [step.name for step in results[1].steps] == [step.name for step in results[0].steps]


def test_one_job_has_one_recording_and_one_replay_in_both_formats(tmp_path):
    check_same(write_trace(tmp_path / "steps.json"), tmp_path)
    check_same(TrainingJob().save(tmp_path / "training.json"), tmp_path)


REAL = [
    path
    for folder, name in (("kineto_more", "a100_compiled_graphs"), ("kineto", "a100_event_sync"), ("kineto_more", "mi300x_resnet_ddp"))
    if shared_folder(folder)
    for path in shared_folder(folder).glob(f"{name}*")
]


@pytest.mark.thorough
@pytest.mark.skipif(not REAL, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
@pytest.mark.parametrize("trace", REAL, ids=lambda path: path.name.partition(".")[0])
def test_a_real_job_has_one_recording_and_one_replay_in_both_formats(trace, tmp_path):
    check_same(trace, tmp_path)


def test_kinds_of_work_and_calls_have_the_names_of_the_other_profiler(tmp_path):
    export = Export(tmp_path / "report.sqlite")
    launch = {"start": 0, "end": 10, "globalTid": 7 << 24 | 3}
    for number, name in enumerate(
        ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_ptsz_v3020", "cudaLaunchKernel_v7000", "cudaMalloc_v3020"), 1
    ):
        export.insert("CUPTI_ACTIVITY_KIND_RUNTIME", **launch, correlationId=number, nameId=export.string(name))
    common = {"globalPid": 7 << 24, "streamId": 13}
    export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", **common, start=30, end=40, correlationId=2, copyKind=1, srcKind=1, dstKind=2, bytes=64)
    kernels = ((20, 1, "void gemm<float>(int)"), (50, 3, "ncclDevKernel_AllReduce"))
    for start, number, name in kernels:
        export.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", **common, start=start, end=start + 5, correlationId=number, demangledName=export.string(name),
            gridX=2, gridY=3, gridZ=1, blockX=32, blockY=2, blockZ=1, registersPerThread=40, staticSharedMemory=16, dynamicSharedMemory=48,
        )  # fmt: skip
    export.insert("TARGET_INFO_GPU", id=0, name="NVIDIA B200", smCount=148, cuDevice=0, computeMajor=10, computeMinor=0, totalMemory=2**37)
    recording = load_trace(export.close())
    assert {work.stream for work in recording.works} == {13}
    assert [(work.name, work.category) for work in recording.works] == [
        ("void gemm<float>(int)", KERNEL), ("Memcpy HtoD (Pinned -> Device)", MEMCPY), ("ncclDevKernel_AllReduce", COLLECTIVE),
    ]  # fmt: skip
    assert [call.name for call in recording.calls] == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaLaunchKernel", "cudaMalloc"]
    first = recording.works[0]
    assert (first.grid, first.block, first.registers, first.shared_bytes) == (6, 64, 40, 64)
    assert recording.operators.properties[0] == {"name": "NVIDIA B200", "numSms": 148, "computeMajor": 10, "totalGlobalMem": 2**37}


def graph_export(path, rows):
    """An export in which one call launches a graph; `rows`: table and cells of what it ran."""
    export = Export(path)
    graph = {"correlationId": 5, "globalPid": 7 << 24, "streamId": 7}
    export.insert(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        start=0,
        end=10_000,
        globalTid=7 << 24,
        correlationId=5,
        nameId=export.string("cudaGraphLaunch_v10000"),
    )
    for table, cells in rows:
        export.insert(table, **graph, **cells)
    return export.close()


def test_a_graph_is_one_work_unless_its_nodes_were_recorded(tmp_path):
    whole = [("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {"start": 12_000, "end": 99_000, "graphId": 3})]
    recording = load_trace(graph_export(tmp_path / "whole.sqlite", whole))
    assert [(work.name, work.call) for work in recording.works] == [("CUDA graph 3", 0)]
    nodes = [("CUPTI_ACTIVITY_KIND_KERNEL", {"start": at, "end": at + 9_000, "graphNodeId": at}) for at in (12_000, 22_000)]
    recording = load_trace(graph_export(tmp_path / "nodes.sqlite", nodes))
    assert [(work.name, work.call) for work in recording.works] == [("kernel", 0)] * 2
    assert recording.calls[0].name == "cudaGraphLaunch"
    assert recording.notes == ()


def stepped(path, ranges):
    """An export with a kernel launched every 100 ns and NVTX ranges (name, start, end) around the launches."""
    export = Export(path)
    for number in range(1, 41):
        at = number * 100
        export.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=at,
            end=at + 10,
            globalTid=7 << 24,
            correlationId=number,
            nameId=export.string("cudaLaunchKernel"),
        )
        export.insert("CUPTI_ACTIVITY_KIND_KERNEL", start=at + 20, end=at + 60, correlationId=number, globalPid=7 << 24, streamId=7)
    for name, start, end in ranges:
        export.range(name, start, end, 7 << 24)
    return iterations.find(load_trace(export.close()))


def test_ranges_that_repeat_around_the_launches_are_the_steps(tmp_path):
    steps = [(f"iteration {number}", 100 + number * 1000, 1100 + number * 1000) for number in range(4)]
    forward = [("forward", start, start + 300) for _, start, _ in steps]
    ops = [("aten::mm", at * 100, at * 100 + 50) for at in range(1, 41)]
    epochs = [("epoch 1", 50, 2090), ("epoch 2", 2090, 4200)]
    found = stepped(tmp_path / "report.sqlite", [*steps, *forward, *ops, *epochs])
    assert found.names == ("NVTX iteration 0", "NVTX iteration 1", "NVTX iteration 2", "NVTX iteration 3")
    assert found.source == "NVTX ranges"
    assert found.of_work == (0,) * 10 + (1,) * 10 + (2,) * 10 + (3,) * 10


def test_ranges_of_one_name_are_numbered_and_short_ones_are_no_steps(tmp_path):
    steps = [("train", 100 + number * 1000, 1100 + number * 1000) for number in range(4)]
    assert stepped(tmp_path / "report.sqlite", steps).names == ("NVTX train #1", "NVTX train #2", "NVTX train #3", "NVTX train #4")
    short = [("step", start, start + 300) for _, start, _ in steps]
    assert stepped(tmp_path / "report.sqlite", short).source == "the repeating pattern of kernels"


def test_ops_of_emit_nvtx_have_their_name_and_sizes(tmp_path):
    export = Export(tmp_path / "report.sqlite")
    export.insert("CUPTI_ACTIVITY_KIND_KERNEL", start=0, end=9, globalPid=7 << 24)
    export.range("aten::mm, op_id = 5, seq = 12, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0)]", 0, 9, 7 << 24)
    export.range("aten::relu, seq = 13", 10, 12, 7 << 24)
    operators = load_trace(export.close()).operators.all
    assert [(operator.name, operator.shapes) for operator in operators] == [("aten::mm", ((2, 3), (3, 4))), ("aten::relu", None)]


def test_the_processes_of_an_export_are_the_ranks_of_a_job(tmp_path):
    traces = write_ranks(tmp_path, [TrainingJob()] * 2)
    export = write_export(tmp_path / "report.sqlite", [load_trace(trace) for trace in traces])
    assert [(recording.rank, recording.world_size) for recording in load_ranks(export)] == [(0, 2), (1, 2)]
    both = [replayed(paths).result for paths in (traces, [export])]
    assert both[1].gpu_period_simulated_s == pytest.approx(both[0].gpu_period_simulated_s)
    assert [note for note in both[1].notes if "joined" in note] == [note for note in both[0].notes if "joined" in note]
    with refuses(Code.FILE, "has GPU work of 2 processes; expected one"):
        load_trace(export)


def test_exports_of_one_process_each_are_ranks_too(tmp_path):
    traces = write_ranks(tmp_path, [TrainingJob()] * 2)
    exports = [write_export(tmp_path / f"{number}.sqlite", [load_trace(trace)]) for number, trace in enumerate(traces)]
    assert {name.partition(":")[0] for name in (task.name for task in load_replay(*exports).plan.tasks)} == {"rank 0", "rank 1"}


def test_a_report_that_was_not_exported_says_how(tmp_path):
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"whatever")
    with refuses(Code.FILE, "nsys export --type sqlite .*report.nsys-rep"):
        load_trace(report)


HOSTILE = {
    "no tables": "",
    "of another program": "CREATE TABLE other (id INTEGER)",
    "no work": "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)",
    "no times": "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (begin); "
    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)",
    "a view that never ends": "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end); CREATE VIEW "
    "CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start, end) AS (SELECT 1, 2 UNION ALL SELECT start, end FROM n) SELECT * FROM n",
    "nothing that is a number": "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId); "
    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', NULL, x'00'), (1e300, -1e300, 5), (9223372036854775807, -9223372036854775808, 7)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_databases_that_are_no_export_are_refused_in_one_line(tmp_path, name):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript("PRAGMA user_version=1;" + HOSTILE[name])
    database.close()
    with refuses(Code.FILE):
        load_trace(path)


def test_reading_changes_nothing_and_ends(tmp_path, monkeypatch):
    path = write_export(tmp_path / "report.sqlite", [load_trace(write_trace(tmp_path / "trace.json"))])
    before = path.read_bytes()
    load_trace(path)
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"report.sqlite", "trace.json"}
    monkeypatch.setattr(collected, "MOST_EVENTS", 10)
    with refuses(Code.FILE, "more than 10 kernels and CUDA calls; record fewer steps"):
        load_trace(path)
    monkeypatch.setattr(nsys, "MOST_OPERATORS", 5)
    with refuses(Code.FILE, "more than 5 rows in CUPTI_ACTIVITY_KIND_KERNEL; record fewer steps"):
        load_trace(path)
    monkeypatch.setattr(sqlite_tables, "MOST_STEPS", 100)
    monkeypatch.setattr(sqlite_tables, "STEPS_PER_CHECK", 50)
    with refuses(Code.FILE, "it takes too long to read"):
        load_trace(path)


def test_a_damaged_export_is_read_or_refused(tmp_path):
    path = write_export(tmp_path / "report.sqlite", [load_trace(write_trace(tmp_path / "trace.json", steps=3))])
    content = path.read_bytes()

    @fuzzed(60)
    @given(damaged_bytes(content))
    def check(changed):
        path.write_bytes(changed)
        with sound("export", changed):
            load_trace(path)

    check()


def test_the_schema_of_an_export_is_not_trusted(tmp_path):
    with sqlite_tables.Tables(
        write_export(tmp_path / "report.sqlite", [load_trace(write_trace(tmp_path / "trace.json"))]), "export"
    ) as tables:
        settings = {name: next(tables._all(f"PRAGMA {name}")) for name in ("query_only", "trusted_schema", "cell_size_check")}
    assert settings == {"query_only": (1,), "trusted_schema": (0,), "cell_size_check": (1,)}


def test_branches_of_a_graph_that_overlap_are_lanes(tmp_path):
    """The same graph with branches in both formats."""
    trace = Trace()
    graph = trace.call("cudaGraphLaunch", 0, 10)
    for name, start in (("a", 12), ("b", 24), ("c", 24)):
        trace.work(name, start, 10, graph)
    check_same(trace.save(tmp_path / "trace.json"), tmp_path)
