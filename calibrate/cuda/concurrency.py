"""Pairs of kernels side by side on two streams of one graph, beside what each takes alone."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from executors.cuda.driver import Driver, Event, Partition
from executors.cuda.issue import fork, join


@dataclass(frozen=True)
class Sizes:
    """What the fixed kernels work on: edges of the large and small square matrices, bytes of a copy."""

    gemm: int = 4096
    small_gemm: int = 256
    copy_bytes: int = 256 << 20

    def others(self) -> "Sizes":
        """Sizes to try on what was learned from these."""
        return Sizes(self.gemm * 3 // 4, self.small_gemm * 3 // 2, self.copy_bytes // 2)


@dataclass(frozen=True)
class CoRun:
    """Two streams of repeated kernels: seconds of each alone, of each beside the other, and until both have ended.

    The repetitions, `counts`, are chosen so that both take about as long alone.
    """

    name: str
    first_s: float
    second_s: float
    first_beside_s: float
    second_beside_s: float
    together_s: float
    counts: tuple[int, int] = (1, 1)

    @property
    def slow_downs(self) -> tuple[float, float]:
        """How many times longer each takes beside the other."""
        return self.first_beside_s / self.first_s, self.second_beside_s / self.second_s


def named_kernels(driver: Driver, sizes: Sizes) -> dict[str, Issue]:
    """A matrix product that fills the GPU, one of a few blocks, and a kernel bound by memory."""
    device = driver.device

    def gemm(edge: int) -> Issue:
        a, b, out = (torch.randn(edge, edge, device=device) for _ in range(3))
        return lambda: torch.mm(a, b, out=out)

    source, target = torch.randn(sizes.copy_bytes // 4, device=device), torch.empty(sizes.copy_bytes // 4, device=device)
    return {"gemm": gemm(sizes.gemm), "small gemm": gemm(sizes.small_gemm), "copy": lambda: torch.neg(source, out=target)}


#: How many times longer a side takes than its longest kernel, or than a calibration graph.
_TIMES = 4
_PAIRS = (("gemm", "gemm"), ("small gemm", "small gemm"), ("gemm", "small gemm"), ("gemm", "copy"), ("copy", "copy"))


def co_runs(
    driver: Driver, sizes: Sizes | None = None, parts: tuple[Partition, Partition] | None = None, effort: Effort | None = None
) -> list[CoRun]:
    """Measure the fixed pairs, sharing the GPU or each on its own part of it."""
    benches = [Bench(driver, part, effort) for part in parts or (None, None)]
    left, right = (named_kernels(driver, sizes or Sizes()) for _ in benches)
    return [_co_run(benches[0], benches[1], f"{a} / {b}", left[a], right[b]) for a, b in _PAIRS]


def _co_run(first: Bench, second: Bench, name: str, left: Issue, right: Issue) -> CoRun:
    counts = _as_long([(first, left), (second, right)])
    works = [lambda issue=issue, count=count: repeated(issue)(count) for issue, count in zip((left, right), counts, strict=True)]
    alone = [bench.replays([bench.capture(work)])[0] for bench, work in zip((first, second), works, strict=True)]
    begin, ends = first.driver.event(timing=True, external=True), [first.driver.event(timing=True, external=True) for _ in works]
    graph = first.capture(lambda: _fork(first, second, works, begin, ends))
    sides = list(_side_by_side(first, graph, begin, ends))
    solo = [statistics.median(times) for times in alone]
    beside = [statistics.median([times[side] for times in sides]) for side in range(2)]
    return CoRun(name, solo[0], solo[1], beside[0], beside[1], statistics.median([max(times) for times in sides]), counts)


def _as_long(kernels: list[tuple[Bench, Issue]]) -> tuple[int, ...]:
    """Repetitions that take equally long: a few times as long as a calibration graph, and at least a few kernels."""
    seconds = []
    for bench, issue in kernels:
        bench.run(issue)
        seconds.append(bench.slope_s(repeated(issue), bench.effort.fewest_copies, rounds=2))
    target_s = _TIMES * max(*seconds, *(bench.effort.graph_s for bench, _ in kernels))
    return tuple(max(1, round(target_s / s)) for s in seconds)


def _fork(first: Bench, second: Bench, works: list[Issue], begin: Event, ends: list[Event]) -> None:
    """Issue both works between a fork and a join, with events of the replay at the fork and at either's end."""
    driver = first.driver
    begin.record(first.stream)
    fork(driver, first.stream, [second.stream])
    for bench, work, end in zip((first, second), works, ends, strict=True):
        driver.use(bench.stream)
        work()
        end.record(bench.stream)
    join(driver, [second.stream], first.stream)
    driver.use(first.stream)


def _side_by_side(bench: Bench, graph, begin: Event, ends: list[Event]) -> Iterator[tuple[float, ...]]:
    """Seconds from the fork to either's end, by round; one replay at a time, as the next one overwrites the events."""
    bench.run(graph.replay)
    for _ in range(bench.effort.rounds):
        bench.run(graph.replay)
        yield tuple(begin.elapsed_time(end) * 1e-3 for end in ends)
