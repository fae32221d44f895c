"""Timed twins: task times from runs that differ from the timed ones only in events around every k-th task.

Events take time of their own, so they are spread over several runs: k is the smallest power of two with which a run is at most `SLOWER`
slower than the one without events, and k runs with different offsets are merged.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from executors.cuda.driver import Driver, Event, Stream
from executors.measured import Measured
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Task

SLOWER = 1.03
#: More runs than this are not made: with events on every 64th task a run is as good as without.
MOST_TWINS = 64
#: How many times over a typical period is shown.
SHOWN = 3


class EagerMarks:
    """A timing event before and after every k-th task.

    The one before is reached as soon as the lane is there, which on a lane that has run dry is long before the task: a task starts no
    earlier than the host has issued it (its only launch, or the first of several).
    """

    def __init__(self, driver: Driver, tasks: Sequence[Task], every: int, offset: int):
        self._driver, self._every, self._offset = driver, every, offset
        self._single = [task.body.launches <= 1 for task in tasks]
        self._events: list[tuple[int, int, Event, Event, float]] = []
        self._origin_s = self._begun_s = 0.0
        self._begun: Event | None = None

    def begin(self) -> None:
        """The event that times are told from has just been recorded, on idle lanes: seconds on the host and the GPU count from here."""
        self._origin_s = self._driver.now_s()

    def before(self, period: int, index: int, stream: Stream) -> None:
        """Mark the task's start."""
        if index % self._every == self._offset:
            self._begun = self._driver.event(timing=True)
            self._begun.record(stream)
            self._begun_s = self._driver.now_s()

    def after(self, period: int, index: int, stream: Stream) -> None:
        """Mark the task's end."""
        if index % self._every == self._offset:
            issued_s = self._driver.now_s() if self._single[index] else self._begun_s
            end = self._driver.event(timing=True)
            end.record(stream)
            self._events.append((period, index, self._begun, end, issued_s - self._origin_s))

    def within(self, origin: Event, begins: Mapping[int, float]) -> dict[int, tuple[float, float]]:
        """Task -> (start, end) in s within its period: medians over the periods whose begin, in s after `origin`, is given."""
        samples: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for period, index, begin, end, issued_s in self._events:
            if period in begins:
                start_s, end_s = (origin.elapsed_time(event) * 1e-3 for event in (begin, end))
                start_s = min(max(start_s, issued_s), end_s)
                samples[index].append((start_s - begins[period], end_s - begins[period]))
        return {index: tuple(map(statistics.median, zip(*seen, strict=True))) for index, seen in samples.items()}


class EndMarks:
    """An external event after every k-th task of a capture: a node of the graph, reached anew in every replay."""

    def __init__(self, driver: Driver, every: int, offset: int):
        self._driver, self._every, self._offset = driver, every, offset
        self._events: list[tuple[int, int, Event]] = []
        self._begin = driver.event(timing=True, external=True)

    def begin(self, stream: Stream) -> None:
        """Mark the graph's beginning, which times are told from."""
        self._begin.record(stream)

    def before(self, period: int, index: int, stream: Stream) -> None:
        """Nothing: a task starts when the one before it and those it waits for have ended."""

    def after(self, period: int, index: int, stream: Stream) -> None:
        """Mark the task's end."""
        if index % self._every == self._offset:
            event = self._driver.event(timing=True, external=True)
            event.record(stream)
            self._events.append((period, index, event))

    def read(self) -> dict[tuple[int, int], float]:
        """Seconds from the beginning of the latest replay to the end of each marked (period, task)."""
        return {(period, index): self._begin.elapsed_time(event) * 1e-3 for period, index, event in self._events}


def spread(step_s: float, tasks: int, timed: Callable[[int, int], tuple[float, dict]]) -> tuple[dict, float]:
    """What the runs of the chosen k saw, put together, and by what share the first of them was slower than a run without events.

    `timed(k, offset)` makes one run: its step in s, and what it saw.
    """
    every = 1
    while True:
        slow_s, found = timed(every, 0)
        if slow_s <= SLOWER * step_s or every >= min(tasks, MOST_TWINS):
            break
        every *= 2
    for offset in range(1, min(every, tasks)):
        found |= timed(every, offset)[1]
    return found, slow_s / step_s - 1


def repeated(offsets: Mapping[int, tuple[float, float]], step_s: float, largest_lag: int) -> list[Measured]:
    """A typical period's task times, (start, end) in s within it, `SHOWN` times over at distances of a step."""
    return [
        Measured(index, largest_lag + turn, begin + turn * step_s, max(begin, end) + turn * step_s, 0)
        for turn in range(SHOWN)
        for index, (begin, end) in sorted(offsets.items())
    ]


def with_starts(
    ends: Mapping[tuple[int, int], float], lanes: Sequence[tuple[str, int]], dependencies: Dependencies, begin_s: float = 0.0
) -> list[Measured]:
    """Tasks with the starts that their ends imply: when the lane and whatever is waited for had ended, and not before `begin_s`.

    `ends`: seconds by (period, task), in merged order of a graph's replay; `lanes` by task.
    """
    found, last = [], {}
    for (period, index), end in sorted(ends.items()):
        waited = [ends.get((period - edge.delta, edge.index), begin_s) for edge in dependencies.edges(period)[index]]
        begin = max([last.get(lanes[index], begin_s), *waited])
        last[lanes[index]] = max(begin, end)
        found.append(Measured(index, period, begin, max(begin, end), 0))
    return found
