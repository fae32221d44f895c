"""Times cost keys on a CPU worker with the executor's own functions, and measures the missing keys of plans.

Each sample of a key is a pair: with the caches cleared, the task runs once (cold), and then immediately again (warm). The reference kernel
runs between two keys. The keys of plain PyTorch are only sampled by `PairSampler`, on the thread and in the process where its loop runs.
"""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

import torch

from calibrate.operands import OperandPool, fill
from calibrate.samples import Compiled, Samples, compile_alone, missing_keys, reason, save_samples, store_samples
from calibrate.testbed import Progress
from executors.binding import PLAIN, Forms
from executors.cpu.allocator import page_faults
from executors.cpu.backend import CpuBackend
from executors.cpu.reference_kernel import ReferenceKernel
from simulator.engine.costs.model import measurable
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import Profile, Stats
from traces.process import seconds_of

#: Bytes read before each sample: more than a core's private caches, but not all of the shared one, where a step finds scratch memory of the
#: previous op. Chosen among 0.25 to 24 MiB by the errors of six models' steps on one CPU (EPYC, 32 MiB shared); on four other models the
#: median |error| was 4 % with it and 9 % with 24 MiB.
FLUSH_BYTES = 12 << 20
#: Up to `_FEW_FAULTS` page faults (a page is 4 KiB) during a sample do not count. Otherwise it is repeated, up to `_TRIES` times in all,
#: and the last try counts.
_FEW_FAULTS, _TRIES = 16, 4
CPU = torch.device("cpu")


class KeyPairs(Protocol):
    """Samples of the keys of plans, taken here or by another process. `failures`: why keys cannot be sampled."""

    samples: dict[str, Samples]
    failures: dict[str, str]

    def add(self, plan: Plan, keys: dict[str, Task]) -> None:
        """Compile the tasks of `keys`. Keys that were added before, and keys that need no measuring, are skipped."""

    def sample(self, keys: list[str], number: int) -> None:
        """Take sample `number` of each key that does not fail: one cold and one warm."""


class PairSampler:
    """Compiled tasks for the keys of one or more plans, with the samples taken of them on the calling thread."""

    def __init__(self, pool: OperandPool | None = None, forms: Forms = PLAIN):
        """`pool`: operands that it shares with another sampler. `forms`: the forms in which ops run."""
        self.samples: dict[str, Samples] = {}
        self.failures: dict[str, str] = {}
        self._pool = OperandPool() if pool is None else pool
        self._forms = forms
        self._compiled: dict[str, Compiled] = {}
        self._flush = torch.ones(FLUSH_BYTES // 4)

    def add(self, plan: Plan, keys: dict[str, Task]) -> None:
        """Compile the tasks of `keys`. Keys that were added before, and keys that need no measuring, are skipped."""
        for key, task in keys.items():
            if key in self.samples or not measurable(task):
                continue
            self.samples[key] = Samples(task)
            try:
                self._compiled[key] = compile_alone(task, plan, fill(task, plan, self._pool), lambda name: CPU, self._forms)
            except Exception as error:
                self.failures[key] = reason(error)

    def sample(self, keys: list[str], number: int) -> None:
        for key in keys:
            self._take_pair(key, number)

    def _take_pair(self, key: str, number: int) -> None:
        """Take a cold and a warm sample during which the allocator gets no new memory from the system, as in an executor's steady steps.

        Does nothing for a key that fails.
        """
        if key in self.failures:
            return
        try:
            for _ in range(_TRIES):
                faults = page_faults()
                pair_s = self.timed(key, seconds_of)
                if page_faults() - faults <= _FEW_FAULTS:
                    break
            self.samples[key].keep(pair_s, number)
        except Exception as error:
            self.failures[key] = reason(error)

    def run(self, key: str) -> None:
        """Run the task of `key` once, on this thread."""
        self._compiled[key]()

    def timed(self, key: str, measure: Callable[[Callable[[], None]], float]) -> tuple[float, float]:
        """Run the task of `key` on this thread with its data out of the caches, and again with its data in them.

        Returns the cold and the warm seconds, each measured by `measure`.
        """
        compiled = self._compiled[key]
        self._flush.sum()  # read, not written: dirty lines would be written back during the sample, which a step's data mostly are not
        return measure(compiled), measure(compiled)


class Sampler(PairSampler):
    """A sampler of the executor's keys, on its workers."""

    def __init__(self, backend: CpuBackend, pool: OperandPool | None = None):
        """`pool`: operands that it shares with another sampler."""
        super().__init__(pool)
        self.backend = backend

    def sample(self, keys: list[str], number: int) -> None:
        """Take one cold and one warm sample of each key on one worker; the workers alternate with the `number`."""
        position = number % len(self.backend.workers.cores)
        kernel = self.backend.reference_kernels[position] if self.backend.reference_kernels else None

        def work(_: int) -> None:
            for key in keys:
                if kernel is not None:
                    kernel.tick()
                self._take_pair(key, number)

        if keys:
            self.backend.workers.run(work, (position,))


#: Samples per key: the first is discarded, eight are used.
ROUNDS = 9
#: Limits on a group of keys, which are measured in interleaved rounds and then saved: how many keys, and about how many seconds they take.
#: An interruption loses at most one group.
GROUP, GROUP_S = 120, 20.0


def calibrate_cpu(
    plans: Iterable[Plan],
    machine: Machine,
    open_sampler: Callable[[], KeyPairs],
    profile: Profile,
    save_to: Path | None,
    progress: Progress,
    rounds: int = ROUNDS,
    reference_kernels: Collection[ReferenceKernel] | None = None,
) -> int:
    """Measure every missing key of `plans`, add its cost to `profile`, and return the number of keys measured.

    `open_sampler` makes a sampler without keys, for each group of keys. `reference_kernels`: those of its workers, if these run them.
    `rounds` is the number of samples per key, of which the first is discarded. With `save_to` the profile is saved after each group of
    keys, so that another session can continue an interrupted one.
    """
    todo = [(plan, key, task) for plan, keys in missing_keys(plans, machine, profile) for key, task in keys.items()]
    total, done = len(todo) * rounds, 0
    progress(0, total, "")

    def sample(sampler: KeyPairs, key: str, number: int) -> None:
        nonlocal done
        sampler.sample([key], number)
        done += 1
        progress(done, total, key.partition("|")[0])

    measured = 0
    while measured < len(todo):
        sampler = open_sampler()
        measured += _sample_first(sampler, todo[measured:], sample)
        for number in range(1, rounds):
            for key in list(sampler.samples):
                sample(sampler, key, number)
        store_samples(sampler.samples, sampler.failures, profile, range(1, rounds))
        reference_s = [s for kernel in reference_kernels or () for s in kernel.take()]
        if reference_s:
            profile.anchor_s = Stats.from_samples(reference_s).median_s
        save_samples(sampler.samples, profile, save_to)
    return measured


def _sample_first(sampler: KeyPairs, todo: list[tuple[Plan, str, Task]], sample: Callable[[KeyPairs, str, int], None]) -> int:
    """Take the first sample of as many keys of `todo` as make a group, and return their number."""
    spent_s = 0.0
    for count, (plan, key, task) in enumerate(todo[:GROUP], start=1):
        sampler.add(plan, {key: task})
        begin = time.perf_counter()
        sample(sampler, key, 0)
        spent_s += time.perf_counter() - begin
        if spent_s * ROUNDS > GROUP_S:
            return count
    return min(len(todo), GROUP)
