"""The testbed of one GPU per process, joined by NCCL. Ops are timed on the first process's GPU and represent those of the others."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from calibrate.cuda.testbed import GpuTestbed
from calibrate.distributed.collectives import measure_collectives
from calibrate.testbed import Progress
from executors.cuda.driver import Driver
from executors.distributed.backend import DistributedBackend
from executors.distributed.control import ControlChannel
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.documents.profile import Profile
from traces.errors import SchedcastError

NCCL = "nccl"


class GpuGroupTestbed(GpuTestbed):
    """GPUs of one kind, one per process."""

    def __init__(self, channel: ControlChannel, driver: Driver, mode: str = "eager", precision: str = "fp32"):
        """`driver` is that of this process's GPU.

        Raises SchedcastError for graphs: a capture would have to contain every process's collectives.
        """
        if mode != "eager":
            raise SchedcastError(f"--mode {mode}: several processes run eagerly; leave it out, or use one process")
        super().__init__(driver, mode, precision)
        self._channel = channel

    def machine(self, profile: Profile | None) -> Machine:
        """A machine with one GPU like this one per process."""
        return replicated(super().machine(profile), self._channel.ranks.world)

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys on this process's GPU, and collectives and messages with all processes."""
        plans = list(plans)
        measured = super().calibrate(plans, machine, profile, save_to, progress)
        return measured + measure_collectives(plans, self._backend(machine), profile, save_to)

    def open(self, machine: Machine) -> None:
        """Make the backend in every process."""
        self.backend = self._backend(machine)

    def _backend(self, machine: Machine) -> DistributedBackend:
        return DistributedBackend(machine, self._channel, "cuda", self.precision)

    def about(self) -> dict[str, object]:
        """The GPU, with the number of processes and their library."""
        return {**super().about(), "processes": self._channel.ranks.world, "library": NCCL}


def replicated(one: Machine, count: int) -> Machine:
    """A machine with `count` copies of the only GPU of `one`, each with its own memory, host lane and links to the host.

    Its collectives are NCCL's. Until those are measured, they are priced as if they passed through the host.
    """
    device, memory = one.devices[0], one.memories[0]
    names = [f"cuda:{rank}" for rank in range(count)]
    return replace(
        one,
        devices=tuple(replace(device, name=name, memory=f"memory of {name}") for name in names),
        memories=tuple(replace(memory, name=f"memory of {name}") for name in names),
        hosts=tuple(replace(host, name=f"host of {name}", devices=(name,)) for host in one.hosts for name in names),
        links=tuple(
            replace(link, source=source, target=target, channel=link.channel and f"{link.channel} of {name}")
            for link in one.links
            for name in names
            for source, target in [tuple(name if end == device.name else end for end in (link.source, link.target))]
        ),
        library=NCCL,
    )
