"""A process per core group, or per GPU, as a place to measure. Everything that is decided from what was measured is decided here.

Ops are timed in this process, while the others wait; collectives by all.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from calibrate.cpu.co_runs import learn_contention
from calibrate.cpu.noise import Watch
from calibrate.cpu.sampler import Sampler
from calibrate.cpu.session import ROUNDS, Progress, calibrate
from calibrate.cpu.testbed import PREVIEW_ROUNDS, CpuTestbed, about_cpu
from calibrate.distributed.collectives import CollectiveSampler, unmeasured
from calibrate.planned import machine_here
from executors.cpu.backend import CpuBackend
from executors.cpu.workers import available_cores
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import ControlChannel
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.profile import Profile

GLOO = "gloo"
log = logging.getLogger("stepcast")


def measure_collectives(
    plans: Iterable[Plan], backend: DistributedBackend, profile: Profile, save_to: Path | None, rounds: int = ROUNDS
) -> int:
    """Measure the collectives of `plans` that the profile has no point of, with all processes; how many."""
    sampler = CollectiveSampler(backend)
    for shape, (plan, task) in unmeasured(plans, backend.loaded.library, profile).items():
        sampler.add_one(shape, plan, task)
    for _ in range(rounds if sampler.samples else 0):
        sampler.visit()
    sampler.store(profile, range(1, rounds))
    if sampler.samples and save_to is not None:
        profile.save(save_to)
    return len(sampler.samples)


class CpuGroupTestbed(CpuTestbed):
    """This machine's CPU, a process per device, joined by gloo."""

    def __init__(self, channel: ControlChannel):
        """Warns where processes share cores: no prediction knows of that."""
        super().__init__(channel.ranks.world)
        self._team = channel
        self._collectives: CollectiveSampler | None = None
        cores = len(available_cores())
        if channel.ranks.local_world > cores:
            log.warning("%d processes share %d cores; predictions are of a core for each", channel.ranks.local_world, cores)

    def machine(self, profile: Profile | None) -> Machine:
        """This CPU, a device per process."""
        return machine_here(profile, self._devices, library=GLOO)

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys and collectives, and co-runs."""
        plans = list(plans)
        measured = calibrate(plans, machine, self._own(machine, anchor=True), profile, save_to, progress)
        measured += measure_collectives(plans, DistributedBackend(machine, self._team), profile, save_to)
        if self.measure_contention(plans, machine, profile) and save_to is not None:
            profile.save(save_to)
        return measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Two visits of every missing key and collective, after one that does not count."""
        plans = list(plans)
        own = self._own(machine)
        measured = calibrate(plans, machine, own, profile, None, lambda done, total, text: None, rounds=PREVIEW_ROUNDS)
        return measured + measure_collectives(plans, DistributedBackend(machine, self._team), profile, None, PREVIEW_ROUNDS)

    def _own(self, machine: Machine, anchor: bool = False) -> CpuBackend:
        """This process's device."""
        return CpuBackend(replace(machine, devices=machine.devices[:1]), anchor)

    def measure_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Co-runs on two workers of this process; none where processes share cores."""
        if sum(device.sms for device in machine.devices) > len(available_cores()):
            return False
        return learn_contention(plans, machine, profile)

    def open(self, machine: Machine, plans: Sequence[Plan]) -> None:
        """Make the backend in every process, and the samplers."""
        self.backend = DistributedBackend(machine, self._team)
        self._sampler = Sampler(self.backend.local)
        self._collectives = CollectiveSampler(self.backend)
        for plan in plans:
            self._sampler.add(plan, plan.keys(machine))
            self._collectives.add(plan)

    def visit(self, turn: int) -> list[float]:
        """Visit every key in this process, and every collective in all."""
        anchors = super().visit(turn)
        self._collectives.visit()
        return anchors

    def watch(self) -> Watch:
        """Watch for work that is none of this node's processes'."""
        return Watch(lambda: sum(self.backend.cpu_seconds()[: self._team.ranks.local_world]))

    def anchors(self) -> list[float]:
        """None: one process's anchor would make the others wait, and no process can say for how long."""
        return []

    def take_over(self, profile: Profile, visits: Sequence[int]) -> None:
        """The samples of keys and collectives."""
        super().take_over(profile, visits)
        self._collectives.store(profile, visits)

    def about(self) -> dict[str, object]:
        """With the number of processes."""
        return {**about_cpu(self.identity), "processes": self._team.ranks.world, "library": GLOO}
