"""The testbed of this machine's CPU, which samples the cost keys of plans in the rounds of a validation."""

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from calibrate.cpu.contention import InterferenceRounds, learn_contention
from calibrate.cpu.host import measure_host
from calibrate.cpu.monitor import CpuMonitor
from calibrate.cpu.plain_process import PlainProcess, ProcessLoop, ProcessSampler
from calibrate.cpu.sampler import ROUNDS, KeyPairs, Sampler, calibrate_cpu
from calibrate.identity import cpu_identity, describe_cpu
from calibrate.operands import OperandPool
from calibrate.samples import store_samples
from calibrate.testbed import Progress, Testbed, no_progress
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from executors.program import Backend
from simulator.machine import this_cpu as machines
from simulator.machine.machine import Machine
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.plan.plan import Plan
from traces import units
from traces.documents.comparison import LOOPS
from traces.documents.profile import Profile


class KeySampler:
    """The samples of plans' keys. A plan's keys are compiled when they are first sampled, so that until then they take no memory."""

    def __init__(self, machine: Machine, sampler: KeyPairs):
        self._machine, self._sampler = machine, sampler
        self._keys: dict[int, tuple[Plan, tuple[str, ...]]] = {}  # by identity: plans are large, and not hashable

    def sample(self, plans: Sequence[Plan], number: int) -> None:
        """Take sample `number` of every cost key of `plans`: one cold and one warm, however many of the plans have the key."""
        keys = dict.fromkeys(key for plan in plans for key in self._keys_of(plan))
        self._sampler.sample(list(keys), number)

    def _keys_of(self, plan: Plan) -> tuple[str, ...]:
        if id(plan) not in self._keys:
            keys = plan.keys(self._machine)
            self._sampler.add(plan, keys)
            self._keys[id(plan)] = plan, tuple(key for key in keys if key in self._sampler.samples)
        return self._keys[id(plan)][1]

    def store(self, profile: Profile, numbers: Collection[int]) -> None:
        """Write each key's costs, computed from its samples with the given numbers, into the profile."""
        store_samples(self._sampler.samples, self._sampler.failures, profile, numbers)

    def relative(self, numbers: Collection[int]) -> dict[str, dict[int, float]]:
        """By key and number, the samples with the given numbers as multiples of the key's median (`Samples.relative`)."""
        wanted = frozenset(numbers)
        return {key: own for key, samples in self._sampler.samples.items() if (own := samples.relative(wanted))}


#: Samples per key of a preview: the first is discarded.
PREVIEW_ROUNDS = 3


