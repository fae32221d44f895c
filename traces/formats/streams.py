"""The streams of a recording as lanes without overlap, with lookups of the last work by a time, and hand-overs between host threads.

The forward thread waits while autograd's thread launches the backward pass. The profiler does not record these waits. They are inferred: if
one thread makes no calls while another thread makes a burst of calls that fills most of the pause, the burst waits for the first thread's
last call, and the first thread continues after the burst.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby, islice

from traces.formats.recording import Call, Recording, Work, by_lane

#: The least length of the pause, and the least share of it that the burst fills.
SHORTEST_S, FILLED = 100e-6, 0.5
#: How many threads, those with the most calls, are searched for hand-overs.
MOST_THREADS = 4


def hand_overs(calls: Sequence[Call]) -> dict[int, int]:
    """Maps the index of each waiting call to the index of the call of another thread that it waits for."""
    busiest = [thread for thread, _ in Counter(call.thread for call in calls).most_common(MOST_THREADS)]
    waits: dict[int, int] = {}
    for position, first in enumerate(busiest):
        for second in busiest[position + 1 :]:
            members = [index for index, call in enumerate(calls) if call.thread in (first, second)]
            _between(calls, members, waits)
    return waits


def _between(calls: Sequence[Call], members: list[int], waits: dict[int, int]) -> None:
    """Add the hand-overs of two threads, whose calls `members` are in order of start, to `waits`."""
    bursts = [list(burst) for _, burst in groupby(members, key=lambda index: calls[index].thread)]
    for before, burst, after in zip(bursts, bursts[1:], bursts[2:], strict=False):
        left, right = before[-1], after[0]
        pause = calls[right].start_s - calls[left].end_s
        length = calls[burst[-1]].end_s - calls[burst[0]].start_s
        if pause >= SHORTEST_S and length >= FILLED * pause and calls[burst[-1]].end_s <= calls[right].start_s:
            if calls[left].end_s <= calls[burst[0]].start_s:
                waits.setdefault(burst[0], left)
            waits.setdefault(right, burst[-1])


#: Starts and ends on one device, which are rounded to microseconds, may disagree by this much.
DEVICE_CLOCK_S = 2e-6
#: How many recently used streams are candidates if a recording does not identify one, and how many works around a time.
MOST_STREAMS = 64
#: How many works of one stream may run at once (branches of a CUDA graph); more are treated as serial.
MOST_ROWS = 64

#: (device, stream).
Lane = tuple[int, int]


def lanes_of(works: Sequence[Work]) -> tuple[dict[Lane, list[int]], dict[int, list[int]]]:
    """Lanes in which works run one after another; and, for works of streams with several lanes, the last work to end on each other lane
    before it started, unless a work before it in its lane waits for that one.

    Only works of one CUDA graph, which have one launch, run side by side. Work that was launched by itself runs after the work before it in
    its stream, even if it started earlier: programmatic dependent launch (CUDA programming guide, section of that name) lets a kernel start
    and then wait while the kernel before it ends.
    """
    lanes = by_lane(works)
    waits_for: dict[int, list[int]] = {}
    spare = 1 + max((stream for _, stream in lanes), default=0)
    for (device, stream), members in list(lanes.items()):
        rows: list[list[int]] = [[]]
        waited: dict[tuple[int, int], int] = {}
        for index in members:
            start = works[index].start_s + DEVICE_CLOCK_S
            number = _row(works, rows, index, start)
            for other, row in enumerate(rows):
                ended = -1 if other == number else _ended(works, row, start)
                if ended >= 0 and waited.get((number, other)) != ended:
                    waited[number, other] = ended
                    waits_for.setdefault(index, []).append(ended)
            rows[number].append(index)
        lanes[device, stream] = rows[0]
        for row in rows[1:]:
            lanes[device, spare] = row
            spare += 1
    return lanes, waits_for


def _row(works: Sequence[Work], rows: list[list[int]], index: int, start: float) -> int:
    """The number of the row that the next work of a stream belongs to; a new row is added to `rows` if it needs one."""
    call = works[index].call
    busy = [number for number, row in enumerate(rows) if row and works[row[-1]].end_s > start]
    separate = [number for number in busy if call < 0 or works[rows[number][-1]].call != call]
    if separate:
        return max(separate, key=lambda number: works[rows[number][-1]].end_s)
    free = next((number for number in range(len(rows)) if number not in busy), None)
    if free is not None:
        return free
    if len(rows) < MOST_ROWS:
        rows.append([])
        return len(rows) - 1
    return min(busy, key=lambda number: works[rows[number][-1]].end_s)


def _ended(works: Sequence[Work], row: list[int], by_s: float) -> int:
    """The last work of a row that ended by `by_s`; -1 if none did."""
    at = bisect_right(row, by_s, key=lambda index: works[index].end_s)
    return row[at - 1] if at else -1


class Streams:
    """Finds, per lane, the last work that was launched before a time and ended by another."""

    def __init__(self, recording: Recording, lanes: Mapping[Lane, list[int]]):
        self.works = recording.works
        calls = recording.calls
        self.launched_s = [calls[work.call].start_s if work.call >= 0 else float("-inf") for work in self.works]
        self.lanes = lanes
        self.lane_of = {index: lane for lane, members in lanes.items() for index in members}
        self.launches_s: dict[Lane, list[float]] = {}
        self._ends: dict[Lane, list[float]] = {}
        for lane, members in lanes.items():
            latest, reached = float("-inf"), float("-inf")
            launches, ends = [], []
            for index in members:
                latest, reached = max(latest, self.launched_s[index]), max(reached, self.works[index].end_s)
                launches.append(latest)
                ends.append(reached)
            self.launches_s[lane], self._ends[lane] = launches, ends
        #: Works with a recorded launch, in the order of their launches.
        self.by_launch = sorted((i for i, work in enumerate(self.works) if work.call >= 0), key=lambda i: (self.launched_s[i], i))
        self._by_id: dict[int, list[Lane]] = {}
        for lane in lanes:
            self._by_id.setdefault(lane[1], []).append(lane)

    def launched(self, lane: Lane, before_s: float) -> int:
        """The last work of a lane launched before `before_s`; -1 if there is none."""
        position = bisect_left(self.launches_s[lane], before_s)
        return self.lanes[lane][position - 1] if position else -1

    def ended(self, lane: Lane, before_s: float, by_s: float) -> int:
        """The last work of a lane launched before `before_s` that ended by `by_s`; -1 if there is none."""
        position = min(bisect_left(self.launches_s[lane], before_s), bisect_right(self._ends[lane], by_s))
        return self.lanes[lane][position - 1] if position else -1

    def of_stream(self, stream: int) -> list[Lane]:
        """The lanes with this stream id, on all devices."""
        return self._by_id.get(stream, [])


class Recent:
    """The lanes in order of their latest launch. Times must be queried in ascending order."""

    def __init__(self, streams: Streams):
        self._streams = streams
        self._lanes: OrderedDict[Lane, None] = OrderedDict()
        self._position = 0

    def before(self, time_s: float) -> list[Lane]:
        """The lanes with a launch before `time_s`, the most recent first, at most MOST_STREAMS."""
        self._forward(time_s)
        return list(islice(reversed(self._lanes), MOST_STREAMS))

    def pop(self, time_s: float) -> list[Lane]:
        """The lanes with a launch before `time_s` since the last call of `pop`."""
        self._forward(time_s)
        lanes = list(self._lanes)
        self._lanes.clear()
        return lanes

    def _forward(self, time_s: float) -> None:
        streams = self._streams
        while self._position < len(streams.by_launch) and streams.launched_s[streams.by_launch[self._position]] < time_s:
            lane = streams.lane_of[streams.by_launch[self._position]]
            self._lanes[lane] = None
            self._lanes.move_to_end(lane)
            self._position += 1


class Ends:
    """The works of a device in order of their ends."""

    def __init__(self, works: Sequence[Work], device: int):
        self._members = sorted((i for i, work in enumerate(works) if work.device == device), key=lambda i: works[i].end_s)
        self._ends = [works[i].end_s for i in self._members]

    def around(self, time_s: float) -> list[int]:
        """The last works that ended before `time_s` and the next works to end after it."""
        at = bisect_right(self._ends, time_s + DEVICE_CLOCK_S)
        return self._members[max(0, at - MOST_STREAMS) : at + MOST_STREAMS]
