"""Co-runs of fixed kernels: pairs of them on two streams of one graph, and each of them alone."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from executors.cuda.driver import Driver, Event, Partition
from executors.cuda.issue import fork, join


@dataclass(frozen=True)
class Sizes:
    """Sizes of the fixed kernels: edges of the large and the small square matrices, and bytes of a copy."""

    gemm: int = 4096
    small_gemm: int = 256
    copy_bytes: int = 256 << 20

    def others(self) -> "Sizes":
        """Different sizes, on which to score what was fitted on these."""
        return Sizes(self.gemm * 3 // 4, self.small_gemm * 3 // 2, self.copy_bytes // 2)


@dataclass(frozen=True)
class PairTimes:
    """Times of two streams that each repeat one kernel: of each alone, of each beside the other, and until both have ended.

    `counts` are the repetitions, chosen so that both streams take about equally long alone.
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
        """Each stream's time beside the other, as a multiple of its time alone."""
        return self.first_beside_s / self.first_s, self.second_beside_s / self.second_s


def named_kernels(driver: Driver, sizes: Sizes) -> dict[str, Issue]:
    """A matrix product that fills the GPU, one of a few blocks, and a kernel bound by memory."""
    device = driver.device

    def gemm(edge: int) -> Issue:
        a, b, out = (torch.randn(edge, edge, device=device) for _ in range(3))
        return lambda: torch.mm(a, b, out=out)

    source, target = torch.randn(sizes.copy_bytes // 4, device=device), torch.empty(sizes.copy_bytes // 4, device=device)
    return {"gemm": gemm(sizes.gemm), "small gemm": gemm(sizes.small_gemm), "copy": lambda: torch.neg(source, out=target)}


#: A stream takes this many times as long as its longest kernel or as a calibration graph, whichever is longer.
_TIMES = 4
_PAIRS = (("gemm", "gemm"), ("small gemm", "small gemm"), ("gemm", "small gemm"), ("gemm", "copy"), ("copy", "copy"))


def co_runs(
    driver: Driver, sizes: Sizes | None = None, partitions: tuple[Partition, Partition] | None = None, effort: Effort | None = None
) -> list[PairTimes]:
    """Measure the fixed pairs, sharing the GPU, or each stream on its own partition."""
    benches = [Bench(driver, partition, effort) for partition in partitions or (None, None)]
    left, right = (named_kernels(driver, sizes or Sizes()) for _ in benches)
    return [_co_run(benches[0], benches[1], f"{a} / {b}", left[a], right[b]) for a, b in _PAIRS]


def _co_run(first: Bench, second: Bench, name: str, left: Issue, right: Issue) -> PairTimes:
    counts = _balanced_counts([(first, left), (second, right)])
    works = [partial(repeated(issue), count) for issue, count in zip((left, right), counts, strict=True)]
    alone = [bench.replays([bench.capture(work)])[0] for bench, work in zip((first, second), works, strict=True)]
    begin, ends = first.driver.event(timing=True, external=True), [first.driver.event(timing=True, external=True) for _ in works]
    graph = first.capture(lambda: _issue_pair(first, second, works, begin, ends))
    ends_s = list(_pair_seconds(first, graph, begin, ends))
    solo = [statistics.median(times) for times in alone]
    beside = [statistics.median([times[side] for times in ends_s]) for side in range(2)]
    return PairTimes(name, solo[0], solo[1], beside[0], beside[1], statistics.median([max(times) for times in ends_s]), counts)


def _balanced_counts(kernels: list[tuple[Bench, Issue]]) -> tuple[int, int]:
    """Repetitions of each kernel that take equally long: several times as long as a calibration graph, and at least a few kernels."""
    seconds = []
    for bench, issue in kernels:
        bench.run(issue)
        seconds.append(bench.slope_s(repeated(issue), bench.effort.fewest_copies, rounds=2))
    target_s = _TIMES * max(*seconds, *(bench.effort.graph_s for bench, _ in kernels))
    first, second = (max(1, round(target_s / s)) for s in seconds)
    return first, second


def _issue_pair(first: Bench, second: Bench, works: Sequence[Issue], begin: Event, ends: list[Event]) -> None:
    """Issue both works between a fork and a join, with one event at the fork and one at the end of each work."""
    driver = first.driver
    begin.record(first.stream)
    fork(driver, first.stream, [second.stream])
    for bench, work, end in zip((first, second), works, ends, strict=True):
        driver.use(bench.stream)
        work()
        end.record(bench.stream)
    join(driver, [second.stream], first.stream)
    driver.use(first.stream)


def _pair_seconds(bench: Bench, graph, begin: Event, ends: list[Event]) -> Iterator[tuple[float, ...]]:
    """Seconds from the fork to the end of each work, by round. Each replay is waited for, since the next one overwrites the events."""
    bench.run(graph.replay)
    for _ in range(bench.effort.rounds):
        bench.run(graph.replay)
        yield tuple(begin.elapsed_time(end) * 1e-3 for end in ends)
