"""Times work on one stream of a GPU: replays of captured graphs between timing events, while the GPU is kept busy.

Work is timed warm, or cold: on enough copies of its operands that none are in the cache. In both cases, its results go to memory that is
not in the cache: overwriting data that is still in the cache avoids a transfer to memory, which no step avoids.

Kernels whose blocks wait for each other may never end while others run (`executors.cuda.torch_driver`). Nothing can stop them, so
`GpuStalledError` ends the measurements of a process.
"""

import gc
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from executors.cuda.driver import STALLED, Driver, Event, GpuStalledError, Graph, Partition


def wait(driver: Driver) -> None:
    """Wait for all issued work. Raises GpuStalledError if it takes as long as a wait that is reported."""
    driver.synchronize(_stalled)


def _stalled() -> str:
    raise GpuStalledError(f"{STALLED} what was measured last")


def stalled(reasons: Iterable[str]) -> bool:
    """Whether one of the reasons says that the GPU never finished."""
    return any(STALLED in reason for reason in reasons)


Issue = Callable[[], object]
#: A function that issues a number of copies of some work, and how many copies are timed.
Case = tuple[Callable[[int], None], int]


@dataclass(frozen=True)
class Effort:
    """How much effort a measurement takes.

    Each of the `rounds` of interleaved replays gives one estimate. A graph has n copies of the work, so that it takes about `graph_s`, many
    times an event's resolution of half a microsecond; n is between `fewest_copies` and `most_copies`. Cold copies use at most `most_sets`
    sets of operands. The host's time is measured on at most `most_issues` tasks per round. Work that is bound by compute keeps the GPU busy
    for `sustained_s` before it is timed, since a burst runs at a clock that the power cap does not permit for long. With 0, bursts are
    timed.
    """

    rounds: int = 5
    graph_s: float = 350e-6
    fewest_copies: int = 4
    most_copies: int = 200
    most_sets: int = 64
    most_issues: int = 20
    sustained_s: float = 40e-3

    def copies(self, seconds: float) -> int:
        """How many copies of work that takes `seconds` make a graph."""
        return max(self.fewest_copies, min(self.most_copies, round(self.graph_s / max(seconds, 1e-9))))


class Bench:
    """Times what is issued to one stream of the GPU or of one of its partitions."""

    def __init__(self, driver: Driver, partition: Partition | None = None, effort: Effort | None = None, priority: int = 0):
        self.driver = driver
        self.effort = effort or Effort()
        self.stream = driver.stream(priority, partition)

    def run(self, issue: Issue) -> None:
        """Issue work to the stream after everything that other streams have issued, and wait for it."""
        wait(self.driver)
        self.driver.use(self.stream)
        issue()
        wait(self.driver)

    def capture(self, issue: Issue) -> Graph:
        """A graph of what `issue` issues. It may use tensors from any stream, and does not keep them alive."""
        wait(self.driver)
        self.driver.use(self.stream)
        with self.driver.capture(self.stream) as graph:
            issue()
        return graph

    def replays(
        self, graphs: Sequence[Graph], rounds: int | None = None, busy_s: float = 0.0, watch: Callable[[], None] | None = None
    ) -> list[list[float]]:
        """Seconds of each graph's replays: one list per graph.

        All replays are queued before any is waited for. One untimed replay of each graph comes first: it uploads the graph and keeps the
        GPU busy. More of them keep it busy for `busy_s`. `watch` is called while the timed ones run.
        """

        def once() -> None:
            for graph in graphs:
                graph.replay()

        self.driver.use(self.stream)
        once()
        if busy_s:
            ((seconds,),) = self.between([once], 1)
            for _ in range(math.ceil(busy_s / seconds)):
                once()
        return self.between([graph.replay for graph in graphs], rounds, watch)

    def graphs(self, cases: Sequence[Case]) -> list[Graph]:
        return [self.capture(partial(issue, count)) for issue, n in cases for count in (n, 2 * n)]

    def slopes(
        self, cases: Sequence[Case], rounds: int | None = None, graphs: Sequence[Graph] | None = None, **load: Any
    ) -> list[list[float]]:
        """Seconds per copy by round, for each case: (t(2n copies) − t(n copies)) / n.

        The constant cost of a graph cancels, and so does anything that the function issues besides the copies. The cases alternate.
        `graphs`: those of the cases, if they are captured already. `load`: as `replays` takes it.
        """
        times = self.replays(graphs or self.graphs(cases), rounds, **load)
        return [per_copy(times[2 * i], times[2 * i + 1], n) for i, (_, n) in enumerate(cases)]

    def slope_s(self, issue: Callable[[int], None], n: int, rounds: int | None = None) -> float:
        """Median seconds per copy of one case of `slopes`."""
        return statistics.median(self.slopes([(issue, n)], rounds)[0])

    def host_s(self, issue: Issue, calls: int) -> list[float]:
        """Host seconds per call by round, on an idle stream. `calls` must be far below the depth of the stream's queue."""
        driver, many = self.driver, repeated(issue)
        driver.use(self.stream)
        seconds = []
        for _ in range(self.effort.rounds):
            wait(driver)
            begin = driver.now_s()
            many(calls)
            seconds.append((driver.now_s() - begin) / calls)
        wait(driver)
        return seconds

    def between(self, issues: Sequence[Issue], rounds: int | None = None, watch: Callable[[], None] | None = None) -> list[list[float]]:
        """Seconds between events around each piece of work: one list per piece. The pieces alternate.

        The times include waiting for a host that issues too slowly. `watch` is called once the first piece has begun.
        """
        self.driver.use(self.stream)
        marks = [[self._timed(issue) for issue in issues] for _ in range(rounds or self.effort.rounds)]
        if watch is not None:
            self.driver.wait_for(marks[0][0][0], _stalled)
            watch()
        wait(self.driver)
        return [[first.elapsed_time(last) * 1e-3 for first, last in column] for column in zip(*marks, strict=True)]

    def _timed(self, issue: Issue) -> tuple[Event, Event]:
        first, last = self.driver.event(timing=True), self.driver.event(timing=True)
        first.record(self.stream)
        issue()
        last.record(self.stream)
        return first, last


