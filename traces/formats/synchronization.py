"""Recovers from a recording which device work waits for other work, and which host calls wait for device work.

If the profiler recorded ids (`Recording.syncs`), they are used. Otherwise the rules are conservative: an edge that may exist is added,
unless the recorded times rule it out because the waiting side continued before the other ended.

- A stream-wait call applies to the next work that its thread launches. If the thread's previous launch went to another stream, that work
  waits for the stream's last work (`side.wait_stream(current)`). If not, or after several such calls in a row, it waits for the latest work
  of every other recently used stream that was launched by then and ended before it started.
- Work that starts later than its launch, its stream and its known waits explain waits for the work of another stream that was the last to
  end before it started. Without such work, it waits for work that ran all the time and was about to end, which occupied all SMs until its
  last wave.
- Profilers omit parts of CUDA graphs, and whole graphs. A pause between works of one graph, or next to a graph, that nothing else explains
  is therefore part of the graph: it follows the work before it and lasts as long as recorded. So does the time that a synchronizing call
  waits after a graph without recorded work.
- Work whose launch was not recorded waits for the last work of every other stream that ended before it started.
- A stream sync waits for the stream that its thread used last, an event sync for the latest work that ended before the call returned, a
  device sync (and cudaFree) for all streams. Copies from or to pageable memory, and calls without Async, wait for their own copy.
- A launch that took far longer than usual with a full queue waits for the work that had just ended, since the queue is bounded.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from statistics import median

from traces.errors import UnusableFileError
from traces.formats.recording import GRAPH_LAUNCH, KERNEL, MEMCPY, MEMSET, Call, CallKind, Recording, Work
from traces.formats.streams import DEVICE_CLOCK_S, Ends, Lane, Recent, Streams, lanes_of

#: The clocks of host and device may disagree by this much.
HOST_CLOCK_S = 5e-6
#: A start that is later than explained by more than this has an unknown cause.
UNEXPLAINED_S = 20e-6
#: The last wave of work that occupied all SMs takes at most this share of the time that the other work waited.
LAST_WAVE = 0.25
#: A launch waits for the queue if it takes this many times the median while this many works of its stream are outstanding (CUDA allows
#: about 1000).
SLOW_LAUNCH, FULL_QUEUE = 3.0, 256


@dataclass(slots=True)
class Order:
    """The edges of a recording that do not follow from the order within each stream and each thread.

    `lanes`: the works of each stream in order of start; works of a stream that overlap (branches of a CUDA graph) have separate lanes, with
    numbers above those of all streams. `released_s`: for each work, when its launch arrived at the device. `work_after`: for a work, the
    works of other lanes that it waits for. `call_after`: for a call, the works that it waits for. `delayed`: works with an unexplained
    delay, in seconds. `paused`: works before which a CUDA graph paused, in seconds: it ran work that was not recorded, or waited for the
    device itself. `held`: likewise the calls that waited for a CUDA graph without recorded work. `launch_gap_s`: the usual time between two
    works of one stream if the second was launched in time.
    """

    lanes: dict[Lane, list[int]]
    released_s: list[float]
    work_after: dict[int, list[int]] = field(default_factory=dict)
    call_after: dict[int, list[int]] = field(default_factory=dict)
    delayed: dict[int, float] = field(default_factory=dict)
    paused: dict[int, float] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    launch_gap_s: float = 0.0


#: The most pairs of concurrent things: works that overlap, and threads concurrent with each work and call. Simulation time grows with them.
MOST_PAIRS = 1 << 25


def recover(recording: Recording) -> Order:
    """Recover the order of work and calls. Raises UnusableFileError if there are far too many streams or threads to simulate them."""
    lanes, waits_for = lanes_of(recording.works)
    threads = len({call.thread for call in recording.calls})
    if threads * (len(recording.works) + len(recording.calls)) + _overlaps(recording.works) > MOST_PAIRS:
        raise UnusableFileError(
            f"trace {recording.source} has {len(recording.works)} kernels on {len(lanes)} streams, launched by {threads} threads:"
            " too many at once to replay; record fewer steps"
        )
    order = Order(lanes, _released(recording, lanes))
    for index, others in waits_for.items():
        order.work_after[index] = others
    streams = Streams(recording, order.lanes)
    _stream_waits(recording, order, streams)
    order.launch_gap_s = _launch_gap(recording, order)
    _host_waits(recording, order, streams)
    _explain(recording, order, streams)
    return order


def _overlaps(works: Sequence[Work]) -> int:
    """How many pairs of works overlap. `works` are in order of start."""
    ends: list[float] = []
    pairs = 0
    for work in works:
        while ends and ends[0] <= work.start_s:
            heappop(ends)
        pairs += len(ends)
        heappush(ends, work.end_s)
    return pairs


def _released(recording: Recording, lanes: dict[Lane, list[int]]) -> list[float]:
    """When the launch of each work arrived: at the end of its call plus the usual latency, but at the latest when the work started.

    The usual latency is the median over kernels that waited for no event on a device that was idle. Work without a recorded launch has the
    previous time of its stream.
    """
    works, calls = recording.works, recording.calls
    behind_wait = _launches_behind_a_wait(calls)
    latencies, ended_s = [], dict.fromkeys((work.device for work in works), float("-inf"))
    for work in works:
        if work.category == KERNEL and work.call >= 0 and ended_s[work.device] < calls[work.call].start_s and work.call not in behind_wait:
            latencies.append(work.start_s - calls[work.call].end_s)
        ended_s[work.device] = max(ended_s[work.device], work.end_s)
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


def _launches_behind_a_wait(calls: Sequence[Call]) -> set[int]:
    """Return the launches before which their thread made a stream wait for an event."""
    waiting: set[int] = set()
    launches = set()
    for number, call in enumerate(calls):
        if call.kind is CallKind.STREAM_WAIT:
            waiting.add(call.thread)
        elif call.kind is CallKind.LAUNCH and call.thread in waiting:
            waiting.discard(call.thread)
            launches.add(number)
    return launches


def _launch_gap(recording: Recording, order: Order) -> float:
    """The mean gap between successive works of a stream if the second was launched in time and waited for no other stream.

    Gaps far above the median have an unknown cause and are excluded.
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
    """The times at which events were recorded, by correlation id of the call."""
    return {call.correlation: call.start_s for call in calls if call.kind is CallKind.EVENT_RECORD and call.correlation > 0}


