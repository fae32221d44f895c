"""Which device work waits for which, and which host calls wait for device work, recovered from a recording.

Where the profiler recorded ids (`Recording.syncs`), they are used. Elsewhere the rules are conservative: an edge that may exist is taken
unless the recorded times refute it (the waiting side went on before the other had ended).

- A stream-wait call concerns the next work that its thread launches. If the thread launched to another stream just before, that stream's
  last work is waited for (`side.wait_stream(current)`); if not, or if several such calls stand in a row, the latest work of every other
  recently used stream that had been launched by then and had ended when the waiting work started.
- Work that starts later than its launch, its stream and its known waits explain waits for the work of another stream that ended last
  before it started; failing that, for work that ran all the while and had nearly ended: it had all SMs until its last wave.
- Work whose launch was not recorded waits for the last work of every other stream that had ended before it started.
- A stream sync waits for the stream its thread used last, an event sync for the latest work that had ended when the call returned, a
  device sync (and cudaFree) for every stream. Copies from or to pageable memory, and calls without Async, wait for their own copy.
- A launch that took far longer than usual with a full queue waits for the work that had just ended: the queue is bounded.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from .recording import KERNEL, MEMCPY, MEMSET, Call, CallKind, Recording, Work, by_lane

#: How far the clocks of host and device, and starts and ends rounded to microseconds, may disagree.
HOST_CLOCK_S, DEVICE_CLOCK_S = 10e-6, 2e-6
#: A start this much later than explained has a cause that was not seen.
UNEXPLAINED_S = 20e-6
#: The last wave of work that held all SMs: at most this share of the time that the other waited.
LAST_WAVE = 0.25
#: Streams that one stream-wait call of unknown meaning may refer to: those used last.
MOST_STREAMS = 64
#: A launch is throttled if it takes so many times the median, and this long, while this much work of its stream is outstanding.
SLOW_LAUNCH, SLOW_LAUNCH_S, FULL_QUEUE = 10.0, 50e-6, 100


@dataclass(slots=True)
class Order:
    """Edges beyond the order of each stream and each thread.

    `lanes`: works of each stream in order of start; the works of a stream that overlap (branches of a CUDA graph) are lanes of their own,
    with a number above every stream's. `released_s`: when the launch of a work had arrived. `work_after`: by work, the works of other lanes
    that it waits for. `call_after`: by call, the works that it waits for. `delayed`: works whose start nothing explains, with the
    seconds. `launch_gap_s`: usual time between two works of one stream that were both launched in time.
    """

    lanes: dict[tuple[int, int], list[int]]
    released_s: list[float]
    work_after: dict[int, list[int]] = field(default_factory=dict)
    call_after: dict[int, list[int]] = field(default_factory=dict)
    delayed: dict[int, float] = field(default_factory=dict)
    launch_gap_s: float = 0.0


def recover(recording: Recording) -> Order:
    """The order of a recording's work and calls."""
    lanes, beside = _lanes(recording.works)
    order = Order(lanes, _released(recording, lanes))
    for index, others in beside.items():
        order.work_after[index] = others
    streams = _Streams(recording, order)
    order.launch_gap_s = _launch_gap(recording, order)
    _stream_waits(recording, order, streams)
    _host_waits(recording, order, streams)
    _explain(recording, order, streams)
    return order


def _lanes(works: Sequence[Work]) -> tuple[dict[tuple[int, int], list[int]], dict[int, list[int]]]:
    """Lanes without overlap, and by work the works of other lanes of its stream that ended last before it started."""
    lanes, beside = by_lane(works), {}
    spare = 1 + max((stream for _, stream in lanes), default=0)
    for (device, stream), members in list(lanes.items()):
        rows: list[list[int]] = [[]]
        for index in members:
            start = works[index].start_s + DEVICE_CLOCK_S
            row = next((row for row in rows if not row or works[row[-1]].end_s <= start), None)
            if row is None:
                row = []
                rows.append(row)
            others = [other[-1] for other in rows if other and other is not row and works[other[-1]].end_s <= start]
            if others:
                beside[index] = others
            row.append(index)
        lanes[device, stream] = rows[0]
        for row in rows[1:]:
            lanes[device, spare] = row
            spare += 1
    return lanes, beside


