"""Reads Nsight Systems' exports, `nsys export --type sqlite`, into the recordings that traces of torch.profiler become, one per process.

The tables are those of NVIDIA's SQLite schema reference (Nsight Systems user guide, "SQLite Schema Reference"; tables are created as
needed, and columns have been added since 2019, so that only times and names are required). The tests write databases in the schema of
version 2024.6 (3.16); exports that others published were read exactly.

- `--cuda-graph-trace=node` records the kernels of a CUDA graph; otherwise a graph is one work, as long as all of it takes.
- NVTX ranges that were pushed and popped are the operators; ranges whose name repeats are the steps (`_steps`). `torch.cuda.profiler` and
  `emit_nvtx` mark PyTorch's ops, with sequence numbers and sizes in their names.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from traces.errors import UnusableFileError
from traces.formats.collected import DAY_NS, STEP, Collected, RawCall, RawWork, call_kind, category_of, integer, plain_call, volume
from traces.formats.recording import (
    KERNEL,
    MEMCPY,
    MEMSET,
    MOST_OPERATORS,
    STEP_RANGE,
    RawOperator,
    Recording,
    Shape,
    Sync,
    Work,
    shapes_of,
)
from traces.formats.sqlite_tables import Tables

WHAT = "Nsight Systems export"
_COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
#: CUpti_ActivityMemcpyKind, and nsys' own ENUM_CUDA_MEM_KIND, as torch.profiler calls them.
DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
#: ENUM_NSYS_EVENT_TYPE: ranges that are pushed and popped on a thread, and ranges from a start to an end.
_PUSHED, _STARTED = 59, 60
#: CUpti_ActivitySynchronizationType.
_EVENT_SYNC, _STREAM_WAIT, _STREAM_SYNC = 1, 2, 3
#: Serialized ids have the process above the lowest 24 bits, and the thread in them.
_THREAD_BITS = 24
#: What `emit_nvtx` appends to the name of an op.
_OF_OP = re.compile(r", (seq|sizes|op_id|input_op_ids|callback_id) = ")
_SIZES = re.compile(r"sizes = (\[.*?\])(?:, [a-z_]+ = |$)")


class _Range(NamedTuple):
    name: str
    thread: tuple[int, int]
    start_ns: int
    end_ns: int


def load_export(path: Path | str) -> list[Recording]:
    """Read the processes with GPU work, as ranks 0, 1, … of one job in the order of their first work.

    Raises UnusableFileError if the file is missing, damaged, not such an export, or without GPU work.
    """
    with Tables(path, WHAT) as tables:
        if "StringIds" not in tables.names or not any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in tables.names):
            raise UnusableFileError(f"{path} is a database, but no {WHAT} with CUDA activities; run: nsys export --type sqlite REPORT")
        processes = _Reader(tables, path).processes()
    if not processes:
        raise UnusableFileError(f"{WHAT} {path} has no GPU work; record with nsys profile --trace=cuda,nvtx, on a machine with a GPU")
    return [process.recording(str(path)) for process in processes]


class _Reader:
    def __init__(self, tables: Tables, path: Path | str):
        self._tables, self._path = tables, path
        self._of: defaultdict[int, Collected] = defaultdict(Collected)
        self._ranges: defaultdict[int, list[_Range]] = defaultdict(list)
        self._strings = self._needed_strings()

    def processes(self) -> list[Collected]:
        """Return what each process with GPU work did."""
        self._add_works()
        begins_ns = {process: min(raw.start_ns for raw in own.works) for process, own in self._of.items() if own.works}
        working = {process: self._of[process] for process in sorted(begins_ns, key=begins_ns.__getitem__)}
        self._add_calls(working)
        self._add_syncs(working)
        self._add_ranges(working)
        (base_ns, *_) = [integer(ns, 0) for (ns,) in self._tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))] or [0]
        for rank, (process, own) in enumerate(working.items()):
            own.rank, own.world, own.base_ns, own.properties = rank, len(working), base_ns, self._gpus(process)
            own.check(self._path)
        return list(working.values())

    def _rows(self, table: str, columns: Sequence[str], needed: Sequence[str] = ("start", "end")) -> Iterator[tuple[Any, ...]]:
        for count, row in enumerate(self._tables.rows(table, columns, needed)):
            if count >= MOST_OPERATORS:
                raise UnusableFileError(f"{WHAT} {self._path} has more than {MOST_OPERATORS:,} rows in {table}; record fewer steps")
            yield row

    def _needed_strings(self) -> dict[int, str]:
        """Return the names of kernels, calls and ranges."""
        ids: set[Any] = set()
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"), ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"), ("NVTX_EVENTS", "textId"),
        ):  # fmt: skip
            ids.update(row[0] for row in self._rows(table, (column,), ()))
        rows = self._tables.rows("StringIds", ("id", "value"), ("id", "value"))
        return {number: text for number, text in rows if number in ids and isinstance(number, int) and isinstance(text, str)}

    def _add_works(self) -> None:
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", (*_COMMON, "demangledName", "shortName", *_GRID)):
            name = self._strings.get(row[6]) or self._strings.get(row[7]) or "kernel"
            grid, block = volume(row[8:11]), volume(row[11:14])
            registers, shared = max(0, integer(row[14], 0)), sum(max(0, integer(each, 0)) for each in row[15:17])
            self._add_work(row, name, category_of(name), grid=grid, block=block, registers=registers, shared_bytes=shared)
        memories = MEMORIES | {integer(number, -1): label for number, label in self._labels("ENUM_CUDA_MEM_KIND")}
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", (*_COMMON, "bytes", "copyKind", "srcKind", "dstKind")):
            source, target = (memories.get(kind, "Unknown") for kind in row[8:10])
            name = f"Memcpy {DIRECTIONS.get(row[7], 'Unknown')} ({source} -> {target})"
            self._add_work(row, name, MEMCPY, bytes=float(max(0, integer(row[6], 0))))
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", (*_COMMON, "bytes", "memKind")):
            name = f"Memset ({memories.get(row[7], 'Unknown')})"
            self._add_work(row, name, MEMSET, bytes=float(max(0, integer(row[6], 0))))
        for row in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*_COMMON, "graphId")):
            self._add_work(row, f"CUDA graph {integer(row[6], 0)}", KERNEL)

    def _add_work(self, row: tuple, name: str, category: str, **recorded: Any) -> None:
        own, times = self._of[integer(row[5], 0) >> _THREAD_BITS], _times(row)
        if times is None:
            own.damaged += 1
            return
        work = Work(own.name(name), category, integer(row[2], 0), max(0, integer(row[3], 0)), 0.0, 0.0, **recorded)
        own.works.append(RawWork(work, integer(row[4], -1), *times))
        own.check(self._path)

    def _labels(self, table: str) -> Iterator[tuple[Any, str]]:
        return ((number, label) for number, label in self._tables.rows(table, ("id", "label")) if isinstance(label, str))

    def _add_calls(self, working: dict[int, Collected]) -> None:
        """Add the calls that launch recorded work or order work; nsys records many more."""
        launches = {process: {raw.correlation for raw in own.works} for process, own in working.items()}
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", columns):
            thread, correlation, times = _thread(row[2]), integer(row[3], -1), _times(row)
            own = working.get(thread[0])
            name = plain_call(self._strings.get(row[4], ""))
            if own is None or times is None:
                continue
            if correlation in launches[thread[0]] or call_kind(name, False) is not None:
                own.calls.append(RawCall(own.name(name), thread, correlation, *times))
                own.check(self._path)

    def _add_syncs(self, working: dict[int, Collected]) -> None:
        """Add what synchronizing calls refer to. Of several records of one event, the latest before the wait counts."""
        columns = ("correlationId", "globalPid", "streamId", "eventId", "eventSyncId")
        records: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for row in self._rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns, ("correlationId", "eventId")):
            correlation, pid, stream, *event = (integer(cell, -1) for cell in row)
            records[pid >> _THREAD_BITS, *event].append((correlation, stream))
        for each in records.values():
            each.sort()
        for row in self._rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*columns, "syncType"), ("correlationId", "syncType")):
            correlation, pid, stream, *event, kind = (integer(cell, -1) for cell in row)
            process = pid >> _THREAD_BITS
            own = working.get(process)
            if own is None:
                continue
            before = records.get((process, *event), [])
            at = bisect_left(before, (correlation, -1)) - 1
            recorded, source = before[at] if at >= 0 and kind in (_EVENT_SYNC, _STREAM_WAIT) else (-1, -1)
            own.syncs[correlation] = Sync(_stream(stream) if kind in (_STREAM_WAIT, _STREAM_SYNC) else -1, _stream(source), recorded)

    def _add_ranges(self, working: dict[int, Collected]) -> None:
        for row in self._rows("NVTX_EVENTS", ("start", "end", "eventType", "text", "textId", "globalTid"), ("start",)):
            thread, times = _thread(row[5]), _times(row)
            text = row[3] if isinstance(row[3], str) else self._strings.get(row[4], "")
            own = working.get(thread[0])
            if own is None or times is None or not text or row[2] not in (_PUSHED, _STARTED):
                continue
            name = own.name(_OF_OP.split(text, maxsplit=1)[0])
            self._ranges[thread[0]].append(_Range(name, thread, *times))
            if row[2] == _PUSHED:
                own.operators.append(RawOperator(name, thread, *times, _shapes(text), -1))
        for process, ranges in self._ranges.items():
            own = working[process]
            for each in ranges:
                own.annotate(each.name, each.start_ns, each.end_ns)
            if not any(STEP.match(name) and name.startswith("Profiler") for name, _, _ in own.annotations):
                launches = {raw.correlation for raw in own.works}
                own.annotations += _steps(ranges, sorted(call.start_ns for call in own.calls if call.correlation in launches))

    def _gpus(self, process: int) -> dict[int, dict[str, Any]]:
        """Return what is known of each GPU by the process's number of it, under the names that torch.profiler uses."""
        columns = ("id", "cuDevice", "name", "smCount", "totalMemory", "computeMajor", "computeMinor", "maxRegistersPerSm", "maxShmemPerSm",
                   "maxWarpsPerSm", "threadsPerWarp")  # fmt: skip
        own_number = {
            integer(gpu, -1): integer(number, -1)
            for gpu, number, pid in self._tables.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
            if integer(pid, -1) == process & (1 << _THREAD_BITS) - 1
        }
        gpus = {}
        for row in self._tables.rows("TARGET_INFO_GPU", columns):
            number, cuda = integer(row[0], -1), integer(row[1], -1)
            sms, memory, major, minor, registers, shared, warps, per_warp = (max(0, integer(cell, 0)) for cell in row[3:])
            known = {"numSms": sms, "totalGlobalMem": memory, "computeMajor": major, "computeMinor": minor,
                     "regsPerMultiprocessor": registers, "sharedMemPerMultiprocessor": shared,
                     "maxThreadsPerMultiprocessor": warps * per_warp}  # fmt: skip
            name = {"name": row[2]} if isinstance(row[2], str) else {}
            of_all = cuda if cuda >= 0 else number
            gpus[own_number.get(number, of_all)] = name | {key: value for key, value in known.items() if value}
        return gpus


