"""The placement of a job: the device kind, the number of devices or of partitions of one, their link, and the memory limit."""

from dataclasses import dataclass

from executors.distributed.ranks import Ranks, launched
from simulator.machine.presets import PYTORCH
from simulator.machine.scaled import AS_IT_IS, Scale
from simulator.machine.this_cpu import link_bytes_per_s
from traces.errors import SchedcastError, UnknownNameError
from traces.units import read_integer, read_rate


@dataclass(frozen=True)
class Placement:
    """Where a job runs. Raises SchedcastError for a device, link or mode that does not exist, and for numbers out of range.

    `devices` is the number of GPUs, or of groups of CPU cores (None: all that a named machine has, or one). `link` joins groups of CPU
    cores, as in `simulator.machine.this_cpu`. `memory_limit_gb` limits each memory (None: its real size). `ranks` says which of several
    processes this is, each with one of the devices (None: the only process). `partition` splits one GPU into this many devices (None or 1:
    whole). `network` is the rate of a named machine's network for each of its GPUs, such as 50Gb/s (None: its own). `scale` multiplies
    figures of the machine, for predictions of one that does not exist; `host` says what issues the tasks of a named machine's GPUs, as
    `presets.load_machine` takes it.

    >>> Placement("cuda", devices=4).plan_devices, Placement("cuda", partition=2).plan_devices
    (4, 2)
    """

    device: str = "cpu"
    devices: int | None = None
    mode: str = "eager"
    link: str = "alias"
    memory_limit_gb: float | None = None
    ranks: Ranks | None = None
    partition: int | None = None
    scale: Scale = AS_IT_IS
    host: str = PYTORCH
    network: str | None = None

    def __post_init__(self) -> None:
        link_bytes_per_s(self.link)
        if self.mode not in ("eager", "graph"):
            raise UnknownNameError("mode", self.mode, ("eager", "graph"))
        name, colon, number = self.device.partition(":")
        if self.device != "cpu" and (name != "cuda" or (colon and read_integer(number, 0) is None)):
            raise UnknownNameError("device", self.device, ("cpu", "cuda", "cuda:N"))
        if self.devices is not None and self.devices < 1:
            raise SchedcastError(f"--devices is {self.devices}; expected at least 1")
        if self.partition is not None and self.partition < 1:
            raise SchedcastError(f"--partition is {self.partition}; expected at least 1")
        if self.partitions > 1 and self.devices not in (None, 1):
            raise SchedcastError(
                f"--partition {self.partition} splits one GPU, and --devices {self.devices} are several; choose one of the two"
            )
        if colon and (self.devices or 1) > 1:
            raise SchedcastError(
                f"--device {self.device} is one GPU, and --devices {self.devices} are the first {self.devices}; use --device cuda, and"
                " CUDA_VISIBLE_DEVICES to choose others"
            )
        limit = self.memory_limit_gb
        if limit is not None and not 0 < limit < float("inf"):
            raise SchedcastError(f"--memory-limit is {limit} GB; expected a number above 0, such as 16")
        if self.network is not None and self.network_bytes_per_s is None:
            raise SchedcastError(f"--network is {self.network[:40]!r}; expected a rate above 0, such as 50Gb/s or 6.25GB/s")

    @property
    def partitions(self) -> int:
        """The number of partitions of the GPU; 1 if it is whole."""
        return self.partition or 1

    @property
    def plan_devices(self) -> int:
        """The number of devices that a plan has on this machine."""
        return self.partitions if self.partitions > 1 else self.devices or 1

    @property
    def memory_limit_bytes(self) -> float | None:
        return None if self.memory_limit_gb is None else self.memory_limit_gb * 1e9

    @property
    def network_bytes_per_s(self) -> float | None:
        return None if self.network is None else read_rate(self.network)

    @staticmethod
    def from_options(
        device: str, devices: int | None, mode: str, link: str, partition: int | None = None, memory_limit_gb: float | None = None
    ) -> "Placement":
        """The placement that the command line asks for. Under torchrun, the number of processes is the number of devices.

        Raises SchedcastError as a placement does, and if the options contradict torchrun.
        """
        ranks = launched()
        if ranks is None:
            return Placement(device, devices, mode, link, memory_limit_gb, partition=partition)
        if devices not in (None, ranks.world):
            raise SchedcastError(
                f"--devices {devices}: torchrun started {ranks.world} processes, one per device; drop it, or start {devices} processes"
            )
        if link != "alias":
            raise SchedcastError(f"--link {link} joins the devices of one process; torchrun started {ranks.world}: drop it")
        if partition not in (None, 1):
            raise SchedcastError(f"--partition {partition} splits the GPU of one process; torchrun started {ranks.world}: drop it")
        return Placement(device, ranks.world, mode, link, memory_limit_gb, ranks)


#: One device: this CPU.
DEFAULT_PLACEMENT = Placement()