#: Whether a context of `objects_kept` is open. The number of frozen objects does not say so: Python 3.12 begins with some, and a process
#: that a fork server started has those of the server.
_kept: list[bool] = []


@contextmanager
def objects_kept() -> Iterator[None]:
    """Freeze all live objects, so that garbage collections skip plans and libraries.

    A capture starts a collection, which would take a tenth of a second. Does nothing within another such context.
    """
    if _kept:
        yield
        return
    gc.collect()
    gc.freeze()
    _kept.append(True)
    try:
        yield
    finally:
        _kept.clear()
        gc.unfreeze()


def per_copy(short_s: Sequence[float], long_s: Sequence[float], n: int) -> list[float]:
    """Seconds per copy by round, from the seconds of n and of 2n copies; at least 0, since noise can make the difference negative."""
    return [max(0.0, (long - short) / n) for short, long in zip(short_s, long_s, strict=True)]


def repeated(issue: Issue) -> Callable[[int], None]:
    """A function that issues a given number of copies of `issue`."""

    def copies(count: int) -> None:
        for _ in range(count):
            issue()

    return copies


@dataclass(frozen=True)
class Cold:
    """How to time a task cold: `copies` copies that use `sets` sets of operands in turn.

    `always` is whether one set alone exceeds the cache, so that the task is cold even on the same operands.
    """

    sets: int
    copies: int
    always: bool

    @staticmethod
    def for_operands(set_bytes: int, cache_bytes: int, budget_bytes: int, copies: int, most_sets: int) -> "Cold":
        """The way to time a task whose operands take `set_bytes`.

        `copies` is the desired number of copies, and `budget_bytes` limits all sets together. If the sets together exceed twice the cache,
        the copies cycle through them. If they do not, every copy gets its own set.
        """
        size = max(1, set_bytes)
        wanted = max(2, 2 * cache_bytes // size + 1)
        sets = max(1, min(wanted, most_sets, budget_bytes // size))
        if sets < wanted:
            copies = max(1, min(copies, sets // 2))
        return Cold(min(sets, 2 * copies), copies, size > 2 * cache_bytes)


def results_kept(result_bytes: int, cache_bytes: int) -> int:
    """How many results to retain so that, together with the next one, they exceed twice the cache, as cold operands do."""
    return 2 * cache_bytes // max(1, result_bytes)


def in_turn(works: Sequence[Issue], flush: Issue, kept: int = 0) -> Callable[[int], None]:
    """A function that flushes the cache and then issues a given number of copies, cycling through `works`.

    The results of the last `kept` copies stay alive, since the allocator reuses free memory immediately. The flush makes all graphs
    start from the same state. Otherwise the first copy would be cold in one graph and warm in the next, and their difference would not
    cancel.
    """

    def copies(count: int) -> None:
        results: deque[object] = deque(maxlen=kept)
        flush()
        for i in range(count):
            results.append(works[i % len(works)]())

    return copies


def flusher(driver: Driver) -> Issue:
    """A function that evicts everything from the cache by reading twice its size.

    It reads and does not write, since the write-back of dirty lines would slow down the work that follows. It has run once already, so that
    no capture has to load its kernel.
    """
    buffer = torch.ones(max(1, 2 * driver.facts.cache_bytes // 4), device=driver.device)

    def flush() -> None:
        buffer.sum()

    flush()
    return flush