def _times(row: tuple) -> tuple[int, int] | None:
    """Return the start and the end that a row begins with; None if they are no times."""
    start, end = row[0], row[1]
    usable = isinstance(start, int) and isinstance(end, int) and abs(start) < 2**62 and 0 <= end - start <= DAY_NS
    return (start, end) if usable else None


def _thread(cell: Any) -> tuple[int, int]:
    """Return process and thread of a serialized id."""
    number = integer(cell, 0)
    return number >> _THREAD_BITS, number & (1 << _THREAD_BITS) - 1


def _stream(number: int) -> int:
    """Return a stream's id; -1 for CUPTI's id of no stream, which has all 32 bits set."""
    return number if 0 <= number < 2**32 - 1 else -1


def _shapes(text: str) -> tuple[Shape, ...] | None:
    """Return the shapes in the name that `emit_nvtx` gives an op; None if there are none."""
    sizes = _SIZES.search(text)
    try:
        return None if sizes is None else shapes_of(json.loads(sizes[1]))
    except (ValueError, RecursionError):
        return None


#: A name says that its ranges are steps.
_SAYS_STEP = re.compile(r"step|iter|batch", re.IGNORECASE)
#: The ranges of steps cover at least this share of the launches; of several kinds, within this share of the best.
_LEAST_COVERED, _AS_GOOD = 0.5, 0.95


