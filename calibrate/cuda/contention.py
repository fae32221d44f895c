"""How kernels that share a GPU slow each other down: co-runs of fixed kernels, fitted, and scored on kernels of other sizes."""

from collections.abc import Sequence
from dataclasses import replace

from calibrate.cuda.bench import Bench, Effort, repeated
from calibrate.cuda.co_runs import PairTimes, Sizes, co_runs, named_kernels
from calibrate.cuda.geometry import longest
from calibrate.cuda.partition_geometry import PartitionGeometry
from executors.cuda.driver import Driver
from simulator.engine.co_runs import modelled_slow_downs
from simulator.engine.costs.contention import COMPUTE, MEMORY, best_saturation_share, fit
from simulator.engine.costs.cost import Cost
from simulator.machine.machine import Machine
from simulator.machine.this_gpu import gpu_machine
from traces.documents.profile import Contention, CoRun, Profile

#: Saturation shares that are tried, in addition to the machine's own.
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
#: Kernels per lane in the engine's model of a co-run, at most; more do not change its result.
_MOST_KERNELS = 10


def learn_contention(driver: Driver, profile: Profile, precision: str, sizes: Sizes, effort: Effort | None = None) -> Contention:
    """Measure the fixed pairs in two sizes; fit the saturation share, then multipliers, on the first size and score both on the second."""
    machine = gpu_machine(profile.model_copy(update={"contention": Contention()}))
    both_sizes = (sizes, sizes.others())
    pairs_by_size = [co_runs(driver, of_kernels, effort=effort) for of_kernels in both_sizes]
    geometries = _geometries(driver, both_sizes, effort or Effort())
    measured = [
        (pair, _costs(profile, precision, of_kernels, geometry, pair), held_out)
        for held_out, of_kernels, geometry, pairs in zip((False, True), both_sizes, geometries, pairs_by_size, strict=True)
        for pair in pairs
    ]
    default = machine.memories[0].saturation_share
    by_share = {share: [row for item in measured for row in _rows(*item, machine, share)] for share in {*_SHARES, default}}
    share = best_saturation_share(by_share, default)
    return fit(by_share[share or default], "gpu").model_copy(update={"saturation_share": share})


def _costs(profile: Profile, precision: str, sizes: Sizes, geometry: dict[str, tuple[int, int]], pair: PairTimes) -> list[tuple[str, Cost]]:
    """Group and cost of the two kernels of a pair, from their times alone."""
    work = {
        "gemm": (COMPUTE, 2.0 * sizes.gemm**3, 12.0 * sizes.gemm**2),
        "small gemm": (COMPUTE, 2.0 * sizes.small_gemm**3, 12.0 * sizes.small_gemm**2),
        "copy": (MEMORY, sizes.copy_bytes / 4, 2.0 * sizes.copy_bytes),
    }
    costs = []
    for name, seconds, count in zip(pair.name.split(" / "), (pair.first_s, pair.second_s), pair.counts, strict=True):
        group, flops, moved = work[name]
        kernel_s = seconds / count
        compute = min(1.0, flops / (profile.peak_flops[precision] * kernel_s))
        memory = min(1.0, moved / (profile.bandwidth_bytes_per_s * kernel_s))
        grid, blocks = geometry[name]
        costs.append((group, Cost(name, kernel_s, kernel_s, grid=grid, blocks_per_sm=blocks, compute_share=compute, memory_share=memory)))
    return costs


def _geometries(driver: Driver, sizes: Sequence[Sizes], effort: Effort) -> list[dict[str, tuple[int, int]]]:
    """For each of `sizes`, grid and resident blocks of the fixed kernels by name.

    They come from one profiler session, or else from times on partitions, or else are one block on every SM.
    """
    kernels = [(i, name, issue) for i, of_kernels in enumerate(sizes) for name, issue in named_kernels(driver, of_kernels).items()]
    bench, partition_geometry = Bench(driver, effort=effort), PartitionGeometry(driver, effort)
    for _, _, issue in kernels:
        bench.run(issue)
    profiled = driver.kernels([issue for _, _, issue in kernels])
    geometries: list[dict[str, tuple[int, int]]] = [{} for _ in sizes]
    for position, (i, name, issue) in enumerate(kernels):
        if profiled is not None:
            geometry = longest(profiled[position], driver.facts)
        else:
            geometry = partition_geometry.measure(issue, effort.copies(bench.slope_s(repeated(issue), effort.fewest_copies)))[:2]
        geometries[i][name] = geometry if geometry and geometry[0] else (driver.facts.sms, 1)
    return geometries


def _rows(pair: PairTimes, costs: list[tuple[str, Cost]], held_out: bool, machine: Machine, share: float) -> list[CoRun]:
    """A row per kernel of the pair: its measured slow-down beside the other, and the one that the engine models with `share`."""
    (first, first_cost), (second, second_cost) = costs
    memory = replace(machine.memories[0], saturation_share=share)
    divisor = max(1, min(pair.counts) // _MOST_KERNELS)
    lanes = [first_cost] * (pair.counts[0] // divisor), [second_cost] * (pair.counts[1] // divisor)
    modelled = modelled_slow_downs(*lanes, machine.devices[0], replace(machine, memories=(memory,)))
    groups = ((first, second), (second, first))
    return [
        CoRun(*of_kernels, float(f"{measured:.4g}"), float(f"{model:.4g}"), held_out, pair.name)
        for of_kernels, measured, model in zip(groups, pair.slow_downs, modelled, strict=True)
    ]