def _wait(order: Order, works: Sequence[Work], index: int, others: Iterable[int]) -> None:
    """Add edges from those of `others` (-1: none) that ended before the work started."""
    start_s = works[index].start_s + DEVICE_CLOCK_S
    ended = [other for other in others if other >= 0 and other != index and works[other].end_s <= start_s]
    if ended:
        edges = order.work_after.setdefault(index, [])
        edges += [other for other in dict.fromkeys(ended) if other not in edges]


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
    unrecorded = set(_launches_without_work(recording))
    pending = False  # whether such a launch may not have ended
    last_lane: dict[int, Lane] = {}
    recent, unsynchronized = Recent(streams), Recent(streams)
    early = [lane for lane, members in streams.lanes.items() if works[members[0]].call < 0]  # launched before the recording
    for number, call in enumerate(calls):
        until = call.end_s + HOST_CLOCK_S
        waited_for: list[int] = []
        if call.kind is CallKind.LAUNCH:
            for index in of_call.get(number, ()):
                work, lane = works[index], streams.lane_of[index]
                last_lane[call.thread] = lane
                if _blocks(call, work) and work.end_s <= until:
                    waited_for.append(index)
                elif call.end_s - call.start_s > slow_s:
                    done = streams.ended(lane, call.start_s, call.end_s)
                    if done >= 0 and position[index] - position[done] >= FULL_QUEUE and works[done].end_s > call.start_s:
                        waited_for.append(done)
        elif call.kind is CallKind.DEVICE_SYNC:
            lanes = [*unsynchronized.pop(call.start_s), *early]
            early = []
            waited_for = [streams.ended(lane, call.start_s, until) for lane in lanes]
        elif call.kind is CallKind.STREAM_SYNC:
            waited_for = _stream_sync(recording, number, last_lane.get(call.thread), streams, recent, until)
        elif call.kind is CallKind.EVENT_SYNC:
            waited_for = _event_sync(recording, number, records, streams, recent, until)
        works_after = [index for index in dict.fromkeys(waited_for) if index >= 0]
        if works_after:
            order.call_after[number] = works_after
        pending = pending or number in unrecorded
        if pending and call.kind in (CallKind.DEVICE_SYNC, CallKind.STREAM_SYNC, CallKind.EVENT_SYNC):
            held_s = call.end_s - max([call.start_s, *(works[index].end_s for index in works_after)])
            if held_s > UNEXPLAINED_S:
                order.held[number] = held_s
                pending = False


