"""The placement of a job: the device kind, how many devices, what links them, and how much memory may be used."""

from dataclasses import dataclass

from executors.distributed.ranks import Ranks, launched
from simulator.machine.this_cpu import link_bytes_per_s
from traces.errors import StepcastError, UnknownNameError


@dataclass(frozen=True)
class Placement:
    """`devices`: how many (None: all that a named machine has, else one). `link`: between groups of CPU cores, as in `this_cpu`.

    `memory_limit_gb`: at most so much of each memory counts; None: all there is. `ranks`: which of several processes this is, each of
    which has one of the devices; None: the only one.
    """

    device: str = "cpu"
    devices: int | None = None
    mode: str = "eager"
    link: str = "alias"
    memory_limit_gb: float | None = None
    ranks: Ranks | None = None

    @property
    def memory_limit_bytes(self) -> float | None:
        """The limit in bytes."""
        return None if self.memory_limit_gb is None else self.memory_limit_gb * 1e9

    @staticmethod
    def asked(device: str, devices: int | None, mode: str, link: str, memory_limit_gb: float | None = None) -> "Placement":
        """From the command line; torchrun decides how many devices there are. Raises StepcastError where the two differ."""
        ranks = launched()
        if ranks is None:
            return Placement(device, devices, mode, link, memory_limit_gb)
        if devices not in (None, ranks.world):
            raise StepcastError(
                f"--devices {devices}: torchrun started {ranks.world} processes, one per device; leave it out, or start {devices} processes"
            )
        if link != "alias":
            raise StepcastError(f"--link {link} joins the devices of one process; torchrun started {ranks.world}: leave it out")
        return Placement(device, ranks.world, mode, link, memory_limit_gb, ranks)


HERE = Placement()


def check_names(placement: Placement) -> None:
    """Refuse a device, link or mode that does not exist. Raises StepcastError."""
    device, devices, mode = placement.device, placement.devices, placement.mode
    link_bytes_per_s(placement.link)
    if mode not in ("eager", "graph"):
        raise UnknownNameError("mode", mode, ("eager", "graph"))
    name, colon, number = device.partition(":")
    if device != "cpu" and (name != "cuda" or (colon and not number.isdecimal())):
        raise UnknownNameError("device", device, ("cpu", "cuda", "cuda:N"))
    if devices is not None and devices < 1:
        raise StepcastError(f"--devices is {devices}; expected at least 1")
    limit = placement.memory_limit_gb
    if limit is not None and not 0 < limit < float("inf"):
        raise StepcastError(f"--memory-limit is {limit} GB; expected a number above 0, such as 16")
