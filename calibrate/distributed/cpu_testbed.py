"""The testbed of one process per core group, joined by gloo.

This process times ops while the others wait; collectives and messages are timed by all. All decisions that depend on measurements are made
here.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from calibrate.cpu.contention import learn_contention
from calibrate.cpu.monitor import CpuMonitor, children_s
from calibrate.cpu.testbed import PREVIEW_ROUNDS, CpuTestbed, cpu_machine
from calibrate.distributed.collectives import CollectiveSampler, measure_collectives
from calibrate.identity import describe_cpu
from calibrate.testbed import Progress, no_progress
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import ControlChannel
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.documents.profile import Profile

GLOO = "gloo"
log = logging.getLogger("schedcast")


class CpuGroupTestbed(CpuTestbed):
    """This machine's CPU with one process per device, joined by gloo."""

    def __init__(self, channel: ControlChannel):
        """Warns if processes share cores, which no prediction takes into account."""
        super().__init__(channel.ranks.world)
        self._channel = channel
        self._collectives: CollectiveSampler | None = None
        cores = len(available_cores())
        if channel.ranks.local_world > cores:
            log.warning("%d processes share %d cores; predictions assume one core per process", channel.ranks.local_world, cores)

    def machine(self, profile: Profile | None) -> Machine:
        """This CPU with one device per process."""
        return cpu_machine(profile, self._devices, library=GLOO)

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys, collectives and messages, and co-runs."""
        plans = list(plans)
        measured = self._calibrate_keys(plans, machine, self._own_backend(machine, anchor=True), profile, save_to, progress)
        measured += measure_collectives(plans, DistributedBackend(machine, self._channel), profile, save_to)
        if self._learn_contention(plans, machine, profile) and save_to is not None:
            profile.save(save_to)
        return measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Take two samples of every missing key and collective, after one that is discarded."""
        plans = list(plans)
        backend = self._own_backend(machine)
        measured = self._calibrate_keys(plans, machine, backend, profile, None, no_progress, PREVIEW_ROUNDS)
        return measured + measure_collectives(plans, DistributedBackend(machine, self._channel), profile, None, PREVIEW_ROUNDS)

    def _own_backend(self, machine: Machine, anchor: bool = False) -> CpuBackend:
        """A backend for this process's device alone."""
        return CpuBackend(replace(machine, devices=machine.devices[:1]), anchor)

    def _learn_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Co-run keys on two workers of this process. Does nothing if processes share cores."""
        return not _share_cores(machine) and learn_contention(plans, machine, profile)

    def sample_co_runs(self, plans: Sequence[Plan], profile: Profile, number: int) -> None:
        """Co-run keys on two workers of this process. Does nothing if processes share cores."""
        if not _share_cores(self._machine):
            super().sample_co_runs(plans, profile, number)

    def open(self, machine: Machine) -> None:
        """Make the backend in every process, and samplers without keys."""
        self.backend = backend = DistributedBackend(machine, self._channel)
        self._open_samplers(cast(CpuBackend, backend.local), machine)
        self._collectives = CollectiveSampler(backend)

    def sample_keys(self, plans: Sequence[Plan], number: int) -> list[float]:
        """Sample every key of `plans` in this process, and their collectives in all processes."""
        anchor_s = super().sample_keys(plans, number)
        self._collectives.sample([shape for plan in plans for shape in self._collectives.add(plan)], number)
        return anchor_s

    def monitor(self) -> CpuMonitor:
        """Watch for work on this node that is not of these processes."""
        return CpuMonitor(lambda: sum(self._collectives.backend.cpu_seconds()[: self._channel.ranks.local_world]) + children_s())

    def anchor_samples(self) -> list[float]:
        """An empty list: one process's anchor would make the others wait for a time that no process knows."""
        return []

    def record(self, profile: Profile, samples: Collection[int], loop_samples: Collection[int] = ()) -> dict[str, dict[int, float]]:
        """Store the costs of keys and collectives, and return the samples of the keys."""
        relative = super().record(profile, samples, loop_samples)
        self._collectives.store(profile, samples)
        return relative

    def about(self) -> dict[str, object]:
        """The CPU, with the number of processes and their library."""
        return {**describe_cpu(self.identity), "processes": self._channel.ranks.world, "library": GLOO}


def _share_cores(machine: Machine) -> bool:
    return sum(device.sms for device in machine.devices) > len(available_cores())
