"""A task's geometry from its times on partitions of the GPU, for use where the profiler is refused."""

from functools import cached_property

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from calibrate.cuda.geometry import PARTITIONS, TABLE, fit_waves
from executors.cuda.driver import Driver
from traces.errors import SchedcastError

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
            bench.run(issue)  # what an op allocates once per stream must not lie in a graph's memory
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