class CpuTestbed(Testbed):
    """This machine's CPU. Keys are measured in the same rounds as the steps, since its speed changes from minute to minute.

    Plain PyTorch runs in a separate process (`plain_process`), and its keys in another one: the memory that a process has used before
    decides how much of its allocations is fresh, and fresh memory makes a step up to 1.7 times as long.
    """

    mode = "eager"
    backend: Backend
    units_per_round = 3
    round_s = math.inf  # the machine's speed changes, so every sample counts
    plain_steps_per_round = 5
    interleaved = True

    def __init__(self, devices: int = 1, link: str = ALIAS_LINK):
        """`devices` is the number of core groups, which are joined by `link` (see `simulator.machine.this_cpu`)."""
        self.identity, self._devices, self._link = cpu_identity(), devices, link
        self._sampler: KeySampler  # once it is open
        self._loop_sampler: KeySampler | None = None
        self._plain, self._training = PlainProcess(), PlainProcess()

    @cached_property
    def plain_threads(self) -> tuple[int, str]:
        """PyTorch's choice in the user's environment."""
        return self._plain.ask("threads")

    def machine(self, profile: Profile | None) -> Machine:
        """This CPU, divided into its core groups."""
        return cpu_machine(profile, self._devices, self._link).with_memory_limit(self.memory_limit_bytes)

    def measure_machine(self, profile: Profile) -> None:
        """Measure the executor's overheads, the peak rates, the cache size, and the overheads of PyTorch's own loop."""
        if profile.dispatch.task_overhead_s is None:
            measure_host(CpuBackend(cpu_machine(profile)), profile)
        if profile.loop is None or (profile.loop.threads, profile.loop.waiting) != self.plain_threads:
            profile.loop = self._plain.ask("loop_costs")

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        plans = list(plans)
        measured = self._calibrate_keys(plans, machine, profile, save_to, progress, ROUNDS, reference_kernel=True)
        if self._learn_contention(plans, machine, profile) and save_to is not None:
            profile.save(save_to)
        return measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Take two samples of every missing key, after one that is discarded."""
        return self._calibrate_keys(list(plans), machine, profile, None, no_progress, PREVIEW_ROUNDS, reference_kernel=False)

    def _calibrate_keys(
        self,
        plans: list[Plan],
        machine: Machine,
        profile: Profile,
        save_to: Path | None,
        progress: Progress,
        rounds: int,
        reference_kernel: bool,
    ) -> int:
        """Measure the missing cost keys of plans on workers of this process, and those of plain PyTorch in its process."""
        backend = self._own_backend(machine, reference_kernel)
        own, loops = [plan for plan in plans if plan.strategy not in LOOPS], [plan for plan in plans if plan.strategy in LOOPS]
        measured = calibrate_cpu(
            own,
            machine,
            lambda: Sampler(backend),
            profile=profile,
            save_to=save_to,
            progress=progress,
            rounds=rounds,
            reference_kernels=backend.reference_kernels,
        )
        if loops:
            measured += calibrate_cpu(
                loops, machine, lambda: ProcessSampler(self._plain), profile=profile, save_to=save_to, progress=progress, rounds=rounds
            )
        return measured + self._measure_collectives(plans, machine, profile, save_to, rounds)

    def _measure_collectives(self, plans: list[Plan], machine: Machine, profile: Profile, save_to: Path | None, rounds: int) -> int:
        """Measure the collectives and messages of plans, and return their number: 0 in one process."""
        return 0

    def _own_backend(self, machine: Machine, reference_kernel: bool) -> CpuBackend:
        """The backend that measures keys."""
        return CpuBackend(machine, reference_kernel)

    def _learn_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Measure the interference of the cost keys that meet in `plans`, and return whether the profile changed."""
        return learn_contention(plans, machine, profile)

    def open(self, machine: Machine) -> None:
        self.backend = backend = CpuBackend(machine, reference_kernel=True)
        self._open_samplers(backend, machine)

    def _open_samplers(self, backend: CpuBackend, machine: Machine) -> None:
        self._machine, self._pool, self._reference_kernels = machine, OperandPool(), backend.reference_kernels
        self._interference: InterferenceRounds | None = None
        self._sampler, self._loop_sampler = KeySampler(machine, Sampler(backend, self._pool)), None

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Sample every cost key of `plans` once. What the reference kernel took before the call is dropped."""
        self.reference_kernel_s()
        self._sampler.sample(plans, number)
        return self.reference_kernel_s()

    def sample_loop_keys(self, loop: Plan, number: int) -> None:
        if self._loop_sampler is None:
            self._loop_sampler = KeySampler(self._machine, ProcessSampler(self._plain))
        self._loop_sampler.sample([loop], number)

    def sample_interference(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Measure the interference of the cost keys that meet in `plans`.

        This happens in the rounds, since how much two tasks slow each other down changes from minute to minute, as their times do.
        """
        if number == 0:
            self._interference = InterferenceRounds.for_plans(plans, self._machine, profile, pool=self._pool)
        elif self._interference is not None:
            self._interference.run_round(number)

    def reference_kernel_s(self) -> list[float]:
        return [s for kernel in self._reference_kernels or () for s in kernel.take()]

    def monitor(self) -> CpuMonitor:
        """Watch for other work on this machine: not this process's, nor that of its children, such as plain PyTorch's."""
        return CpuMonitor()

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of the samplers' keys, and return the samples of all but the loop's."""
        self._sampler.store(profile, samples)
        if self._loop_sampler is not None:
            self._loop_sampler.store(profile, loop_samples)
        if self._interference is not None:
            self._interference.store(profile, loop_samples)
        return self._sampler.relative(samples)

    def plain_loop(self, job: Job, built: Built, same_masks: bool) -> ProcessLoop:
        """Plain PyTorch in a new process, where the job makes its model again."""
        return ProcessLoop(self._training, job, same_masks, units.threads(*self.plain_threads))

    def close(self) -> None:
        self._plain.close()
        self._training.close()

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
