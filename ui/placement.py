"""Where a job is to run: what the command line says of devices."""

from dataclasses import dataclass

from executors.distributed.ranks import Ranks, launched
from traces.errors import StepcastError


@dataclass(frozen=True)
class Where:
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
    def asked(device: str, devices: int | None, mode: str, link: str, memory_limit_gb: float | None = None) -> "Where":
        """From the command line; torchrun decides how many devices there are. Raises StepcastError where the two differ."""
        ranks = launched()
        if ranks is None:
            return Where(device, devices, mode, link, memory_limit_gb)
        if devices not in (None, ranks.world):
            raise StepcastError(
                f"--devices {devices}: torchrun started {ranks.world} processes, one per device; leave it out, or start {devices} processes"
            )
        if link != "alias":
            raise StepcastError(f"--link {link} joins the devices of one process; torchrun started {ranks.world}: leave it out")
        return Where(device, ranks.world, mode, link, memory_limit_gb, ranks)


HERE = Where()
