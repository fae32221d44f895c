"""What kernels that share a GPU do to each other: co-runs of fixed kernels, fitted, and scored on kernels of other sizes."""

from collections.abc import Sequence
from dataclasses import replace

from calibrate.cuda.bench import Bench, Effort, repeated
from calibrate.cuda.concurrency import CoRun, Sizes, co_runs, named_kernels
from calibrate.cuda.geometry import longest
from calibrate.cuda.parts import LoadedPlans
from executors.cuda.driver import Driver
from simulator.costs.contention import COMPUTE, MEMORY, best_saturation_share, fit
from simulator.costs.cost import Cost
from simulator.engine.co_runs import modelled_slow_downs
from simulator.machine.machine import Machine
from simulator.machine.this_gpu import gpu_machine
from traces.profile import Contention, Profile
from traces.profile import CoRun as Row

#: Saturation shares that are tried beside the machine's own.
_SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
#: Kernels per lane beyond which more change nothing in what the engine says.
_MOST_KERNELS = 10


def learn_contention(driver: Driver, profile: Profile, precision: str, sizes: Sizes, effort: Effort | None = None) -> Contention:
    """Measure the fixed pairs in two sizes; fit the saturation share, then multipliers, on one and score both on the other."""
    machine = gpu_machine(profile.model_copy(update={"contention": Contention()}))
    parts = (sizes, sizes.others())
    measured = [co_runs(driver, part, effort=effort) for part in parts]
    shapes = _geometries(driver, parts, effort or Effort())
    runs = [
        (run, _costs(profile, precision, part, shape, run), held_out)
        for held_out, part, shape, found in zip((False, True), parts, shapes, measured, strict=True)
        for run in found
    ]
    default = machine.memories[0].saturation_share
    by_share = {share: [row for run in runs for row in _rows(*run, machine, share)] for share in {*_SHARES, default}}
    share = best_saturation_share(by_share, default)
    return fit(by_share[share or default], "gpu").model_copy(update={"saturation_share": share})


def _costs(profile: Profile, precision: str, sizes: Sizes, shapes: dict[str, tuple[int, int]], run: CoRun) -> list[tuple[str, Cost]]:
    """Group and cost of the two kernels of a co-run, from what they took alone in it."""
    work = {
        "gemm": (COMPUTE, 2.0 * sizes.gemm**3, 12.0 * sizes.gemm**2),
        "small gemm": (COMPUTE, 2.0 * sizes.small_gemm**3, 12.0 * sizes.small_gemm**2),
        "copy": (MEMORY, sizes.copy_bytes / 4, 2.0 * sizes.copy_bytes),
    }
    found = []
    for name, seconds, count in zip(run.name.split(" / "), (run.first_s, run.second_s), run.counts, strict=True):
        group, flops, moved = work[name]
        each_s = seconds / count
        compute = min(1.0, flops / (profile.peak_flops[precision] * each_s))
        memory = min(1.0, moved / (profile.bandwidth_bytes_per_s * each_s))
        grid, blocks = shapes[name]
        found.append((group, Cost(name, each_s, each_s, grid=grid, blocks_per_sm=blocks, compute_share=compute, memory_share=memory)))
    return found


def _geometries(driver: Driver, parts: Sequence[Sizes], effort: Effort) -> list[dict[str, tuple[int, int]]]:
    """Grid and resident blocks of the fixed kernels: as one profiler session or their times say, else one block on every SM."""
    kernels = [(i, name, issue) for i, part in enumerate(parts) for name, issue in named_kernels(driver, part).items()]
    bench, on_parts = Bench(driver, effort=effort), LoadedPlans(driver, effort)
    for _, _, issue in kernels:
        bench.run(issue)
    seen = driver.kernels([issue for _, _, issue in kernels])
    found: list[dict[str, tuple[int, int]]] = [{} for _ in parts]
    for position, (i, name, issue) in enumerate(kernels):
        if seen is not None:
            shape = longest(seen[position], driver.facts)
        else:
            shape = on_parts.geometry(issue, effort.copies(bench.slope_s(repeated(issue), effort.fewest_copies)))[:2]
        found[i][name] = shape if shape and shape[0] else (driver.facts.sms, 1)
    return found


def _rows(run: CoRun, costs: list[tuple[str, Cost]], held_out: bool, machine: Machine, share: float) -> list[Row]:
    """Either kernel beside the other, with what the engine makes of it under a saturation share."""
    (first, one), (second, two) = costs
    memory = replace(machine.memories[0], saturation_share=share)
    fewer = max(1, min(run.counts) // _MOST_KERNELS)
    lanes = [one] * (run.counts[0] // fewer), [two] * (run.counts[1] // fewer)
    modelled = modelled_slow_downs(*lanes, machine.devices[0], replace(machine, memories=(memory,)))
    sides = zip(((first, second), (second, first)), run.slow_downs, modelled, strict=True)
    return [Row(*groups, float(f"{slow:.4g}"), float(f"{said:.4g}"), held_out, run.name) for groups, slow, said in sides]
