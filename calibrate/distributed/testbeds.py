"""The testbeds of several processes: one process per core group, joined by gloo, or one GPU per process, joined by NCCL.

This process times ops while the others wait, on its own cores or GPU, which represents those of the others. All processes time collectives
and messages. This process makes all decisions that depend on measurements.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from calibrate.cpu.contention import learn_contention
from calibrate.cpu.monitor import CpuMonitor
from calibrate.cpu.testbed import CpuTestbed, cpu_machine
from calibrate.cuda.testbed import GpuTestbed
from calibrate.distributed.collectives import CollectiveSampler, measure_collectives
from calibrate.distributed.loops import GroupLoop, RankLoops
from calibrate.identity import describe_cpu
from calibrate.testbed import Progress
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from executors.cuda.driver import Driver
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import ControlChannel
from simulator.machine.machine import Machine
from simulator.machine.presets import replicated
from simulator.model.job import Job
from simulator.plan.plan import Plan
from traces.documents.comparison import PARALLEL_LOOPS
from traces.documents.profile import Profile
from traces.errors import SchedcastError

NCCL = "nccl"


class GpuGroupTestbed(GpuTestbed):
    """GPUs of one kind, one per process."""

    other_loops = PARALLEL_LOOPS

    def __init__(self, channel: ControlChannel, driver: Driver, mode: str = "eager", precision: str = "fp32"):
        """`driver` is that of this process's GPU.

        Raises SchedcastError for graphs: a capture would have to contain every process's collectives.
        """
        if mode != "eager":
            raise SchedcastError(f"--mode {mode}: several processes run eagerly; drop it, or use one process")
        super().__init__(driver, mode, precision)
        self._channel, self._loops = channel, RankLoops()

    def machine(self, profile: Profile | None) -> Machine:
        return replicated(super().machine(profile), self._channel.ranks.world)

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing cost keys on this process's GPU, and collectives and messages with all processes."""
        plans = list(plans)
        measured = super().calibrate(plans, machine, profile, save_to, progress)
        return measured + measure_collectives(plans, self._backend(machine), profile, save_to)

    def open(self, machine: Machine) -> None:
        self.backend = self._backend(machine)

    def _backend(self, machine: Machine) -> DistributedBackend:
        return DistributedBackend(machine, self._channel, "cuda", self.precision)

    def other_loop(self, job: Job, strategy: str) -> GroupLoop:
        return GroupLoop(cast(DistributedBackend, self.backend), self._loops, job, strategy)

    def about(self) -> dict[str, object]:
        return {**super().about(), "processes": self._channel.ranks.world, "library": NCCL}


GLOO = "gloo"
log = logging.getLogger("schedcast")


class CpuGroupTestbed(CpuTestbed):
    """This machine's CPU with one process per device, joined by gloo."""

    def __init__(self, channel: ControlChannel):
        """Warns if processes share cores, which no prediction takes into account."""
        super().__init__(channel.ranks.world)
        self._channel, self._loops = channel, RankLoops()
        self._collectives: CollectiveSampler  # once it is open
        cores = len(available_cores())
        if channel.ranks.local_world > cores:
            log.warning("%d processes share %d cores; predictions assume one core per process", channel.ranks.local_world, cores)

    def machine(self, profile: Profile | None) -> Machine:
        return cpu_machine(profile, self._devices, library=GLOO).with_memory_limit(self.memory_limit_bytes)

    def measure_machine(self, profile: Profile) -> None:
        """Measure what the testbed of one process does, and the overheads of PyTorch's own loop in one of several processes."""
        super().measure_machine(profile)
        if profile.rank_loop is None or (profile.rank_loop.threads, profile.rank_loop.waiting) != self._loops.process.ask("threads"):
            profile.rank_loop = self._loops.process.ask("loop_costs")

    def _measure_collectives(self, plans: list[Plan], machine: Machine, profile: Profile, save_to: Path | None, rounds: int) -> int:
        return measure_collectives(plans, DistributedBackend(machine, self._channel), profile, save_to, rounds)

    def _own_backend(self, machine: Machine, reference_kernel: bool) -> CpuBackend:
        """A backend for this process's device alone."""
        return CpuBackend(replace(machine, devices=machine.devices[:1]), reference_kernel)

    def _learn_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Measure interference on two workers of this process. Does nothing if processes share cores."""
        return not _share_cores(machine) and learn_contention(plans, machine, profile)

    def sample_interference(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Measure interference on two workers of this process. Does nothing if processes share cores."""
        if not _share_cores(self._machine):
            super().sample_interference(plans, profile, number)

    def open(self, machine: Machine) -> None:
        self.backend = backend = DistributedBackend(machine, self._channel)
        self._open_samplers(cast(CpuBackend, backend.local), machine)
        self._collectives = CollectiveSampler(backend)

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Sample every cost key of `plans` in this process, and their collectives in all processes."""
        reference_s = super().sample_keys(plans, number)
        self._collectives.sample([shape for plan in plans for shape in self._collectives.add(plan)], number)
        return reference_s

    def other_loop(self, job: Job, strategy: str) -> GroupLoop:
        return GroupLoop(cast(DistributedBackend, self.backend), self._loops, job, strategy)

    def close(self) -> None:
        super().close()
        self._loops.close()

    def monitor(self) -> CpuMonitor:
        """Watch for work on this node that is not of these processes."""
        return CpuMonitor(lambda: sum(self._collectives.backend.cpu_seconds()[: self._channel.ranks.local_world]))

    def reference_kernel_s(self) -> list[float]:
        """An empty list: one process's reference kernel would make the others wait for a time that no process knows."""
        return []

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of keys and collectives, and return the samples of the keys."""
        relative = super().record(profile, samples, loop_samples)
        self._collectives.store(profile, samples)
        return relative

    def about(self) -> dict[str, object]:
        return {**describe_cpu(self.identity), "processes": self._channel.ranks.world, "library": GLOO}


def _share_cores(machine: Machine) -> bool:
    return sum(device.sms for device in machine.devices) > len(available_cores())