def _released(recording: Recording, lanes: dict[tuple[int, int], list[int]]) -> list[float]:
    """When each work's launch had arrived: the end of its call plus the usual latency, but not after the work started.

    The usual latency is the median over kernels that found their stream idle. Work without a launch has its stream's last release.
    """
    works, calls = recording.works, recording.calls
    latencies = []
    for members in lanes.values():
        ended = float("-inf")
        for index in members:
            work = works[index]
            if work.category == KERNEL and work.call >= 0 and ended < calls[work.call].start_s:
                latencies.append(work.start_s - calls[work.call].end_s)
            ended = work.end_s
    latency = median(latencies) if latencies else 0.0
    released = [0.0] * len(works)
    for members in lanes.values():
        last = float("-inf")
        for index in members:
            work = works[index]
            if work.call >= 0:
                call = calls[work.call]
                last = max(call.start_s, min(call.end_s + latency, work.start_s))
            released[index] = last
    return released


class _Streams:
    """Per lane, what was launched by a time and had ended by another."""

    def __init__(self, recording: Recording, order: Order):
        self.works = recording.works
        calls = recording.calls
        self.launched_s = [calls[work.call].start_s if work.call >= 0 else float("-inf") for work in self.works]
        self.lanes = order.lanes
        self.lane_of = {index: lane for lane, members in order.lanes.items() for index in members}
        self.launches_s: dict[tuple[int, int], list[float]] = {}
        self._ends: dict[tuple[int, int], list[float]] = {}
        for lane, members in order.lanes.items():
            latest, reached = float("-inf"), float("-inf")
            launches, ends = [], []
            for index in members:
                latest, reached = max(latest, self.launched_s[index]), max(reached, self.works[index].end_s)
                launches.append(latest)
                ends.append(reached)
            self.launches_s[lane], self._ends[lane] = launches, ends
        #: Works with a launch, in the order of their launches.
        self.by_launch = sorted((i for i, work in enumerate(self.works) if work.call >= 0), key=lambda i: (self.launched_s[i], i))
        self.by_launch_s = [self.launched_s[index] for index in self.by_launch]

    def launched(self, lane: tuple[int, int], before_s: float) -> int:
        """The last work of a lane launched before a time, -1 for none."""
        position = bisect_left(self.launches_s[lane], before_s)
        return self.lanes[lane][position - 1] if position else -1

    def ended(self, lane: tuple[int, int], before_s: float, by_s: float) -> int:
        """The last work of a lane launched before `before_s` that had ended by `by_s`, -1 for none."""
        position = min(bisect_left(self.launches_s[lane], before_s), bisect_right(self._ends[lane], by_s))
        return self.lanes[lane][position - 1] if position else -1

    def recent(self, before_s: float) -> list[tuple[int, int]]:
        """The lanes launched to before a time, the latest first, at most MOST_STREAMS."""
        found: dict[tuple[int, int], None] = {}
        position = bisect_left(self.by_launch_s, before_s)
        for index in reversed(self.by_launch[max(0, position - MOST_STREAMS * 64) : position]):
            found.setdefault(self.lane_of[index])
            if len(found) == MOST_STREAMS:
                break
        return list(found)


def _launch_gap(recording: Recording, order: Order) -> float:
    """Mean gap between successive works of a stream where the second had been released in time; gaps far above the median left out."""
    works, gaps = recording.works, []
    for members in order.lanes.values():
        for before, after in pairwise(members):
            if order.released_s[after] < works[before].end_s - HOST_CLOCK_S:
                gaps.append(max(0.0, works[after].start_s - works[before].end_s))
    if not gaps:
        return 0.0
    limit = 3.0 * max(median(gaps), 1e-6)
    usual = [gap for gap in gaps if gap <= limit]
    return sum(usual) / len(usual)


