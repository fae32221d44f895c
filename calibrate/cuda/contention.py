"""How kernels that share a GPU slow each other down: fixed kernels of two sizes on two streams of one graph, and each of them alone.

Multipliers are fitted on the kernels of one size and scored on those of the other, in each precision separately.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from calibrate.cuda.geometry import PartitionGeometry, longest
from calibrate.cuda.rates import dtype_of
from executors.cuda.driver import Driver, Event, Partition
from executors.cuda.issue import fork, join
from simulator.engine.costs.contention import COMPUTE, MEMORY, best_saturation_share, fit
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.site import figure
from simulator.engine.interference import modeled_slow_downs
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine
from traces.documents.profile import Contention, Interference, Profile


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
    """Times of two streams that each repeat one kernel: of each alone, of each concurrent with the other, and until both have ended.

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
        """Each stream's time concurrent with the other, as a multiple of its time alone."""
        return self.first_beside_s / self.first_s, self.second_beside_s / self.second_s


def named_kernels(driver: Driver, sizes: Sizes, precision: str = "fp32") -> dict[str, Issue]:
    """A matrix product that fills the GPU, one of a few blocks, and a kernel bound by memory."""
    dtype = dtype_of(precision)
    made = partial(torch.randn, device=driver.device, dtype=dtype)

    def gemm(edge: int) -> Issue:
        a, b, out = (made(edge, edge) for _ in range(3))
        return lambda: torch.mm(a, b, out=out)

    source, target = (made(sizes.copy_bytes // dtype.itemsize) for _ in range(2))
    return {"gemm": gemm(sizes.gemm), "small gemm": gemm(sizes.small_gemm), "copy": lambda: torch.neg(source, out=target)}


#: A stream takes this many times as long as its longest kernel or as a calibration graph, whichever is longer.
_TIMES = 4
_PAIRS = (("gemm", "gemm"), ("small gemm", "small gemm"), ("gemm", "small gemm"), ("gemm", "copy"), ("copy", "copy"))


def measure_pairs(
    driver: Driver,
    sizes: Sizes | None = None,
    partitions: tuple[Partition, Partition] | None = None,
    effort: Effort | None = None,
    precision: str = "fp32",
) -> list[PairTimes]:
    """Measure the fixed pairs, sharing the GPU, or each stream on its own partition."""
    benches = [Bench(driver, partition, effort) for partition in partitions or (None, None)]
    left, right = (named_kernels(driver, sizes or Sizes(), precision) for _ in benches)
    return [_measure_pair(benches[0], benches[1], f"{a} / {b}", left[a], right[b]) for a, b in _PAIRS]


@dataclass(frozen=True)
class Urgency:
    """What a priority does to a pair of kernels: their times with the first as urgent as the second, and more urgent.

    `modeled`: the slow-downs of the more urgent pair as the engine models them; None if the GPU's rates are unknown.
    """

    name: str
    equal: PairTimes
    urgent: PairTimes
    modeled: tuple[float, float] | None


def measure_urgency(driver: Driver, profile: Profile, sizes: Sizes, effort: Effort) -> list[Urgency]:
    """Measure every fixed kernel beside the large product and beside the copy, in two sizes, on two streams of one graph.

    The first stream has no priority, then the highest one. `profile` has the GPU's rates, if they are known.
    """
    benches = [Bench(driver, effort=effort, priority=priority) for priority in (1 - driver.facts.priority_levels, 0, 0)]
    both_sizes = (sizes, sizes.others())
    geometries = _geometries(driver, both_sizes, "fp32", effort)
    measured = []
    for of_kernels, geometry in zip(both_sizes, geometries, strict=True):
        left, right = (named_kernels(driver, of_kernels) for _ in range(2))
        size = "" if of_kernels is sizes else ", smaller"
        for a, b in product(left, ("gemm", "copy")):
            urgent, equal = (_measure_pair(first, benches[2], f"{a} / {b}", left[a], right[b]) for first in benches[:2])
            modeled = None
            if profile.bandwidth_bytes_per_s is not None:
                machine, costs = gpu_machine(profile), _costs(profile, "fp32", of_kernels, geometry, urgent)
                modeled = _modeled(urgent, costs, machine, 1 - driver.facts.priority_levels)
            measured.append(Urgency(f"{a} beside {b}{size}", equal, urgent, modeled))
    return measured


def _measure_pair(first: Bench, second: Bench, name: str, left: Issue, right: Issue) -> PairTimes:
    counts = _balanced_counts([(first, left), (second, right)])
    works = [partial(repeated(issue), count) for issue, count in zip((left, right), counts, strict=True)]
    alone = [bench.replays([bench.capture(work)])[0] for bench, work in zip((first, second), works, strict=True)]
    begin, ends = first.driver.event(timing=True, external=True), [first.driver.event(timing=True, external=True) for _ in works]
    graph = first.capture(lambda: _issue_pair(first, second, works, begin, ends))
    ends_s = list(_pair_seconds(first, graph, begin, ends))
    solo = [statistics.median(times) for times in alone]
    beside = [statistics.median([times[side] for times in ends_s]) for side in range(2)]
    return PairTimes(
        name,
        first_s=solo[0],
        second_s=solo[1],
        first_beside_s=beside[0],
        second_beside_s=beside[1],
        together_s=statistics.median([max(times) for times in ends_s]),
        counts=counts,
    )


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


#: Saturation shares that are tried, in addition to the machine's own.
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
#: Kernels per lane in the engine's model of two lanes, at most; more do not change its result.
_MOST_KERNELS = 10


def learn_contention(driver: Driver, profile: Profile, precision: str, sizes: Sizes, effort: Effort | None = None) -> Contention:
    """Measure the fixed pairs in two sizes; fit the saturation share, then multipliers, on the first size and score both on the second.

    `precision`: of the products; "default" is PyTorch's. The saturation share is the memory's: the first precision determines it for all.
    """
    machine, earlier = gpu_machine(profile), profile.contentions
    both_sizes = (sizes, sizes.others())
    pairs_by_size = [measure_pairs(driver, of_kernels, effort=effort, precision=precision) for of_kernels in both_sizes]
    geometries = _geometries(driver, both_sizes, precision, effort or Effort())
    measured = [
        (pair, _costs(profile, precision, of_kernels, geometry, pair), held_out)
        for held_out, of_kernels, geometry, pairs in zip((False, True), both_sizes, geometries, pairs_by_size, strict=True)
        for pair in pairs
    ]
    default = machine.memories[0].saturation_share
    by_share = {
        share: [row for item in measured for row in _rows(*item, machine, share)] for share in {*(() if earlier else _SHARES), default}
    }
    share = profile.contention_in("").saturation_share if earlier else best_saturation_share(by_share, default)
    return fit(by_share[share or default], "gpu").model_copy(update={"saturation_share": share})


def _costs(profile: Profile, precision: str, sizes: Sizes, geometry: dict[str, tuple[int, int]], pair: PairTimes) -> list[tuple[str, Cost]]:
    """Group and cost of the two kernels of a pair, from their times alone."""
    size, peak = dtype_of(precision).itemsize, figure(profile.peak_flops, precision)
    bandwidth = profile.bandwidth_bytes_per_s
    assert bandwidth is not None, "rates are measured before interference"
    work = {
        "gemm": (COMPUTE, 2.0 * sizes.gemm**3, 3.0 * size * sizes.gemm**2),
        "small gemm": (COMPUTE, 2.0 * sizes.small_gemm**3, 3.0 * size * sizes.small_gemm**2),
        "copy": (MEMORY, sizes.copy_bytes / size, 2.0 * sizes.copy_bytes),
    }
    costs = []
    for name, seconds, count in zip(pair.name.split(" / "), (pair.first_s, pair.second_s), pair.counts, strict=True):
        group, flops, moved = work[name]
        kernel_s = seconds / count
        compute = min(1.0, flops / (peak * kernel_s))
        memory = min(1.0, moved / (bandwidth * kernel_s))
        grid, blocks = geometry[name]
        costs.append((group, Cost(name, kernel_s, kernel_s, grid=grid, blocks_per_sm=blocks, compute_share=compute, memory_share=memory)))
    return costs


def _geometries(driver: Driver, sizes: Sequence[Sizes], precision: str, effort: Effort) -> list[dict[str, tuple[int, int]]]:
    """For each of `sizes`, grid and resident blocks of the fixed kernels by name.

    They come from one profiler session, or else from times on partitions, or else are one block on every SM.
    """
    kernels = [
        (i, name, issue) for i, of_kernels in enumerate(sizes) for name, issue in named_kernels(driver, of_kernels, precision).items()
    ]
    bench, partition_geometry = Bench(driver, effort=effort), PartitionGeometry(driver, effort)
    for _, _, issue in kernels:
        bench.run(issue)
    profiled = driver.kernels([issue for _, _, issue in kernels])
    geometries: list[dict[str, tuple[int, int]]] = [{} for _ in sizes]
    for position, (i, name, issue) in enumerate(kernels):
        if profiled is not None:
            grid, blocks = longest(profiled[position], driver.facts) or (None, None)
        else:
            grid, blocks = partition_geometry.measure(issue, effort.copies(bench.slope_s(repeated(issue), effort.fewest_copies)))[:2]
        geometries[i][name] = (grid, blocks) if grid and blocks is not None else (driver.facts.sms, 1)
    return geometries


def _rows(pair: PairTimes, costs: list[tuple[str, Cost]], held_out: bool, machine: Machine, share: float) -> list[Interference]:
    """A row per kernel of the pair: its measured slow-down concurrent with the other, and the one that the engine models with `share`."""
    (first, _), (second, _) = costs
    memory = replace(machine.memories[0], saturation_share=share)
    modeled = _modeled(pair, costs, replace(machine, memories=(memory,)))
    groups = ((first, second), (second, first))
    return [
        Interference(*of_kernels, float(f"{measured:.4g}"), float(f"{model:.4g}"), held_out, pair.name)
        for of_kernels, measured, model in zip(groups, pair.slow_downs, modeled, strict=True)
    ]


def _modeled(pair: PairTimes, costs: list[tuple[str, Cost]], machine: Machine, priority: int = 0) -> tuple[float, float]:
    """The slow-downs of a pair as the engine models them. `priority`: of the first stream; the second has 0."""
    divisor = max(1, min(pair.counts) // _MOST_KERNELS)
    (first, second), (many, others) = (cost for _, cost in costs), (count // divisor for count in pair.counts)
    return modeled_slow_downs([first] * many, [second] * others, machine.devices[0], machine, priority)
