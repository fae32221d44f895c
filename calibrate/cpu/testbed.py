"""What a validation asks of the place where it measures: this machine's CPU here, its GPU in `cuda.testbed`."""

import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from calibrate.cpu.co_runs import learn_contention
from calibrate.cpu.host import measure_host
from calibrate.cpu.noise import Watch
from calibrate.cpu.sampler import Sampler
from calibrate.cpu.session import Progress, calibrate, store
from calibrate.identity import this_cpu
from calibrate.planned import machine_here
from executors.cpu.backend import CpuBackend
from executors.cpu.workers import available_cores
from executors.reference import Reference
from executors.run import Backend
from simulator.machine.machine import Machine
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.plan.plan import Plan
from traces.profile import Identity, Profile, Stats

#: Visits per key before planning, for strategies whose plan depends on costs: the first is discarded.
PREVIEW_ROUNDS = 3
#: Steps of plain PyTorch per number of threads that is tried.
TRIAL_STEPS = 4


class Testbed(Protocol):
    """A place to measure. `backend` exists after `open`. `periods`: how many of its units a program runs per round, and `plain_steps` how
    many steps plain PyTorch.

    `interleaved`: whether keys are measured in the rounds of a validation; otherwise they are before them.
    """

    identity: Identity
    backend: Backend
    periods: int
    plain_steps: int
    interleaved: bool
    memory_limit_bytes: float | None

    def machine(self, profile: Profile | None) -> Machine:
        """This machine with the profile's figures, and with no memory of more than `memory_limit_bytes`, where that is set."""

    def measure_machine(self, profile: Profile) -> None:
        """Fill in what belongs to the machine and not to an op, unless the profile has it."""

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure the missing keys of `plans`; how many."""

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Measure the missing keys of `plans` roughly, if this stand measures keys in rounds; how many."""

    def measure_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Learn how tasks slow each other down where lanes of `plans` share a memory, unless the profile knows; whether it did."""

    def open(self, machine: Machine, plans: Sequence[Plan]) -> None:
        """Make the backend. Keys of `plans` will be measured in rounds, if this stand does that."""

    def visit(self, turn: int) -> list[float]:
        """Before each strategy's steps: measure the keys once more, if this stand does that; seconds of the anchor op meanwhile."""

    def anchors(self) -> list[float]:
        """Seconds of the anchor op since the last visit."""

    def watch(self):
        """Something whose `stop().rejected` says whether the machine was disturbed meanwhile."""

    def take_over(self, profile: Profile, visits: Sequence[int]) -> None:
        """Put what was measured in the given visits into the profile."""

    def plain_s(self, plain: Reference, steps: int) -> list[float]:
        """Step times of plain PyTorch."""

    def settle(self, plain: Reference) -> str:
        """Find out how plain PyTorch is fastest here, for `plain_s`, by steps of `plain` that are thrown away; in words, how it is."""

    def about(self) -> dict[str, object]:
        """The device, for a document."""


class CpuTestbed:
    """This machine's CPU. Keys are measured in the same rounds as the steps, since its speed changes from minute to minute."""

    periods = 3
    plain_steps = 2
    interleaved = True

    def __init__(self, devices: int = 1, link: str = ALIAS_LINK):
        """`devices`: groups of cores, joined by `link` (`simulator.machine.this_cpu`)."""
        self.identity, self._devices, self._link = this_cpu(), devices, link
        self.backend: CpuBackend | None = None
        self._sampler: Sampler | None = None
        self._plain_threads = len(available_cores())
        self.memory_limit_bytes: float | None = None

    def machine(self, profile: Profile | None) -> Machine:
        """This CPU in its groups of cores."""
        return machine_here(profile, self._devices, self._link).with_memory_limit(self.memory_limit_bytes)

    def measure_machine(self, profile: Profile) -> None:
        """The executor's overheads, peak rates and the cache."""
        if profile.dispatch.task_overhead_s is None:
            measure_host(CpuBackend(machine_here(profile)), profile)

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys on this CPU, and co-runs."""
        plans = list(plans)
        measured = calibrate(plans, machine, CpuBackend(machine, anchor=True), profile, save_to, progress)
        if self.measure_contention(plans, machine, profile) and save_to is not None:
            profile.save(save_to)
        return measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Two visits of every missing key, after one that does not count."""
        return calibrate(plans, machine, CpuBackend(machine), profile, None, lambda done, total, text: None, rounds=PREVIEW_ROUNDS)

    def measure_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Co-runs of what meets in `plans`; before the rounds of a validation, since ratios are steady and times are not."""
        return learn_contention(plans, machine, profile)

    def open(self, machine: Machine, plans: Sequence[Plan]) -> None:
        """Make backend and sampler."""
        self.backend = CpuBackend(machine, anchor=True)
        self._sampler = Sampler(self.backend)
        for plan in plans:
            self._sampler.add(plan, plan.keys(machine))

    def visit(self, turn: int) -> list[float]:
        """Visit every key once. What the anchors took before, and nobody asked for, is dropped."""
        self.anchors()
        self._sampler.visit(list(self._sampler.samples), turn)
        return self.anchors()

    def anchors(self) -> list[float]:
        """What the workers' anchors took."""
        return [s for anchor in self.backend.anchors or () for s in anchor.take()]

    def watch(self) -> Watch:
        """Watch for other work on this machine."""
        return Watch()

    def take_over(self, profile: Profile, visits: Sequence[int]) -> None:
        """The keys' samples. Anchors that nobody asked for are none of them."""
        self.anchors()
        store(self._sampler, profile, visits)

    def plain_s(self, plain: Reference, steps: int) -> list[float]:
        """Each step by itself, on all cores unless `settle` found fewer to be faster."""
        torch.set_num_threads(self._plain_threads)
        found = []
        for _ in range(steps):
            begin = time.perf_counter()
            plain.step()
            found.append(time.perf_counter() - begin)
        return found

    def settle(self, plain: Reference) -> str:
        """One core or all: threads wait for each other longer than small ops take."""
        taken = {}
        for self._plain_threads in sorted({1, len(available_cores())}):
            taken[self._plain_threads] = statistics.median(self.plain_s(plain, TRIAL_STEPS)[1:])
        self._plain_threads = min(taken, key=taken.get)
        return f"{self._plain_threads} thread{'s' if self._plain_threads > 1 else ''}"

    def about(self) -> dict[str, object]:
        """CPU, cores and version; of several groups of cores, how many and what joins them."""
        groups = {"devices": self._devices, "link": self._link} if self._devices > 1 else {}
        return {**about_cpu(self.identity), **groups}


def about_cpu(identity: Identity) -> dict[str, object]:
    """A CPU and the version of torch as documents describe them."""
    return {"kind": "cpu", "name": identity.cpu, "cores": identity.cores, "torch": identity.torch}


def anchor_median(samples: Sequence[float]) -> float | None:
    """Their median, to six digits; None for none."""
    return Stats.of(samples).median_s if samples else None