def _steps(ranges: Sequence[_Range], launches_ns: Sequence[int]) -> list[tuple[str, int, int]]:
    """Return the ranges that are the steps: those of one thread, of one name but for its numbers, that follow one another.

    Of several such names, one whose ranges cover most launches; among these one that says so, then the one with the fewest ranges.
    `launches_ns` are in order.
    """
    groups: dict[tuple[tuple[int, int], str], list[_Range]] = {}
    for each in ranges:
        if "::" not in each.name:  # ops
            groups.setdefault((each.thread, re.sub(r"\d+", "#", each.name)), []).append(each)
    candidates = []
    for (_, name), own in groups.items():
        own.sort(key=lambda each: each.start_ns)
        if len(own) > 1 and all(before.end_ns <= after.start_ns for before, after in pairwise(own)):
            covered = sum(bisect_right(launches_ns, each.end_ns) - bisect_left(launches_ns, each.start_ns) for each in own)
            candidates.append((covered, bool(_SAYS_STEP.search(name)), own))
    best = max((covered for covered, _, _ in candidates), default=0)
    if best < max(1, _LEAST_COVERED * len(launches_ns)):
        return []
    _, _, chosen = min((c for c in candidates if c[0] >= _AS_GOOD * best), key=lambda c: (not c[1], len(c[2])))
    same = len({each.name for each in chosen}) < len(chosen)
    return [(f"{STEP_RANGE}{each.name}{f' #{n}' if same else ''}", each.start_ns, each.end_ns) for n, each in enumerate(chosen, 1)]
