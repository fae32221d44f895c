"""What a reader of traces collects, with times in whole nanoseconds, and the recording that it becomes: work joined to its launches."""

import math
import re
from bisect import bisect_right
from collections import Counter
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from traces.errors import UnusableFileError
from traces.formats.recording import (
    COLLECTIVE,
    GRAPH_LAUNCH,
    KERNEL,
    MOST_OPERATORS,
    Annotation,
    Call,
    CallKind,
    MemoryChange,
    RawOperator,
    Recording,
    Sync,
    Work,
    is_allocation,
    is_communication,
    operator_tree,
)

#: Of CUDA's runtime and driver, HIP, SYCL's unified runtime and plugin interface, and Level Zero.
_PREFIX = re.compile(r"^(cuda|hip|cu|ur|pi|ze)(?=[A-Z])")
_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
#: No recording is longer than this.
DAY_NS = 86_400 * 10**9
#: Works and calls of a recording at most, and characters of a name. Replaying that many takes up to a minute.
MOST_EVENTS, LONGEST_NAME = 200_000, 4000
#: Characters of a number in text at most, and of a call's name that count.
LONGEST_NUMBER, _LONGEST_CALL = 400, 100
_is_communication = lru_cache(maxsize=4096)(is_communication)
#: The annotations that iterations are recognized by, besides ranges of Nsight Systems.
STEP = re.compile(r"^(ProfilerStep#\d+|Optimizer\.step#.*)$")
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
    "QueueFinish": CallKind.STREAM_SYNC,
    "CommandQueueSynchronize": CallKind.STREAM_SYNC,
    "EventWait": CallKind.EVENT_SYNC,
    "EventsWait": CallKind.EVENT_SYNC,
    "EventHostSynchronize": CallKind.EVENT_SYNC,
}  # fmt: skip


class RawWork(NamedTuple):
    work: Work
    correlation: int
    start_ns: int
    end_ns: int


class RawCall(NamedTuple):
    name: str
    thread: tuple[int | str, int | str]
    correlation: int
    start_ns: int
    end_ns: int
    external: int = -1


