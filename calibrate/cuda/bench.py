"""Times work on one stream of a GPU: replays of captured graphs between timing events, with the GPU kept busy."""

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from executors.cuda.driver import Driver, Event, Graph, Partition

Issue = Callable[[], None]


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure.

    `rounds` of interleaved replays give one estimate each. A graph of n copies takes about `graph_s`, many times an event's resolution of
    half a microsecond, with n within `fewest_copies` and `most_copies`. Cold copies have `most_sets` sets of operands at most.
    The host's time is measured on `most_issues` tasks at most per round.
    """

    rounds: int = 5
    graph_s: float = 350e-6
    fewest_copies: int = 4
    most_copies: int = 200
    most_sets: int = 64
    most_issues: int = 20

    def copies(self, seconds: float) -> int:
        """How many copies of something that takes so long make a graph."""
        return max(self.fewest_copies, min(self.most_copies, round(self.graph_s / max(seconds, 1e-9))))


class Bench:
    """A stream of the GPU, or of one of its partitions, and ways to time what is issued to it."""

    def __init__(self, driver: Driver, partition: Partition | None = None, effort: Effort | None = None):
        self.driver = driver
        self.effort = effort or Effort()
        self.stream = driver.stream(partition=partition)

    def run(self, issue: Issue) -> None:
        """Issue work to the stream, after all that other streams have made for it, and wait for it."""
        self.driver.synchronize()
        self.driver.use(self.stream)
        issue()
        self.driver.synchronize()

    def capture(self, issue: Issue) -> Graph:
        """A graph of what `issue` issues, which may use what any stream has made before. It does not keep the tensors that it works on."""
        self.driver.synchronize()
        self.driver.use(self.stream)
        with self.driver.capture(self.stream) as graph:
            issue()
        return graph

    def replays(self, graphs: Sequence[Graph], rounds: int | None = None) -> list[list[float]]:
        """Seconds of each graph's replays, by graph.

        All are queued before any is waited for, after one untimed replay of each, which uploads the graph and keeps the GPU busy.
        """
        self.driver.use(self.stream)
        for graph in graphs:
            graph.replay()
        return self.between([graph.replay for graph in graphs], rounds)

    def slopes(self, cases: Sequence[tuple[Callable[[int], None], int]], rounds: int | None = None) -> list[list[float]]:
        """Seconds per copy by round, for each (function that issues so many copies, n): (t(2n copies) − t(n copies)) / n.

        What a graph costs whatever its size cancels; so does what `issue` issues besides the copies. The cases take turns.
        """
        graphs = [self.capture(lambda issue=issue, count=count: issue(count)) for issue, n in cases for count in (n, 2 * n)]
        times = self.replays(graphs, rounds)
        return [per_copy(times[2 * i], times[2 * i + 1], n) for i, (_, n) in enumerate(cases)]

    def slope_s(self, issue: Callable[[int], None], n: int, rounds: int | None = None) -> float:
        """Median seconds per copy of one case of `slopes`."""
        return statistics.median(self.slopes([(issue, n)], rounds)[0])

    def host_s(self, issue: Issue, calls: int) -> list[float]:
        """Host seconds per call by round, issued to an idle stream. `calls` must be far from filling its queue."""
        driver, many = self.driver, repeated(issue)
        driver.use(self.stream)
        found = []
        for _ in range(self.effort.rounds):
            driver.synchronize()
            begin = driver.now_s()
            many(calls)
            found.append((driver.now_s() - begin) / calls)
        driver.synchronize()
        return found

    def between(self, issues: Sequence[Issue], rounds: int | None = None) -> list[list[float]]:
        """Seconds between events around each piece of work, by piece, taking turns; includes waiting for a host that is behind."""
        self.driver.use(self.stream)
        marks = [[self._timed(issue) for issue in issues] for _ in range(rounds or self.effort.rounds)]
        self.driver.synchronize()
        return [[_seconds(*mark) for mark in column] for column in zip(*marks, strict=True)]

    def _timed(self, issue: Issue) -> tuple[Event, Event]:
        first, last = self.driver.event(timing=True), self.driver.event(timing=True)
        first.record(self.stream)
        issue()
        last.record(self.stream)
        return first, last


def _seconds(first: Event, last: Event) -> float:
    return first.elapsed_time(last) * 1e-3


@contextmanager
def objects_kept() -> Iterator[None]:
    """Spare the garbage collector, which a capture may run first, the search through plans and libraries: a tenth of a second each time.

    Nothing to do where they are spared already.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def per_copy(short_s: Sequence[float], long_s: Sequence[float], n: int) -> list[float]:
    """Seconds per copy by round, from those of n and of 2n copies; never below 0, where noise would put it."""
    return [max(0.0, (long - short) / n) for short, long in zip(short_s, long_s, strict=True)]


def repeated(issue: Issue) -> Callable[[int], None]:
    """A function that issues so many copies of `issue`."""

    def copies(count: int) -> None:
        for _ in range(count):
            issue()

    return copies
