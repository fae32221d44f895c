"""A task's geometry from its times on parts of the GPU, for where the profiler is refused."""

from functools import cached_property

from calibrate.cuda.bench import Bench, Effort, Issue, repeated
from calibrate.cuda.geometry import PARTITIONS, TABLE, fit_waves
from executors.cuda.driver import Driver
from traces.errors import StepcastError

#: Into how many parts the GPU is split; its whole is the third size.
_SPLITS = (4, 2)


class LoadedPlans:
    """A stream on a quarter of the SMs, one on half of them and one on all, made when first used."""

    def __init__(self, driver: Driver, effort: Effort):
        self._driver, self._effort = driver, effort

    def geometry(self, issue: Issue, copies: int) -> tuple[int | None, int | None, str]:
        """(grid, blocks per SM, where from): as many blocks as SMs that the kernel fills, one per SM."""
        if len(self._benches) < 1 + len(_SPLITS):
            return None, None, TABLE
        for bench in self._benches.values():
            bench.run(issue)  # what an op allocates once per stream must not lie in a graph's memory
        times = {sms: bench.slope_s(repeated(issue), copies, rounds=3) for sms, bench in self._benches.items()}
        filled = fit_waves(times) if min(times.values()) > 0 else None
        return (None, None, TABLE) if filled is None else (filled, 1, PARTITIONS)

    @cached_property
    def _benches(self) -> dict[int, Bench]:
        """By SM count."""
        try:
            parts = [self._driver.partitions(count)[0] for count in _SPLITS]
        except StepcastError:
            return {}
        return {part.sms if part else self._driver.facts.sms: Bench(self._driver, part, self._effort) for part in (*parts, None)}
