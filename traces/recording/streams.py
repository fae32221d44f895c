"""The streams of a recording as lanes without overlap, and what was launched to them and had ended by a time."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

from traces.recording.recording import Recording, Work, by_lane

#: How far starts and ends on a device, rounded to microseconds, may disagree.
DEVICE_CLOCK_S = 2e-6
#: The streams used last that are looked at where a recording does not say which one is meant, and the works around a time.
MOST_STREAMS = 64
#: Works of one stream that may run at once (branches of a CUDA graph); more are taken one after another.
MOST_ROWS = 64

#: (device, stream).
Lane = tuple[int, int]


def lanes_of(works: Sequence[Work]) -> tuple[dict[Lane, list[int]], dict[int, list[int]]]:
    """Lanes without overlap, and by work the works of other lanes of its stream that ended last before it started."""
    lanes, beside = by_lane(works), {}
    spare = 1 + max((stream for _, stream in lanes), default=0)
    for (device, stream), members in list(lanes.items()):
        rows: list[list[int]] = [[]]
        for index in members:
            start = works[index].start_s + DEVICE_CLOCK_S
            row = next((row for row in rows if not row or works[row[-1]].end_s <= start), None)
            if row is None and len(rows) < MOST_ROWS:
                row = []
                rows.append(row)
            elif row is None:
                row = min(rows, key=lambda row: works[row[-1]].end_s)
            others = [ended for other in rows if other is not row and (ended := _ended(works, other, start)) >= 0]
            if others:
                beside[index] = others
            row.append(index)
        lanes[device, stream] = rows[0]
        for row in rows[1:]:
            lanes[device, spare] = row
            spare += 1
    return lanes, beside


def _ended(works: Sequence[Work], row: list[int], by_s: float) -> int:
    """The last work of a row that had ended, -1 for none."""
    at = bisect_right(row, by_s, key=lambda index: works[index].end_s)
    return row[at - 1] if at else -1


class Streams:
    """Per lane, what was launched by a time and had ended by another."""

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
        #: Works with a launch, in the order of their launches.
        self.by_launch = sorted((i for i, work in enumerate(self.works) if work.call >= 0), key=lambda i: (self.launched_s[i], i))
        self._by_id: dict[int, list[Lane]] = {}
        for lane in lanes:
            self._by_id.setdefault(lane[1], []).append(lane)

    def launched(self, lane: Lane, before_s: float) -> int:
        """The last work of a lane launched before a time, -1 for none."""
        position = bisect_left(self.launches_s[lane], before_s)
        return self.lanes[lane][position - 1] if position else -1

    def ended(self, lane: Lane, before_s: float, by_s: float) -> int:
        """The last work of a lane launched before `before_s` that had ended by `by_s`, -1 for none."""
        position = min(bisect_left(self.launches_s[lane], before_s), bisect_right(self._ends[lane], by_s))
        return self.lanes[lane][position - 1] if position else -1

    def of_stream(self, stream: int) -> list[Lane]:
        """The lanes of a stream id, on whichever device."""
        return self._by_id.get(stream, [])


class Recent:
    """The lanes in order of their latest launch, for times asked in order."""

    def __init__(self, streams: Streams):
        self._streams = streams
        self._lanes: OrderedDict[Lane, None] = OrderedDict()
        self._position = 0

    def before(self, time_s: float) -> list[Lane]:
        """The lanes launched to before a time, the latest first, at most MOST_STREAMS."""
        self._forward(time_s)
        return list(islice(reversed(self._lanes), MOST_STREAMS))

    def take(self, time_s: float) -> list[Lane]:
        """The lanes launched to before a time and not taken yet."""
        self._forward(time_s)
        taken = list(self._lanes)
        self._lanes.clear()
        return taken

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
        """The works that ended last before a time, and those that ended next."""
        at = bisect_right(self._ends, time_s + DEVICE_CLOCK_S)
        return self._members[max(0, at - MOST_STREAMS) : at + MOST_STREAMS]