def _launches_without_work(recording: Recording) -> list[int]:
    """The calls that launch a CUDA graph of which no work is recorded."""
    with_work = {work.call for work in recording.works}
    return [number for number, call in enumerate(recording.calls) if launches_graph(call) and number not in with_work]


def launches_graph(call: Call) -> bool:
    """Whether the call launches a CUDA graph, all of whose works name it as their launch."""
    return GRAPH_LAUNCH in call.name


def _blocks(call: Call, work: Work) -> bool:
    """Whether the call returns only after its copy or set has ended."""
    if work.category not in (MEMCPY, MEMSET):
        return False
    return "Pageable" in work.name or (work.category == MEMCPY and "Async" not in call.name and "Graph" not in call.name)


def _stream_sync(recording: Recording, number: int, last: Lane | None, streams: Streams, recent: Recent, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.stream >= 0:
        return [streams.ended(lane, call.start_s, until) for lane in streams.of_stream(sync.stream)]
    if last is not None:
        latest = streams.launched(last, call.start_s)
        if latest >= 0 and recording.works[latest].end_s <= until:
            idle_s = call.end_s - max(call.start_s, recording.works[latest].end_s)
            return [latest] if idle_s <= UNEXPLAINED_S else [latest, _latest(recording.works, streams, recent, call.start_s, until)]
    return [_latest(recording.works, streams, recent, call.start_s, until)]


def _event_sync(recording: Recording, number: int, records: dict[int, float], streams: Streams, recent: Recent, until: float) -> list[int]:
    call, sync = recording.calls[number], recording.syncs.get(number)
    if sync is not None and sync.wait_on_stream >= 0:
        before = records.get(sync.record_correlation, call.start_s)
        return [streams.ended(lane, before, until) for lane in streams.of_stream(sync.wait_on_stream)]
    return [_latest(recording.works, streams, recent, call.start_s, until)]


def _latest(works: Sequence[Work], streams: Streams, recent: Recent, before_s: float, by_s: float) -> int:
    """The last work to end by `by_s` on any recently used lane; -1 if there is none."""
    ended = (streams.ended(lane, before_s, by_s) for lane in recent.before(before_s))
    return max((index for index in ended if index >= 0), key=lambda index: works[index].end_s, default=-1)


def _explain(recording: Recording, order: Order, streams: Streams) -> None:
    """Add a wait to work that starts late without a known reason, or without a launch, and note the delays that stay unexplained."""
    works = recording.works
    unrecorded = _launches_without_work(recording)
    device_ends = {device: Ends(works, device) for device in {work.device for work in works}}
    for lane, members in order.lanes.items():
        before, call_before, number_before = float("-inf"), None, -1
        for index in members:
            work = works[index]
            call = recording.calls[work.call] if work.call >= 0 else None
            after_unrecorded = bisect_right(unrecorded, number_before) < bisect_right(unrecorded, work.call)
            blocking = call if call is not None and _blocks(call, work) else None
            if blocking is not None and after_unrecorded:
                order.released_s[index] = blocking.start_s  # the call takes so long because the graph does
            ready_s = max([before, order.released_s[index], *(works[other].end_s for other in order.work_after.get(index, ()))])
            if blocking is not None and not after_unrecorded:
                ready_s = max(ready_s, min(blocking.end_s, work.start_s))  # the host may stage it first
            in_graph = call is not None and call is call_before
            after_graph = after_unrecorded or any(each is not None and launches_graph(each) for each in (call, call_before))
            before, call_before, number_before = work.end_s, call, max(number_before, work.call)
            if work.start_s - ready_s <= UNEXPLAINED_S:
                continue
            if in_graph:
                order.paused[index] = work.start_s - ready_s
                continue
            launched = streams.launched_s[index] if call is not None else float("inf")
            near = [
                i for i in device_ends[work.device].around(work.start_s) if streams.lane_of[i] != lane and streams.launched_s[i] <= launched
            ]
            ended = [i for i in near if ready_s < works[i].end_s <= work.start_s + DEVICE_CLOCK_S]
            if ended:
                cause = max(ended, key=lambda i: works[i].end_s)
                _wait(order, works, index, [cause])
                ready_s = works[cause].end_s
            delay = work.start_s - ready_s
            if delay > UNEXPLAINED_S and call is not None:
                full = [i for i in near if works[i].start_s <= ready_s and 0.0 < works[i].end_s - work.start_s <= LAST_WAVE * delay]
                if after_graph:
                    order.paused[index] = delay
                elif full:
                    order.work_after.setdefault(index, []).append(min(full, key=lambda i: works[i].end_s))
                else:
                    order.delayed[index] = delay