def _stream_waits(recording: Recording, order: Order, streams: _Streams) -> None:
    works, calls = recording.works, recording.calls
    records = {call.correlation: call.start_s for call in calls if call.kind is CallKind.EVENT_RECORD and call.correlation > 0}
    pending: dict[int, list[int]] = {}
    previous: dict[int, tuple[int, int]] = {}
    firsts: dict[int, int] = {}
    for index in streams.by_launch:
        firsts.setdefault(works[index].call, index)
    for number, call in enumerate(calls):
        if call.kind is CallKind.STREAM_WAIT:
            sync = recording.syncs.get(number)
            if sync is None or sync.stream < 0 or sync.wait_on_stream < 0:
                pending.setdefault(call.thread, []).append(number)
                continue
            for lane in [lane for lane in streams.lanes if lane[1] == sync.stream]:
                position = bisect_right(streams.launches_s[lane], call.start_s)
                if position < len(streams.lanes[lane]):
                    source = (lane[0], sync.wait_on_stream)
                    before = records.get(sync.record_correlation, call.start_s)
                    if source in streams.lanes:
                        _wait(order, works, streams.lanes[lane][position], [streams.launched(source, before)])
        elif number in firsts:
            index = firsts[number]
            lane = streams.lane_of[index]
            waits = pending.pop(call.thread, [])
            if waits:
                latest = calls[waits[-1]].start_s
                last = previous.get(call.thread)
                if len(waits) == 1 and last is not None and last != lane:
                    _wait(order, works, index, [streams.launched(last, latest)])
                else:
                    by = works[index].start_s + DEVICE_CLOCK_S
                    _wait(order, works, index, [streams.ended(other, latest, by) for other in streams.recent(latest) if other != lane])
            previous[call.thread] = lane


def _wait(order: Order, works: Sequence[Work], index: int, others: Iterable[int]) -> None:
    """Add edges from those of `others` (-1: none) that had ended when the work started."""
    start_s = works[index].start_s + DEVICE_CLOCK_S
    kept = [other for other in others if other >= 0 and other != index and works[other].end_s <= start_s]
    if kept:
        known = order.work_after.setdefault(index, [])
        known += [other for other in dict.fromkeys(kept) if other not in known]


def _host_waits(recording: Recording, order: Order, streams: _Streams) -> None:
    calls, works = recording.calls, recording.works
    launches = [call.end_s - call.start_s for call in calls if call.kind is CallKind.LAUNCH]
    slow_s = max(SLOW_LAUNCH_S, SLOW_LAUNCH * median(launches)) if launches else 0.0
    position = {index: at for members in order.lanes.values() for at, index in enumerate(members)}
    of_call: dict[int, list[int]] = {}
    for index, work in enumerate(works):
        if work.call >= 0:
            of_call.setdefault(work.call, []).append(index)
    last: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(calls):
        until = call.end_s + HOST_CLOCK_S
        found: list[int] = []
        if call.kind is CallKind.LAUNCH:
            for index in of_call.get(number, ()):
                work, lane = works[index], streams.lane_of[index]
                last[call.thread] = lane
                if _blocks(call, work) and work.end_s <= until:
                    found.append(index)
                elif call.end_s - call.start_s > slow_s:
                    done = streams.ended(lane, call.start_s, call.end_s)
                    if done >= 0 and position[index] - position[done] >= FULL_QUEUE and works[done].end_s > call.start_s:
                        found.append(done)
        elif call.kind is CallKind.DEVICE_SYNC:
            found = [streams.ended(lane, call.start_s, until) for lane in streams.lanes]
        elif call.kind is CallKind.STREAM_SYNC:
            found = _stream_sync(recording, number, last.get(call.thread), streams, until)
        elif call.kind is CallKind.EVENT_SYNC:
            found = _event_sync(recording, number, streams, until)
        kept = [index for index in dict.fromkeys(found) if index >= 0]
        if kept:
            order.call_after[number] = kept