class Collected:
    """Device work, calls, operators and annotations of one process. `base_ns` is added to all times; `damaged` counts what had none.

    `notes`: what to say about the file, a line each.
    """

    def __init__(self, rank: int = 0, world: int = 1):
        self.works: list[RawWork] = []
        self.calls: list[RawCall] = []
        self.operators: list[RawOperator] = []
        self.syncs: dict[int, Sync] = {}
        self.annotations: list[tuple[str, int, int]] = []
        self.modules: list[RawOperator] = []
        self.memory: list[tuple[int, MemoryChange]] = []
        self.properties: dict[int, dict[str, Any]] = {}
        self.base_ns, self.rank, self.world = 0, rank, world
        self.damaged = 0
        self.notes: list[str] = []
        self._names: dict[str, str] = {}  # each name is stored once

    def check(self, path: object) -> None:
        """Raise UnusableFileError if there is more than a replay can take."""
        if len(self.works) + len(self.calls) + len(self.annotations) + len(self.syncs) > MOST_EVENTS:
            raise UnusableFileError(f"trace {path} has more than {MOST_EVENTS:,} kernels and CUDA calls; record fewer steps")
        if len(self.operators) > MOST_OPERATORS:
            raise UnusableFileError(f"trace {path} has more than {MOST_OPERATORS:,} operators; record fewer steps")

    def name(self, text: str) -> str:
        """Return a name that can be printed and saved: without half characters, and not too long."""
        text = text[:LONGEST_NAME]
        return self._names.setdefault(text, text) if text.isascii() else text.encode("utf-8", "replace").decode()

    def annotate(self, name: str, start_ns: int, end_ns: int) -> None:
        """Add a range of the host if iterations are recognized by it."""
        if STEP.match(name):
            self.annotations.append((name, start_ns, end_ns))

    def recording(self, source: str) -> Recording:
        """The recording: work joined to its launches, in order of time."""
        notes = [*self.notes, *([f"{self.damaged} events without usable times were dropped"] if self.damaged else [])]
        self._drop_strays(notes)
        self.works.sort(key=lambda raw: (raw.start_ns, raw.end_ns, raw.work.lane))
        self.calls.sort(key=lambda raw: (raw.start_ns, -raw.end_ns))
        origin = min([self.works[0].start_ns, *(call.start_ns for call in self.calls[:1])])
        call_of = _join(self.works, self.calls, notes)
        launching = set(call_of)
        graphs = [index for index, raw in enumerate(self.calls) if GRAPH_LAUNCH in raw.name]
        empty = sum(index not in launching for index in graphs)
        if empty:
            notes.append(f"no work is recorded for {empty} of {len(graphs)} graph launches: what the GPU does after them is not known")
        kinds = [call_kind(raw.name, index in launching) for index, raw in enumerate(self.calls)]
        known = [(index, kind) for index, kind in enumerate(kinds) if kind is not None]
        new_index = {old: new for new, (old, _) in enumerate(known)}
        threads: dict[tuple[int | str, int | str], int] = {}
        calls, syncs, external = [], {}, []
        for new, (old, kind) in enumerate(known):
            own = self.calls[old]
            thread = threads.setdefault(own.thread, len(threads))
            calls.append(Call(own.name, kind, thread, *_seconds(own, origin), own.correlation))
            external.append(own.external)
            if kind is not CallKind.LAUNCH and own.correlation in self.syncs:
                syncs[new] = self.syncs[own.correlation]
        works = []
        for raw, call in zip(self.works, call_of, strict=True):
            start_s, end_s = _seconds(raw, origin)
            works.append(raw.work._replace(start_s=start_s, end_s=end_s, call=new_index.get(call, -1)))
        early = sum(work.call >= 0 and work.start_s < calls[work.call].start_s for work in works)
        if early:
            notes.append(f"{early} kernels start before their own launch: the clocks of host and device disagree")
        annotations = sorted(
            {Annotation(name, (a - origin) / 1e9, (b - origin) / 1e9) for name, a, b in self.annotations}, key=lambda x: x[1:]
        )
        lost_s = tuple(_seconds(self.calls[index], origin)[0] for index in _lost(self.calls, launching))
        origin_ns = origin + self.base_ns
        called = operator_tree(
            self.operators, threads, calls, external_of_call=external, origin_ns=origin, properties=self.properties, modules=self.modules
        )
        memory = tuple(change for _, change in sorted(self.memory, key=itemgetter(0)))
        return Recording(
            source, works=tuple(works), calls=tuple(calls), syncs=syncs, annotations=tuple(annotations), origin_ns=origin_ns,
            rank=self.rank, world_size=self.world, notes=tuple(notes), operators=called, memory=memory, lost_s=lost_s,
        )  # fmt: skip

    def _drop_strays(self, notes: list[str]) -> None:
        """Drop events more than a day away from the median work or call: their clock was reset, or they have none."""
        starts_ns = sorted([*(raw.start_ns for raw in self.works), *(raw.start_ns for raw in self.calls)])
        middle = starts_ns[len(starts_ns) // 2]
        total = len(self.works) + len(self.calls)
        self.works = [raw for raw in self.works if abs(raw.start_ns - middle) <= DAY_NS]
        self.calls = [raw for raw in self.calls if abs(raw.start_ns - middle) <= DAY_NS]
        self.annotations = [a for a in self.annotations if abs(a[1] - middle) <= DAY_NS]
        dropped = total - len(self.works) - len(self.calls)
        if dropped:
            notes.append(f"{dropped} events more than a day away from the rest were dropped")


def _seconds(raw: RawWork | RawCall, origin_ns: int) -> tuple[float, float]:
    return (raw.start_ns - origin_ns) / 1e9, (raw.end_ns - origin_ns) / 1e9


def category_of(kernel: str) -> str:
    """Return whether a kernel of this name is computing or communication."""
    return COLLECTIVE if _is_communication(kernel) else KERNEL


def call_kind(name: str, has_work: bool) -> CallKind | None:
    """The meaning of a call; None if it neither launches nor orders work, nor allocates."""
    if has_work or GRAPH_LAUNCH in name:
        return CallKind.LAUNCH
    other = CallKind.ALLOCATION if is_allocation(name) else None
    return _KINDS.get(plain_call(_PREFIX.sub("", name[:_LONGEST_CALL])), other)


def _lost(calls: list[RawCall], launching: set[int]) -> list[int]:
    """Return the calls that launched a kernel of which there is no work: cudaLaunchKernel, cuLaunchKernelEx, hipExtModuleLaunchKernel.

    `calls` are in order of start, `launching` those with work. A call of the runtime may contain the driver's that has the work, or
    be contained in it.
    """
    ended_ns: dict[tuple[int | str, int | str], int] = {}  # of the calls with work, by thread
    lost: dict[tuple[int | str, int | str], list[int]] = {}
    for index, call in enumerate(calls):
        own = lost.setdefault(call.thread, [])
        if index in launching:
            while own and calls[own[-1]].end_ns >= call.end_ns:
                own.pop()
            ended_ns[call.thread] = max(call.end_ns, ended_ns.get(call.thread, call.end_ns))
        elif "LaunchKernel" in call.name and call.end_ns > ended_ns.get(call.thread, call.start_ns):
            own.append(index)
    return [index for own in lost.values() for index in own]


def plain_call(name: str) -> str:
    """Return the name of a call without version and variant: cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    return _SUFFIX.sub("", name)


def _join(works: list[RawWork], calls: list[RawCall], notes: list[str]) -> list[int]:
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
    return call_of


def volume(extents: Any) -> int:
    """Return the product of the extents of a grid or block; 0 if they were not recorded."""
    if not isinstance(extents, list | tuple) or len(extents) > 3:
        return 0
    return math.prod(min(max(0, integer(extent, 0)), 2**31) for extent in extents)


def integer(content: Any, default: int) -> int:
    """Return the integer of at most 64 bits, or the integer in text such as "stream 7"; else `default`."""
    if type(content) is int and -(2**63) < content < 2**63:
        return content
    if isinstance(content, str):
        digits = re.search(r"-?\d+", content[:LONGEST_NUMBER])
        content = int(digits.group()) if digits else default
    return int(content) if isinstance(content, int) and abs(content) < 2**63 else default
