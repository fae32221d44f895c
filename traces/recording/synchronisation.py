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

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from traces.recording.recording import KERNEL, MEMCPY, MEMSET, Call, CallKind, Recording, Work
from traces.recording.streams import DEVICE_CLOCK_S, Ends, Lane, Recent, Streams, lanes_of

#: How far the clocks of host and device may disagree.
HOST_CLOCK_S = 5e-6
#: A start this much later than explained has a cause that was not seen.
UNEXPLAINED_S = 20e-6
#: The last wave of work that held all SMs: at most this share of the time that the other waited.
LAST_WAVE = 0.25
#: A launch is throttled if it takes so many times the median while this much work of its stream is outstanding (CUDA takes about 1000).
SLOW_LAUNCH, FULL_QUEUE = 3.0, 256


@dataclass(slots=True)
class Order:
    """Edges beyond the order of each stream and each thread.

    `lanes`: works of each stream in order of start; the works of a stream that overlap (branches of a CUDA graph) are lanes of their own,
    with a number above every stream's. `released_s`: when the launch of a work had arrived. `work_after`: by work, the works of other lanes
    that it waits for. `call_after`: by call, the works that it waits for. `delayed`: works whose start nothing explains, with the
    seconds. `launch_gap_s`: usual time between two works of one stream that were both launched in time.
    """

    lanes: dict[Lane, list[int]]
    released_s: list[float]
    work_after: dict[int, list[int]] = field(default_factory=dict)
    call_after: dict[int, list[int]] = field(default_factory=dict)
    delayed: dict[int, float] = field(default_factory=dict)
    launch_gap_s: float = 0.0


def recover(recording: Recording) -> Order:
    """The order of a recording's work and calls."""
    lanes, beside = lanes_of(recording.works)
    order = Order(lanes, _released(recording, lanes))
    for index, others in beside.items():
        order.work_after[index] = others
    streams = Streams(recording, order.lanes)
    _stream_waits(recording, order, streams)
    order.launch_gap_s = _launch_gap(recording, order)
    _host_waits(recording, order, streams)
    _explain(recording, order, streams)
    return order


def _released(recording: Recording, lanes: dict[Lane, list[int]]) -> list[float]:
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


def _launch_gap(recording: Recording, order: Order) -> float:
    """Mean gap between successive works of a stream where the second had been released in time and waited for no other stream.

    Gaps that something unseen explains, far above the median, are left out.
    """
    works, gaps = recording.works, []
    for members in order.lanes.values():
        for before, after in pairwise(members):
            gap = max(0.0, works[after].start_s - works[before].end_s)
            if order.released_s[after] < works[before].end_s - HOST_CLOCK_S and after not in order.work_after and gap <= UNEXPLAINED_S:
                gaps.append(gap)
    if not gaps:
        return 0.0
    limit = 3.0 * max(median(gaps), 1e-6)
    usual = [gap for gap in gaps if gap <= limit]
    return sum(usual) / len(usual)


def _stream_waits(recording: Recording, order: Order, streams: Streams) -> None:
    works, calls = recording.works, recording.calls
    records = _records(calls)
    pending: dict[int, list[int]] = {}
    previous: dict[int, Lane] = {}
    firsts: dict[int, int] = {}
    recent = Recent(streams)
    for index in streams.by_launch:
        firsts.setdefault(works[index].call, index)
    for number, call in enumerate(calls):
        if call.kind is CallKind.STREAM_WAIT:
            sync = recording.syncs.get(number)
            if sync is None or sync.stream < 0 or sync.wait_on_stream < 0:
                pending.setdefault(call.thread, []).append(number)
                continue
            for lane in streams.of_stream(sync.stream):
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
                    _wait(order, works, index, [streams.ended(other, latest, by) for other in recent.before(latest) if other != lane])
            previous[call.thread] = lane


def _records(calls: Sequence[Call]) -> dict[int, float]:
    """When events were recorded, by the correlation id of the call."""
    return {call.correlation: call.start_s for call in calls if call.kind is CallKind.EVENT_RECORD and call.correlation > 0}


