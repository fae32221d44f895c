"""Grid and resident blocks per SM of a task's longest kernel: from the profiler, or from its times on partitions of the GPU."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from executors.cuda.driver import Driver, GpuFacts, Kernel
from simulator.machine.machine import SmLimits
from traces.errors import SchedcastError

PROFILER, PARTITIONS, TABLE = "profiler", "partitions", "table"
#: Shared memory that the system reserves in each block, from compute capability 8.0.
_RESERVED_BYTES = 1024
#: Root mean square of relative errors above which times do not follow waves, because the kernel is bound by something else.
_LARGEST_ERROR = 0.1
#: Differences of that error that noise can cause.
_AS_GOOD = 0.01
#: Most waves on the largest partition that are tried; more cannot be told apart.
_MOST_WAVES = 16


def blocks_per_sm(kernel: Kernel, facts: GpuFacts) -> int:
    """How many blocks of a kernel are resident on one SM: the fewest that threads, registers, shared memory and block slots allow."""
    sm = SmLimits(facts.threads_per_sm, facts.blocks_per_sm, facts.registers_per_sm, facts.shared_bytes_per_sm)
    reserved = _RESERVED_BYTES if facts.capability >= (8, 0) else 0
    return sm.resident(kernel.block, kernel.registers, kernel.shared_bytes + reserved)


def longest(kernels: Sequence[Kernel], facts: GpuFacts) -> tuple[int, int] | None:
    """(grid, blocks per SM) of the longest kernel that has a grid; None if none has, as in a task that only copies."""
    with_grid = [kernel for kernel in kernels if kernel.grid]
    if not with_grid:
        return None
    kernel = max(with_grid, key=lambda k: k.seconds)
    return kernel.grid, blocks_per_sm(kernel, facts)


def fit_waves(seconds_by_sms: Mapping[int, float]) -> int | None:
    """The number of SMs that a kernel's blocks fill, w = grid / (blocks per SM), such that t(S) ~ ceil(w / S) explains its times.

    Returns None if no w explains them. Among the w that explain the times about as well as the best one, those with the fewest waves are
    chosen, and of these the largest: a kernel that runs as fast on 16 SMs as on 64 has at most 16.
    """
    sms = np.array(sorted(seconds_by_sms))
    seconds = np.array([seconds_by_sms[s] for s in sms])
    waves = np.ceil(np.arange(1, _MOST_WAVES * int(sms.max()) + 1)[:, None] / sms[None, :])
    ratios = waves / seconds
    scale = ratios.sum(axis=1) / (ratios**2).sum(axis=1)  # least squares on relative errors
    errors = np.sqrt(((scale[:, None] * ratios - 1) ** 2).mean(axis=1))
    if errors.min() > _LARGEST_ERROR:
        return None
    first = np.flatnonzero(errors <= errors.min() + _AS_GOOD)[0]
    return int(np.flatnonzero((waves == waves[first]).all(axis=1)).max()) + 1


#: Numbers of partitions into which the GPU is split; the whole GPU gives the third size.
_SPLITS = (4, 2)


class PartitionGeometry:
    """Times tasks on a quarter of the SMs, on half of them and on all. The streams are made when first used."""

    def __init__(self, driver: Driver, effort: Effort):
        self._driver, self._effort = driver, effort

    def measure(self, issue: Issue, copies: int) -> tuple[int | None, int | None, str]:
        """(grid, blocks per SM, source of both): one block per SM, and as many blocks as there are SMs that the kernel fills."""
        if len(self._benches) < 1 + len(_SPLITS):
            return None, None, TABLE
        for bench in self._benches.values():
            bench.run(issue)  # an op's allocation once per stream must not be in a graph's memory
        times = {sms: bench.slope_s(repeated(issue), copies, rounds=3) for sms, bench in self._benches.items()}
        filled = fit_waves(times) if min(times.values()) > 0 else None
        return (None, None, TABLE) if filled is None else (filled, 1, PARTITIONS)

    @cached_property
    def _benches(self) -> dict[int, Bench]:
        """Benches by SM count; empty if the GPU cannot be split."""
        try:
            partitions = [self._driver.partitions(count)[0] for count in _SPLITS]
        except SchedcastError:
            return {}
        return {p.sms if p else self._driver.facts.sms: Bench(self._driver, p, self._effort) for p in (*partitions, None)}
