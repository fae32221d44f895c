"""Instrumented runs: measures task times in runs that differ from the run without events only in events at every k-th task.

Events take time themselves, so they are spread over several runs. k is the smallest power of two for which a run takes at most `SLOWER`
times as long as the run without events. The times of k runs with different offsets are merged.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch

from executors.cuda.driver import Driver, Event, Stream, timing_event
from executors.measured import Measured
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Task

SLOWER = 1.03
#: The largest k. With events at every 64th task a run is practically as fast as without events.
MOST_RUNS = 64
#: How many times `repeat_period` repeats a typical period.
REPEATS = 3


class Origin:
    """The start of a run on idle streams. The events of all GPUs are counted from it, on one clock.

    Every GPU has a clock of its own, so each gets an event at the start, one after another. The host's clock says how much later than the
    first one each was recorded.
    """

    def __init__(self, driver: Driver, streams: Sequence[Stream]):
        self._marks: dict[torch.device, tuple[Event, float]] = {}
        first_s = None
        for stream in streams:
            if stream.device not in self._marks:
                event = timing_event(driver, stream)
                recorded_s = driver.now_s()
                first_s = recorded_s if first_s is None else first_s
                self._marks[stream.device] = event, recorded_s - first_s

    def seconds(self, event: Event, stream: Stream) -> float:
        """Seconds from the origin to a timing event that was recorded on the stream and has been reached."""
        mark, later_s = self._marks[stream.device]
        return later_s + mark.elapsed_time(event) * 1e-3


class EagerMarks:
    """Records a timing event before and after every k-th task of an eager run; called right before a task is issued, and right after.

    On an idle lane the event before a task is reached as soon as it is issued, which may be long before the task starts. So a task's start
    is not taken to be earlier than the host's time of issuing it: after its launch if it has one launch, before its first launch otherwise.
    """

    def __init__(self, driver: Driver, tasks: Sequence[Task], every: int, offset: int):
        self._driver, self._every, self._offset = driver, every, offset
        self._single = [task.body.launches <= 1 for task in tasks]
        self._events: list[tuple[int, int, Stream, Event, Event, float]] = []
        self._origin_s = self._begin_s = 0.0
        self._begin: Event | None = None

    def begin(self) -> None:
        """Start the host's clock. Called right after the origin of the GPUs' times, on idle lanes."""
        self._origin_s = self._driver.now_s()

    def before(self, period: int, index: int, stream: Stream) -> None:
        if index % self._every == self._offset:
            self._begin = timing_event(self._driver, stream)
            self._begin_s = self._driver.now_s()

    def after(self, period: int, index: int, stream: Stream) -> None:
        if index % self._every == self._offset:
            issued_s = self._driver.now_s() if self._single[index] else self._begin_s
            end = timing_event(self._driver, stream)
            assert self._begin is not None, "`before` was called for this task"
            self._events.append((period, index, stream, self._begin, end, issued_s - self._origin_s))

    def within(self, origin: Origin, begins: Mapping[int, float]) -> dict[int, tuple[float, float]]:
        """By task, (start, end) in s within its period: the medians over the periods in `begins`.

        `begins`: the starts of periods, in s after `origin`.
        """
        samples: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for period, index, stream, begin, end, issued_s in self._events:
            if period in begins:
                start_s, end_s = (origin.seconds(event, stream) for event in (begin, end))
                start_s = min(max(start_s, issued_s), end_s)
                samples[index].append((start_s - begins[period], end_s - begins[period]))
        return {index: tuple(map(statistics.median, zip(*pairs, strict=True))) for index, pairs in samples.items()}


class EndMarks:
    """Records an external event after every k-th task of a capture. The event is a node of the graph, reached again in every replay."""

    def __init__(self, driver: Driver, every: int, offset: int):
        self._driver, self._every, self._offset = driver, every, offset
        self._events: list[tuple[int, int, torch.device, Event]] = []
        self._begins: dict[torch.device, Event] = {}

    def begin(self, stream: Stream) -> None:
        """Mark the graph's start, from which times are counted, on the stream's GPU, before any task."""
        self._begins[stream.device] = event = self._driver.event(timing=True, external=True)
        event.record(stream)

    def before(self, period: int, index: int, stream: Stream) -> None:
        """Do nothing. Starts follow from the ends of other tasks; see `with_starts`."""

    def after(self, period: int, index: int, stream: Stream) -> None:
        if index % self._every == self._offset:
            event = self._driver.event(timing=True, external=True)
            event.record(stream)
            self._events.append((period, index, stream.device, event))

    def read(self) -> dict[tuple[int, int], float]:
        """Seconds from the start of the latest replay to the end of each marked task, by (period, task)."""
        begins = self._begins
        return {(period, index): begins[device].elapsed_time(event) * 1e-3 for period, index, device, event in self._events}


def run_instrumented(step_s: float, tasks: int, run_once: Callable[[int, int], tuple[float, dict]]) -> tuple[dict, float]:
    """Choose k and make the runs. Returns their merged times, and the relative slowdown of the first of them.

    `step_s`: the step time without events. `tasks`: the number of tasks. `run_once(k, offset)` makes one run and returns its step time in s
    and its times by task.
    """
    every = 1
    while True:
        run_s, times = run_once(every, 0)
        if run_s <= SLOWER * step_s or every >= min(tasks, MOST_RUNS):
            break
        every *= 2
    for offset in range(1, min(every, tasks)):
        times |= run_once(every, offset)[1]
    return times, run_s / step_s - 1


def repeat_period(offsets: Mapping[int, tuple[float, float]], step_s: float, largest_lag: int) -> list[Measured]:
    """The task times of `REPEATS` periods, one step apart. `offsets`: by task, (start, end) in s within a typical period."""
    return [
        Measured(index, largest_lag + repeat, begin + repeat * step_s, max(begin, end) + repeat * step_s, 0)
        for repeat in range(REPEATS)
        for index, (begin, end) in sorted(offsets.items())
    ]


def with_starts(ends: Mapping[tuple[int, int], float], lanes: Sequence[tuple[str, int]], dependencies: Dependencies) -> list[Measured]:
    """Task times with starts derived from ends: a task starts when its lane is idle and the tasks that it waits for have ended.

    `ends`: seconds by (period, task) from the start of a graph's replay. `lanes`: by task.
    """
    times: list[Measured] = []
    last: dict[tuple[str, int], float] = {}
    for (period, index), end in sorted(ends.items()):
        waited_for = [ends.get((period - edge.delta, edge.index), 0.0) for edge in dependencies.edges(period)[index]]
        begin = max([last.get(lanes[index], 0.0), *waited_for])
        last[lanes[index]] = max(begin, end)
        times.append(Measured(index, period, begin, max(begin, end), 0))
    return times