def _wait(order: Order, works: Sequence[Work], index: int, others: Iterable[int]) -> None:
    """Add edges from those of `others` (-1: none) that had ended when the work started."""
    start_s = works[index].start_s + DEVICE_CLOCK_S
    kept = [other for other in others if other >= 0 and other != index and works[other].end_s <= start_s]
    if kept:
        known = order.work_after.setdefault(index, [])
        known += [other for other in dict.fromkeys(kept) if other not in known]


def _host_waits(recording: Recording, order: Order, streams: Streams) -> None:
    calls, works = recording.calls, recording.works
    records = _records(calls)
    launches = [call.end_s - call.start_s for call in calls if call.kind is CallKind.LAUNCH]
    slow_s = SLOW_LAUNCH * median(launches) if launches else 0.0
    position = {index: at for members in order.lanes.values() for at, index in enumerate(members)}
    of_call: dict[int, list[int]] = {}
    for index, work in enumerate(works):
        if work.call >= 0:
            of_call.setdefault(work.call, []).append(index)
    last: dict[int, Lane] = {}
    recent, unsynchronised = Recent(streams), Recent(streams)
    early = [lane for lane, members in streams.lanes.items() if works[members[0]].call < 0]  # launched before the recording
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
            lanes = [*unsynchronised.take(call.start_s), *early]
            early = []
            found = [streams.ended(lane, call.start_s, until) for lane in lanes]
        elif call.kind is CallKind.STREAM_SYNC:
            found = _stream_sync(recording, number, last.get(call.thread), streams, recent, until)
        elif call.kind is CallKind.EVENT_SYNC:
            found = _event_sync(recording, number, records, streams, recent, until)
        kept = [index for index in dict.fromkeys(found) if index >= 0]
        if kept:
            order.call_after[number] = kept


def _blocks(call: Call, work: Work) -> bool:
    if work.category not in (MEMCPY, MEMSET):
        return False
    return "Pageable" in work.name or (work.category == MEMCPY and "Async" not in call.name and "Graph" not in call.name)


def _stream_sync(recording: Recording, number: int, last: Lane | None, streams: Streams, recent: Recent, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.stream >= 0:
        return [streams.ended(lane, call.start_s, until) for lane in streams.of_stream(sync.stream)]
    if last is not None:
        found = streams.launched(last, call.start_s)
        if found >= 0 and recording.works[found].end_s <= until:
            idle = call.end_s - max(call.start_s, recording.works[found].end_s)
            return [found] if idle <= UNEXPLAINED_S else [found, _latest(recording.works, streams, recent, call.start_s, until)]
    return [_latest(recording.works, streams, recent, call.start_s, until)]


def _event_sync(recording: Recording, number: int, records: dict[int, float], streams: Streams, recent: Recent, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.wait_on_stream >= 0:
        before = records.get(sync.record_correlation, call.start_s)
        return [streams.ended(lane, before, until) for lane in streams.of_stream(sync.wait_on_stream)]
    return [_latest(recording.works, streams, recent, call.start_s, until)]


def _latest(works: Sequence[Work], streams: Streams, recent: Recent, before_s: float, by_s: float) -> int:
    """Of all recently used lanes, the work that ended last by `by_s`, -1 for none."""
    found = (streams.ended(lane, before_s, by_s) for lane in recent.before(before_s))
    return max((index for index in found if index >= 0), key=lambda index: works[index].end_s, default=-1)


def _explain(recording: Recording, order: Order, streams: Streams) -> None:
    """Work that starts late for no known reason, or without a launch, waits for what ended last before it; note what stays unexplained."""
    works = recording.works
    device_ends = {device: Ends(works, device) for device in {work.device for work in works}}
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
            near = [
                i for i in device_ends[work.device].around(work.start_s) if streams.lane_of[i] != lane and streams.launched_s[i] <= launched
            ]
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
