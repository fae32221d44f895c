"""Times cost keys on a CPU worker, through the very functions that the executor runs.

Per visit of a key: clear the caches, run once (the cold sample), run again at once (the warm sample). The anchor op ticks in between.
"""

import time
from collections.abc import Callable

import torch

from calibrate.compiled import Compiled, compile_alone
from calibrate.operands import OperandPool, fill
from calibrate.samples import Samples
from executors.cpu.allocator import page_faults
from executors.cpu.backend import CpuBackend
from simulator.costs.model import measurable
from simulator.models.factory import brief
from simulator.plan.plan import Plan
from simulator.plan.task import Task

#: Bytes streamed through between two visits: beyond a core's private caches, and not all of the shared one, in which a step finds scratch
#: memory of the op before. Chosen among 0.25 to 24 MiB by the errors of six models' steps on one CPU (EPYC, 32 MiB shared); on four other
#: models the median |error| was 4 % with it and 9 % with 24 MiB.
FLUSH_BYTES = 12 << 20
#: Page faults in a pair of samples that count as none (a page is 4 KiB), and pairs taken until there is one without; the last one counts.
_FEW_FAULTS, _TRIES = 16, 4


class Sampler:
    """Holds compiled tasks for keys of one or more plans and visits them on demand."""

    def __init__(self, backend: CpuBackend):
        self.backend = backend
        self.samples: dict[str, Samples] = {}
        self.failures: dict[str, str] = {}
        self._pool = OperandPool()
        self._compiled: dict[str, Compiled] = {}
        self._flush = torch.ones(FLUSH_BYTES // 4)

    def add(self, plan: Plan, keys: dict[str, Task]) -> None:
        """Compile the tasks behind `keys`; those already known are skipped."""
        for key, task in keys.items():
            if key in self.samples or not measurable(task):
                continue
            self.samples[key] = Samples(task)
            try:
                self._compiled[key] = compile_alone(task, plan, fill(task, plan, self._pool), self.backend.device)
            except Exception as error:
                self.failures[key] = brief(error)

    def visit(self, keys: list[str], turn: int) -> None:
        """Take one cold and one warm sample of each key, on one worker; cores take turns by `turn`."""
        position = turn % len(self.backend.workers.cores)
        anchor = self.backend.anchors[position] if self.backend.anchors else None

        def work(_: int) -> None:
            for key in keys:
                if key in self.failures:
                    continue
                if anchor is not None:
                    anchor.tick()
                try:
                    self._sample(key)
                except Exception as error:
                    self.failures[key] = brief(error)

        self.backend.workers.run(work, (position,))

    def run(self, key: str) -> None:
        """Run a key's task once, on this thread."""
        self._compiled[key]()

    def timed(self, key: str, seconds_of: Callable[[Callable[[], None]], float]) -> tuple[float, float]:
        """Seconds of a key's task with its data out of the caches, and again with them there, as `seconds_of` times it; on this thread."""
        compiled = self._compiled[key]
        self._flush.sum()  # read, not written: dirty lines would be written back during the sample, which a step's data mostly are not
        return seconds_of(compiled), seconds_of(compiled)

    def _sample(self, key: str) -> None:
        """A pair of samples during which the allocator found memory that had been in use before, as in steady steps it does."""
        for _ in range(_TRIES):
            before = page_faults()
            cold, warm = self.timed(key, _timed)
            if page_faults() - before <= _FEW_FAULTS:
                break
        samples = self.samples[key]
        samples.cold_s.append(cold)
        samples.warm_s.append(warm)


def _timed(compiled: Callable[[], None]) -> float:
    begin = time.perf_counter_ns()
    compiled()
    return (time.perf_counter_ns() - begin) * 1e-9