def _blocks(call: Call, work: Work) -> bool:
    if work.category not in (MEMCPY, MEMSET):
        return False
    return "Pageable" in work.name or (work.category == MEMCPY and "Async" not in call.name and "Graph" not in call.name)


def _stream_sync(recording: Recording, number: int, last: tuple[int, int] | None, streams: _Streams, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.stream >= 0:
        return [streams.ended(lane, call.start_s, until) for lane in streams.lanes if lane[1] == sync.stream]
    if last is not None:
        found = streams.launched(last, call.start_s)
        if found >= 0 and recording.works[found].end_s <= until:
            idle = call.end_s - max(call.start_s, recording.works[found].end_s)
            return [found] if idle <= UNEXPLAINED_S else [found, _latest(recording.works, streams, call.start_s, until)]
    return [_latest(recording.works, streams, call.start_s, until)]


def _event_sync(recording: Recording, number: int, streams: _Streams, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.wait_on_stream >= 0:
        recorded = [c.start_s for c in recording.calls if c.kind is CallKind.EVENT_RECORD and c.correlation == sync.record_correlation]
        before = recorded[0] if recorded else call.start_s
        return [streams.ended(lane, before, until) for lane in streams.lanes if lane[1] == sync.wait_on_stream]
    return [_latest(recording.works, streams, call.start_s, until)]


def _latest(works: Sequence[Work], streams: _Streams, before_s: float, by_s: float) -> int:
    """Of all recently used lanes, the work that ended last by `by_s`, -1 for none."""
    found = (streams.ended(lane, before_s, by_s) for lane in streams.recent(before_s))
    return max((index for index in found if index >= 0), key=lambda index: works[index].end_s, default=-1)


def _explain(recording: Recording, order: Order, streams: _Streams) -> None:
    """Work that starts late for no known reason, or without a launch, waits for what ended last before it; note what stays unexplained."""
    works = recording.works
    device_ends = {device: _Ends(works, device) for device in {work.device for work in works}}
    for lane, members in order.lanes.items():
        before = float("-inf")
        for index in members:
            work = works[index]
            call = recording.calls[work.call] if work.call >= 0 else None
            known = max([before, order.released_s[index], *(works[other].end_s for other in order.work_after.get(index, ()))])
            if call is not None and _blocks(call, work):
                known = max(known, min(call.end_s, work.start_s))  # the host may stage it first
            before = work.end_s
            if work.start_s - known <= UNEXPLAINED_S:
                continue
            launched = streams.launched_s[index] if call is not None else float("inf")
            near = [i for i in device_ends[work.device].around(work.start_s) if streams.lane_of[i] != lane and streams.launched_s[i] <= launched]
            ended = [i for i in near if known < works[i].end_s <= work.start_s + DEVICE_CLOCK_S]
            if ended:
                cause = max(ended, key=lambda i: works[i].end_s)
                _wait(order, works, index, [cause])
                known = works[cause].end_s
            delay = work.start_s - known
            if delay > UNEXPLAINED_S and call is not None:
                full = [i for i in near if works[i].start_s <= known and 0.0 < works[i].end_s - work.start_s <= LAST_WAVE * delay]
                if full:
                    order.work_after.setdefault(index, []).append(min(full, key=lambda i: works[i].end_s))
                else:
                    order.delayed[index] = delay


class _Ends:
    """The works of a device in order of their ends."""

    def __init__(self, works: Sequence[Work], device: int):
        self._members = sorted((i for i, work in enumerate(works) if work.device == device), key=lambda i: works[i].end_s)
        self._ends = [works[i].end_s for i in self._members]

    def around(self, time_s: float) -> list[int]:
        """The works that ended last before a time, and those that ended next."""
        at = bisect_right(self._ends, time_s + DEVICE_CLOCK_S)
        return self._members[max(0, at - MOST_STREAMS) : at + MOST_STREAMS]
