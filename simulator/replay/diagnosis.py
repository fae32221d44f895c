"""Where the time of a recorded step goes: computing, communication that no kernel hides, copies, and idle time by cause.

Each moment of a device belongs to one part: a kernel runs; else a collective moves data; else a collective waits for another rank; else a
copy or memory set runs; else the device is idle. Idle time belongs to what the next work waited for last:

- *data loader*: its launch, while the host waited for the next batch, or loaded it itself.
- *allocation*: its launch, while the host took or returned memory of the device (`cudaMalloc`, `cudaFree`).
- *host*: its launch. The host was busy with other Python code and launches while the device ran out of work.
- *synchronization*: its launch as well, but the host had been blocked by the device until it ran out of work: by a synchronizing call or a
  blocking copy. Nothing could be queued. Without the call, the launch would have come earlier by the time for which the host was blocked:
  this is the cost of the call, and the host's work after it is *host*.
- *dependency*: work of another stream.
- *other rank*: work of another device.
- *between kernels*: the work before it in its stream. Every kernel has such a pause.
- *unexplained*: nothing that was recorded.

The parts of a device sum to the step time; with several devices, parts are means.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import NamedTuple, TypeVar

from simulator.plan.task import Task
from simulator.replay.compare import boundaries, device_part, times_of
from simulator.replay.nodes import ARRIVAL, GAP, HOST, LOST_LAUNCH, rank_of
from simulator.replay.replay import Replay, Rows, predecessor
from traces.documents.replay_result import HostWait, Part, RankWait, ReplayStep, StepPart
from traces.documents.timeline import Span, Timeline, busy_seconds
from traces.formats.recording import COLLECTIVE, KERNEL, is_allocation, is_loading
from traces.formats.synchronization import UNEXPLAINED_S


@dataclass(frozen=True, slots=True)
class StepDiagnosis:
    """Every part of one step, in the order of `Part`.

    `waits`: what the host did while devices waited for it, with the seconds of waiting, the longest first: the op or annotation that was
    open, or the call. `ranks`: for which ranks devices waited, with the seconds, likewise: those that came last to a collective.
    """

    parts: tuple[StepPart, ...]
    waits: tuple[HostWait, ...]
    ranks: tuple[RankWait, ...]


#: The parts in which a device waits for the host.
HOST_PARTS = (Part.LOADER, Part.ALLOCATION, Part.HOST, Part.SYNCHRONIZATION)


#: A part of the step below this share is not the verdict.
VERDICT_SHARE = 0.05


def verdict(step: ReplayStep) -> Part:
    """Return what to look at first in a step: the largest part that is not computing, unless all of them are small.

    The data loader comes before the rest of the host if it is what the host did longest while devices waited for it.
    """
    shares = {part.part: part.share for part in step.parts}
    if shares.get(Part.LOADER, 0.0) >= VERDICT_SHARE and step.waits and is_loading(step.waits[0].label):
        shares = {part: share for part, share in shares.items() if part not in (Part.HOST, Part.SYNCHRONIZATION)}
    largest = max((part for part in shares if part is not Part.COMPUTE), key=shares.__getitem__, default=Part.COMPUTE)
    return largest if shares.get(largest, 0.0) >= VERDICT_SHARE else Part.COMPUTE


class _Idle(NamedTuple):
    """Idle time of a device. `name`: the task that the next work waited for last, None if there is none."""

    part: Part
    start_s: float
    end_s: float
    name: str | None = None


_Timed = TypeVar("_Timed", Span, _Idle)
_Key = TypeVar("_Key", str, int)


def mean_of(steps: Sequence[StepDiagnosis]) -> tuple[StepPart, ...]:
    """Return every part of the mean of the steps that count: all but the first, unless it is the only one."""
    counted = steps[1:] or steps
    seconds = {part: fsum(step.parts[i].seconds for step in counted) / len(counted) for i, part in enumerate(Part)}
    return _parts(seconds, fsum(seconds.values()))


def diagnose_steps(replay: Replay, timeline: Timeline) -> tuple[StepDiagnosis, ...]:
    """Return the diagnosis of every step. `timeline`: the recording of `replay`, or its simulation."""
    borders = boundaries(replay, times_of(timeline))
    devices: dict[str, list[Span]] = {}
    works = device_part(replay, timeline)
    for span in works.spans:
        devices.setdefault(span.device, []).append(span)
    causes = _Causes(replay, timeline, works)
    totals = [dict.fromkeys(Part, 0.0) for _ in replay.steps]
    waits: list[dict[str, float]] = [defaultdict(float) for _ in replay.steps]
    ranks: list[dict[int, float]] = [defaultdict(float) for _ in replay.steps]
    for spans in devices.values():
        _add_busy(causes.busy(spans), borders, totals, ranks)
        for number, idle in _by_step(causes.idle(spans, borders), borders):
            start_s, end_s = max(idle.start_s, borders[number]), min(idle.end_s, borders[number + 1])
            totals[number][idle.part] += end_s - start_s
            rank = rank_of(idle.name) if idle.part is Part.OTHER_RANK and idle.name else None
            if rank is not None:
                ranks[number][rank] += end_s - start_s
            if idle.part in HOST_PARTS:
                for label, seconds in causes.host_time(idle.name, start_s, end_s).items():
                    waits[number][label] += seconds
                    own_part = Part.LOADER if is_loading(label) else Part.ALLOCATION if is_allocation(label) else idle.part
                    totals[number][idle.part] -= seconds
                    totals[number][own_part] += seconds
    steps = zip(totals, waits, ranks, pairwise(borders), strict=True)
    count = max(1, len(devices))
    return tuple(
        StepDiagnosis(
            _parts({part: seconds / count for part, seconds in total.items()}, end_s - begin_s),
            tuple(HostWait(label=label, seconds=seconds) for label, seconds in _longest_first(waited, count)),
            tuple(RankWait(rank=rank, seconds=seconds) for rank, seconds in _longest_first(by_rank, count)),
        )
        for total, waited, by_rank, (begin_s, end_s) in steps
    )


def _longest_first(seconds: Mapping[_Key, float], count: int) -> tuple[tuple[_Key, float], ...]:
    """Return the means over `count` devices, the longest first."""
    return tuple((key, own / count) for key, own in sorted(seconds.items(), key=lambda each: -each[1]))


def _parts(seconds: Mapping[Part, float], step_s: float) -> tuple[StepPart, ...]:
    return tuple(StepPart(part=part, seconds=each, share=each / step_s if step_s else 0.0) for part, each in seconds.items())


def _add_busy(
    by_part: Sequence[tuple[Part, int | None, list[Span]]],
    borders: Sequence[float],
    totals: list[dict[Part, float]],
    ranks: list[dict[int, float]],
) -> None:
    """Add the busy seconds of one device to the totals of each step, and those in which it waits for a rank.

    Parts are in order of precedence.
    """
    covered: list[list[Span]] = [[] for _ in totals]
    before_s = [0.0] * len(totals)
    for part, rank, own in by_part:
        for number, span in _by_step(own, borders):
            covered[number].append(span)
        for number, spans in enumerate(covered):
            covered_s = busy_seconds(spans, borders[number], borders[number + 1])
            totals[number][part] += covered_s - before_s[number]
            if rank is not None and covered_s > before_s[number]:
                ranks[number][rank] += covered_s - before_s[number]
            before_s[number] = covered_s


def _by_step(items: Iterable[_Timed], borders: Sequence[float]) -> Iterator[tuple[int, _Timed]]:
    """Yield each item with the number of every step in which it takes time."""
    for item in items:
        first = max(0, bisect_right(borders, item.start_s) - 1)
        for number in range(first, min(bisect_left(borders, item.end_s), len(borders) - 1)):
            yield number, item


class _Causes:
    """Finds out why a device is busy or idle, from the times of one timeline. `works`: its `device_part`."""

    def __init__(self, replay: Replay, timeline: Timeline, works: Timeline):
        self._position = replay.position
        self._tasks: Mapping[str, Task] = {task.name: task for task in replay.tasks}
        self._times = times_of(timeline)
        self._rows = replay.rows
        self._ends_s = [self._times[name][1] if name in self._times else None for name in self._tasks]
        self._before_in_thread = self._host_before(replay.rows)
        self._gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
        self._arrival_of = replay.arrivals
        self._all_arrived = self._last_arrivals(works)

    def _waited_for(self, name: str) -> str | None:
        before = predecessor(self._rows, self._ends_s, self._position[name])
        return self._rows.tasks[before].name if before >= 0 else None

    def _host_before(self, rows: Rows) -> dict[str, str]:
        """Return by task of a host thread the previous one."""
        last: dict[tuple[str, int], str] = {}
        before = {}
        for task, lane in zip(rows.tasks, rows.lanes, strict=True):
            if task.device == HOST and task.name in self._times:
                if lane in last:
                    before[task.name] = last[lane]
                last[lane] = task.name
        return before

    def _last_arrivals(self, works: Timeline) -> dict[str, tuple[float, int | None]]:
        """Return by joined collective when the last rank arrived, and which one that was."""
        arrived_s = {self._arrival_of[span.task]: span.start_s for span in works.spans if span.task in self._arrival_of}
        return {
            name: max(((arrived_s[other], rank_of(other)) for other in self._tasks[name].after if other in arrived_s), default=(0.0, None))
            for name in self._arrival_of
        }

    def busy(self, spans: Sequence[Span]) -> list[tuple[Part, int | None, list[Span]]]:
        """Return the spans of a device by part, and by the rank that is waited for, in order of precedence.

        A collective that waits for another rank is cut in two.
        """
        kernels, moving, others = [], [], []
        waiting: dict[int | None, list[Span]] = defaultdict(list)
        for span in spans:
            category = self._tasks[span.task].body.category
            if category == KERNEL:
                kernels.append(span)
            elif category != COLLECTIVE:
                others.append(span)
            else:
                last_s, rank = self._all_arrived.get(span.task, (span.start_s, None))
                arrived_s = min(max(span.start_s, last_s), span.end_s)
                waiting[rank].append(_cut(span, span.start_s, arrived_s))
                moving.append(_cut(span, arrived_s, span.end_s))
        by_rank = [(Part.OTHER_RANK, rank, own) for rank, own in waiting.items()]
        return [(Part.COMPUTE, None, kernels), (Part.COMMUNICATION, None, moving), *by_rank, (Part.COPIES, None, others)]

    def idle(self, spans: Sequence[Span], borders: Sequence[float]) -> Iterator[_Idle]:
        """Yield the idle time of a device between the first and the last border, with its cause."""
        reached_s, end_s = borders[0], borders[-1]
        for span in sorted(spans, key=lambda span: (span.start_s, self._position[span.task])):
            if span.start_s > reached_s and reached_s < end_s:
                yield from self._before(span, reached_s)
            reached_s = max(reached_s, span.end_s)
        if reached_s < end_s:  # nothing more is recorded on this device, while others still work
            yield _Idle(Part.OTHER_RANK, reached_s, end_s)

    def _before(self, span: Span, idle_s: float) -> Iterator[_Idle]:
        """Yield the idle time from `idle_s` to the start of `span` by its causes."""
        first = self._arrival_of.get(span.task, span.task)
        name = self._waited_for(first)
        if name is None:
            yield _Idle(Part.UNEXPLAINED, idle_s, span.start_s)
            return
        cause, blocked_s = self._cause(span, name, idle_s)
        ready_s = min(max(self._times[name][1], idle_s), span.start_s)
        if span.start_s - max(self._times[name][1], idle_s) <= UNEXPLAINED_S + self._gaps[span.device]:
            ready_s = span.start_s
        blocked_until_s = min(idle_s + blocked_s, ready_s)
        yield _Idle(cause, idle_s, blocked_until_s, name)
        yield _Idle(Part.HOST, blocked_until_s, ready_s, name)
        yield _Idle(Part.UNEXPLAINED, ready_s, span.start_s)

    def host_time(self, name: str | None, start_s: float, end_s: float) -> Mapping[str, float]:
        """Return what the host did from `start_s` to `end_s`, before the end of its task `name`, with the seconds."""
        seconds: dict[str, float] = defaultdict(float)
        while name is not None and self._tasks[name].device == HOST and self._times[name][1] > start_s:
            body, (begins_s, ends_s) = self._tasks[name].body, self._times[name]
            label = body.op or ("Python" if body.label == GAP else body.label)
            seconds[label] += max(0.0, min(ends_s, end_s) - max(begins_s, start_s))
            name = self._waited_for(name)
        return seconds

    def _cause(self, span: Span, name: str, idle_s: float) -> tuple[Part, float]:
        """Return why `span` started no earlier, if `name` was the last that it waited for and the device was idle from `idle_s` on.

        Also returns for how long at most that is the reason: for a synchronization, how long it blocked its thread.
        """
        before, always = self._tasks[name], float("inf")
        if before.device != HOST:
            if before.device != span.device or ARRIVAL in name:
                return Part.OTHER_RANK, always
            return Part.BETWEEN_KERNELS if f"stream {before.stream}" == span.lane else Part.DEPENDENCY, always
        if self._times[name][1] <= idle_s:
            return Part.BETWEEN_KERNELS, always
        while True:
            if LOST_LAUNCH in name:
                return Part.UNEXPLAINED, always
            earlier = self._waited_for(name)
            if earlier is None:
                return Part.HOST, always
            if self._tasks[earlier].device != HOST:
                called_s = self._times[self._before_in_thread[name]][1] if name in self._before_in_thread else 0.0
                return Part.SYNCHRONIZATION, self._times[name][1] - called_s
            if self._times[earlier][1] <= idle_s:
                return Part.HOST, always
            name = earlier


def _cut(span: Span, start_s: float, end_s: float) -> Span:
    return Span(span.task, span.device, span.lane, start_s, end_s, span.phase)
