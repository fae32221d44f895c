"""The testbed of this machine's CPU."""

import statistics
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import torch

from calibrate.cpu.contention import CoRuns, learn_contention
from calibrate.cpu.host import measure_host
from calibrate.cpu.key_sampler import KeySampler
from calibrate.cpu.loop import measure_loop
from calibrate.cpu.monitor import CpuMonitor
from calibrate.cpu.sampler import Sampler
from calibrate.cpu.session import calibrate_cpu
from calibrate.identity import describe_cpu, this_cpu
from calibrate.operands import OperandPool
from calibrate.testbed import Progress, no_progress
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from executors.reference import Reference
from simulator.machine import this_cpu as machines
from simulator.machine.machine import Machine
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.plan.plan import Plan
from traces.profile import Profile

#: Samples per key of a preview: the first is discarded.
PREVIEW_ROUNDS = 3
#: Steps of plain PyTorch per number of threads that is tried.
TRIAL_STEPS = 4


class CpuTestbed:
    """This machine's CPU. Keys are measured in the same rounds as the steps, since its speed changes from minute to minute."""

    mode = "eager"
    units_per_round = 3
    plain_steps_per_round = 3
    interleaved = True

    def __init__(self, devices: int = 1, link: str = ALIAS_LINK):
        """`devices` is the number of core groups, which are joined by `link` (see `simulator.machine.this_cpu`)."""
        self.identity, self._devices, self._link = this_cpu(), devices, link
        self.backend: CpuBackend | None = None
        self._sampler: KeySampler | None = None
        self._loop_sampler: KeySampler | None = None
        self._plain_threads = len(available_cores())
        self.memory_limit_bytes: float | None = None

    @property
    def plain_threads(self) -> int:
        """One per core, unless `choose_threads` found fewer to be faster."""
        return self._plain_threads

    def machine(self, profile: Profile | None) -> Machine:
        """This CPU, divided into its core groups."""
        return cpu_machine(profile, self._devices, self._link).with_memory_limit(self.memory_limit_bytes)

    def measure_machine(self, profile: Profile) -> None:
        """Measure the executor's overheads, the peak rates, the cache size, and the overheads of PyTorch's own loop."""
        if profile.dispatch.task_overhead_s is None:
            measure_host(CpuBackend(cpu_machine(profile)), profile)
        if profile.loop is None:
            profile.loop = measure_loop(CpuBackend(cpu_machine(profile)))

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys, and co-runs."""
        plans = list(plans)
        measured = calibrate_cpu(plans, machine, CpuBackend(machine, anchor=True), profile, save_to, progress)
        if self._learn_contention(plans, machine, profile) and save_to is not None:
            profile.save(save_to)
        return measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Take two samples of every missing key, after one that is discarded."""
        return calibrate_cpu(plans, machine, CpuBackend(machine), profile, None, no_progress, rounds=PREVIEW_ROUNDS)

    def _learn_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Co-run the keys that meet in `plans` and return whether the profile changed."""
        return learn_contention(plans, machine, profile)

    def open(self, machine: Machine) -> None:
        """Make the backend, and samplers without keys."""
        self.backend = CpuBackend(machine, anchor=True)
        self._open_samplers(self.backend, machine)

    def _open_samplers(self, backend: CpuBackend, machine: Machine) -> None:
        self._machine, self._co_runs, self._pool = machine, None, OperandPool()
        self._sampler, self._loop_sampler = (KeySampler(machine, Sampler(backend, self._pool)) for _ in range(2))

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Sample every key of `plans` once. Anchor samples from before the call are dropped."""
        self.anchor_samples()
        self._sampler.sample(plans, number)
        return self.anchor_samples()

    def sample_loop_keys(self, loop: Plan, number: int) -> None:
        """Sample every key of PyTorch's own loop once."""
        self._loop_sampler.sample([loop], number)

    def sample_co_runs(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Co-run the keys that meet in `plans`.

        That takes place in the rounds, since how much two tasks slow each other down changes from minute to minute, as their times do.
        """
        if number == 0:
            self._co_runs = CoRuns.of(plans, self._machine, profile, pool=self._pool)
        elif self._co_runs is not None:
            self._co_runs.run_round(number)

    def anchor_samples(self) -> list[float]:
        """Seconds that the anchors of all workers took since the last call."""
        return [s for anchor in self.backend.anchors or () for s in anchor.take()]

    def monitor(self) -> CpuMonitor:
        """Watch for other work on this machine."""
        return CpuMonitor()

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of the samplers' keys, and return the samples of all but the loop's."""
        for sampler, numbers in ((self._loop_sampler, loop_samples), (self._sampler, samples)):
            sampler.store(profile, numbers)
        if self._co_runs is not None:
            self._co_runs.store(profile, loop_samples)
        return self._sampler.relative(samples)

    def time_plain(self, plain: Reference, steps: int) -> list[float]:
        """Time each step by itself, on all cores unless `choose_threads` found fewer to be faster."""
        torch.set_num_threads(self._plain_threads)
        steps_s = []
        for _ in range(steps):
            begin = time.perf_counter()
            plain.step()
            steps_s.append(time.perf_counter() - begin)
        return steps_s

    def choose_threads(self, plain: Reference) -> str:
        """Choose between one thread and one per core: with small ops, threads wait for each other longer than the ops take."""
        median_s = {}
        for threads in sorted({1, len(available_cores())}):
            self._plain_threads = threads
            median_s[threads] = statistics.median(self.time_plain(plain, TRIAL_STEPS)[1:])
        self._plain_threads = min(median_s, key=median_s.get)
        return f"{self._plain_threads} thread{'s' if self._plain_threads > 1 else ''}"

    def about(self) -> dict[str, object]:
        """The CPU, its cores and the version of torch; if there are several core groups, also their number and link."""
        groups = {"devices": self._devices, "link": self._link} if self._devices > 1 else {}
        return {**describe_cpu(self.identity), **groups}


def cpu_machine(profile: Profile | None, devices: int = 1, link: str = ALIAS_LINK, library: str = "") -> Machine:
    """This CPU with the figures of `profile`. If the profile is of a machine with more cores, only the cores of this one count."""
    cores = None
    if profile is not None and profile.identity.cores:
        cores = min(profile.identity.cores, len(available_cores()))
    return machines.this_cpu(profile, cores, devices, link, library)
