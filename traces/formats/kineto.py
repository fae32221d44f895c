"""Reads traces of torch.profiler (Kineto), plain or gzip, in the schemas since PyTorch 1.8.

Four kinds of events are used: device work (kernels, copies, sets), calls of the CUDA runtime and driver, operators, and annotations
(profiler steps, optimizer steps). Python frames and flow arrows are skipped while streaming, because correlation ids join work to launches.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from traces.errors import UnusableFileError
from traces.formats.json_stream import items
from traces.formats.recording import (
    CATEGORIES,
    COLLECTIVE,
    KERNEL,
    MEMCPY,
    MEMSET,
    MOST_OPERATORS,
    Annotation,
    Call,
    CallKind,
    RawOperator,
    Recording,
    Sync,
    Work,
    is_communication,
    operator_tree,
    shapes_of,
)

_DEVICE = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET}
_HOST = frozenset({"cuda_runtime", "runtime", "cuda_driver", "hip_runtime"})
_PREFIX = re.compile(r"^(cuda|hip|cu)(?=[A-Z])")
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
#: No recording is longer than this.
DAY_NS = 86_400 * 10**9
#: Works and calls of a recording at most, and characters of a name. Replaying that many takes up to a minute.
MOST_EVENTS, LONGEST_NAME = 200_000, 4000
#: Characters of a number in text at most, and of a call's name that count.
_LONGEST_NUMBER, _LONGEST_CALL = 400, 100
_is_communication = lru_cache(maxsize=4096)(is_communication)
_STEP = re.compile(r"^(ProfilerStep#\d+|Optimizer\.step#.*)$")
_KINDS = {
    "StreamWaitEvent": CallKind.STREAM_WAIT,
    "EventRecord": CallKind.EVENT_RECORD,
    "EventRecordWithFlags": CallKind.EVENT_RECORD,
    "StreamSynchronize": CallKind.STREAM_SYNC,
    "EventSynchronize": CallKind.EVENT_SYNC,
    "DeviceSynchronize": CallKind.DEVICE_SYNC,
    "CtxSynchronize": CallKind.DEVICE_SYNC,
    "Free": CallKind.DEVICE_SYNC,  # cudaFree waits for the device
    "MemFree": CallKind.DEVICE_SYNC,
}  # fmt: skip


class _RawWork(NamedTuple):
    work: Work
    correlation: int
    start_ns: int
    end_ns: int


class _RawCall(NamedTuple):
    name: str
    thread: tuple[int | str, int | str]
    correlation: int
    start_ns: int
    end_ns: int
    external: int = -1


def load_trace(path: Path | str) -> Recording:
    """Read the trace of one rank.

    Raises UnusableFileError if the file is missing, damaged, not a profiler trace, or without device work.
    """
    reader = _Events()
    for key, item in items(path, "traceEvents", "trace"):
        reader.add(key, item)
        if reader.used > MOST_EVENTS:
            raise UnusableFileError(f"trace {path} has more than {MOST_EVENTS:,} kernels and CUDA calls; record fewer steps")
        if len(reader.operators) > MOST_OPERATORS:
            raise UnusableFileError(f"trace {path} has more than {MOST_OPERATORS:,} operators; record fewer steps")
    if not reader.events:
        raise UnusableFileError(f"{path} is not a profiler trace (no traceEvents in it); export one with torch.profiler")
    if not reader.works:
        raise UnusableFileError(
            f"trace {path} has {reader.events} events but no GPU work; record with ProfilerActivity.CUDA, on a machine with a GPU"
        )
    return reader.recording(str(path))


class _Events:
    def __init__(self):
        self.works: list[_RawWork] = []
        self.operators: list[RawOperator] = []
        self.events = 0
        self._properties: dict[int, dict[str, Any]] = {}
        self._calls: list[_RawCall] = []
        self._syncs: dict[int, Sync] = {}
        self._annotations: list[tuple[str, int, int]] = []
        self._base_ns, self._rank, self._world = 0, 0, 1
        self._damaged = 0
        self._names: dict[str, str] = {}  # each name is kept once

    @property
    def used(self) -> int:
        """How many events are kept."""
        return len(self.works) + len(self._calls) + len(self._annotations) + len(self._syncs)

    def add(self, key: str, item: Any) -> None:
        """Add a top-level entry, or an event."""
        if key == "traceEvents":
            if isinstance(item, dict):
                self.events += 1
                if item.get("ph") == "X":
                    self._event(item)
        elif key == "baseTimeNanoseconds":
            self._base_ns = _integer(item, 0)
        elif key == "distributedInfo" and isinstance(item, dict):
            self._rank, self._world = _integer(item.get("rank"), 0), max(1, _integer(item.get("world_size"), 1))
        elif key == "deviceProperties" and isinstance(item, list):
            self._properties = {_integer(gpu.get("id"), 0): gpu for gpu in item if isinstance(gpu, dict)}

    def _event(self, event: dict) -> None:
        category, name = event.get("cat") or "", event.get("name")
        if not isinstance(name, str) or not isinstance(category, str):
            return
        category = category.lower()
        on_device, on_host = category in _DEVICE, category in _HOST
        is_operator = category in CATEGORIES
        if not (on_device or on_host or is_operator or category == "cuda_sync" or _STEP.match(name)):
            return
        name = self._names.setdefault(name, name) if name.isascii() and len(name) <= LONGEST_NAME else _clean(name)
        start, length = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur", 0))
        if start is None or length is None or not 0 <= length <= DAY_NS:
            self._damaged += 1
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        correlation = _integer(args.get("correlation"), -1)
        external = _integer(args.get("External id", args.get("external id")), -1)
        thread = (_label(event.get("pid")), _label(event.get("tid")))
        if is_operator:
            self.operators.append(RawOperator(name, thread, start, start + length, shapes_of(args.get("Input Dims")), external))
        if on_device:
            self.works.append(_RawWork(_work(event, args, name, _DEVICE[category]), correlation, start, start + length))
        elif on_host:
            self._calls.append(_RawCall(name, thread, correlation, start, start + length, external))
        elif category == "cuda_sync":
            numbers = (_integer(args.get(key), -1) for key in ("stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"))
            self._syncs[correlation] = Sync(*numbers)
        elif _STEP.match(name) and not category.startswith("gpu"):  # copies of annotations on the device do not describe the host
            self._annotations.append((name, start, start + length))

    def recording(self, source: str) -> Recording:
        """The recording: work joined to its launches, in order of time."""
        notes = [f"{self._damaged} events without usable times were left out"] if self._damaged else []
        self._drop_strays(notes)
        self.works.sort(key=lambda raw: (raw.start_ns, raw.end_ns, raw.work.lane))
        self._calls.sort(key=lambda raw: (raw.start_ns, -raw.end_ns))
        origin = min([self.works[0].start_ns, *(call.start_ns for call in self._calls[:1])])
        launched = _join(self.works, self._calls, notes)
        kinds = [_kind(raw.name, index in launched.users) for index, raw in enumerate(self._calls)]
        new_index = {old: new for new, old in enumerate(index for index, kind in enumerate(kinds) if kind is not None)}
        threads: dict[tuple[int | str, int | str], int] = {}
        calls, syncs, external = [], {}, []
        for old, new in new_index.items():
            own = self._calls[old]
            thread = threads.setdefault(own.thread, len(threads))
            calls.append(Call(own.name, kinds[old], thread, *_seconds(own, origin), own.correlation))
            external.append(own.external)
            if kinds[old] is not CallKind.LAUNCH and own.correlation in self._syncs:
                syncs[new] = self._syncs[own.correlation]
        works = []
        for raw, call in zip(self.works, launched.call_of, strict=True):
            start_s, end_s = _seconds(raw, origin)
            works.append(raw.work._replace(start_s=start_s, end_s=end_s, call=new_index.get(call, -1)))
        early = sum(work.call >= 0 and work.start_s < calls[work.call].start_s for work in works)
        if early:
            notes.append(f"{early} kernels start before their own launch: the clocks of host and device disagree")
        annotations = sorted(
            {Annotation(name, (a - origin) / 1e9, (b - origin) / 1e9) for name, a, b in self._annotations}, key=lambda x: x[1:]
        )
        origin_ns = origin + self._base_ns
        called = operator_tree(self.operators, threads, calls, external, origin, self._properties)
        return Recording(
            source, tuple(works), tuple(calls), syncs, tuple(annotations), origin_ns, self._rank, self._world, tuple(notes), called
        )

    def _drop_strays(self, notes: list[str]) -> None:
        """Leave out events more than a day away from the median work: their clock was reset, or they have none."""
        middle = sorted(raw.start_ns for raw in self.works)[len(self.works) // 2]
        total = len(self.works) + len(self._calls)
        self.works = [raw for raw in self.works if abs(raw.start_ns - middle) <= DAY_NS]
        self._calls = [raw for raw in self._calls if abs(raw.start_ns - middle) <= DAY_NS]
        self._annotations = [a for a in self._annotations if abs(a[1] - middle) <= DAY_NS]
        dropped = total - len(self.works) - len(self._calls)
        if dropped:
            notes.append(f"{dropped} events more than a day away from the rest were left out")


def _seconds(raw: _RawWork | _RawCall, origin_ns: int) -> tuple[float, float]:
    return (raw.start_ns - origin_ns) / 1e9, (raw.end_ns - origin_ns) / 1e9


def _work(event: dict, args: dict, name: str, category: str) -> Work:
    """The work of an event, without its times and its call, which are known after all events are read."""
    if category == KERNEL and _is_communication(name):
        category = COLLECTIVE
    device = _integer(args.get("device", event.get("pid")), 0)
    stream = _integer(args.get("stream", event.get("tid")), 0)
    return Work(
        name,
        category,
        device,
        max(0, stream),
        0.0,
        0.0,
        float(max(0, _integer(args.get("bytes"), 0))),
        _volume(args.get("grid")),
        block=_volume(args.get("block")),
        registers=max(0, _integer(args.get("registers per thread"), 0)),
        shared_bytes=max(0, _integer(args.get("shared memory"), 0)),
    )


def _volume(extents: Any) -> int:
    """The product of the extents of a grid or block; 0 if they were not recorded."""
    if not isinstance(extents, list) or len(extents) > 3:
        return 0
    return math.prod(min(max(0, _integer(extent, 0)), 2**31) for extent in extents)


def _kind(name: str, has_work: bool) -> CallKind | None:
    """The meaning of a call; None if it neither launches nor orders recorded work."""
    if has_work:
        return CallKind.LAUNCH
    return _KINDS.get(_SUFFIX.sub("", _PREFIX.sub("", name[:_LONGEST_CALL])))


class _Joined(NamedTuple):
    call_of: list[int]
    users: set[int]


def _join(works: list[_RawWork], calls: list[_RawCall], notes: list[str]) -> _Joined:
    """The launching call of each work, -1 if there is none.

    All nodes of a CUDA graph share the correlation id of its launch. If several calls have one id by mistake, calls and work are paired in
    order of time if there are as many of each; otherwise work belongs to the latest call that started before it.
    """
    callers: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        if call.correlation > 0:
            callers.setdefault(call.correlation, []).append(index)
    groups: dict[int, list[int]] = {}
    for index, raw in enumerate(works):
        groups.setdefault(raw.correlation, []).append(index)
    call_of, reused_ids = [-1] * len(works), 0
    for correlation, members in groups.items():
        candidates = callers.get(correlation, [])
        if len(candidates) <= 1:
            for index in members if candidates else ():
                call_of[index] = candidates[0]
            if candidates and len(members) > 1 and "Graph" not in calls[candidates[0]].name:
                reused_ids += 1
            continue
        reused_ids += 1
        starts_ns = [calls[candidate].start_ns for candidate in candidates]
        for position, index in enumerate(members):
            latest = max(0, bisect_right(starts_ns, works[index].start_ns) - 1)
            call_of[index] = candidates[position] if len(candidates) == len(members) else candidates[latest]
    if reused_ids:
        notes.append(f"{reused_ids} correlation ids are used more than once: their work is joined to launches in order of time")
    names = Counter(raw.work.category for raw, call in zip(works, call_of, strict=True) if call < 0)
    if names:
        lost = ", ".join(f"{count} {category}" for category, count in names.items())
        notes.append(f"the launches of {names.total()} works were not recorded ({lost}): each is delayed after earlier work as recorded")
    return _Joined(call_of, set(call_of) - {-1})


def _clean(name: str) -> str:
    """A name that can be printed and saved: without half characters, and not too long."""
    name = name[:LONGEST_NAME]
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def _label(number: Any) -> int | str:
    """The number or name of a process or thread; "" if it is neither."""
    return number[:_LONGEST_NUMBER] if isinstance(number, str) else number if isinstance(number, int) else ""


def _nanoseconds(microseconds: Any) -> int | None:
    """Converts microseconds (an integer, or text with a fraction) to whole nanoseconds of at most 64 bits; None for anything else."""
    value = None
    if isinstance(microseconds, int) and not isinstance(microseconds, bool):
        value = microseconds * 1000
    elif isinstance(microseconds, str) and len(microseconds) <= _LONGEST_NUMBER:
        whole, _, fraction = microseconds.strip().partition(".")
        digits = whole.removeprefix("-")
        if digits.isdecimal() and (not fraction or fraction.isdecimal()):
            value = int(digits) * 1000 + int((fraction + "000")[:3])
            value = -value if whole.startswith("-") else value
        else:
            try:
                value = round(float(microseconds) * 1e3)
            except (ValueError, OverflowError):
                return None
    return value if value is not None and abs(value) < 2**63 else None


def _integer(content: Any, default: int) -> int:
    """The integer of at most 64 bits, or the integer in text such as "stream 7"; else `default`."""
    if isinstance(content, str):
        digits = re.search(r"-?\d+", content[:_LONGEST_NUMBER])
        content = int(digits.group()) if digits else default
    return int(content) if isinstance(content, int) and abs(content) < 2**63 else default
