"""An operation in which several devices take part at once, run by a library of collectives (NCCL, gloo)."""

from dataclasses import dataclass
from typing import Literal

from simulator.plan.task import Body, Operand, Resource, Task, Work

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"


@dataclass(frozen=True, slots=True)
class Collective(Body):
    """Run `operation` over `devices`, which are in rank order.

    The task's `mutates` list the operands device by device, the same number for each device:

    all-reduce      the operands become their sum on every device
    reduce-scatter  rank r keeps the sum of chunk r; the rest of its operands has no meaning afterwards
    all-gather      every device gets chunk r from rank r

    Chunks are those of `collectives.chunks`. `algorithm` says which way the bytes travel ("ring", "tree", "distributed" or "server"), from
    which the links derive a price; a library may use a better one. `root` is the root of a "server": a device, or the host.
    """

    operation: Literal["all-reduce", "reduce-scatter", "all-gather"]
    devices: tuple[str, ...]
    algorithm: Literal["ring", "tree", "distributed", "server"] = "ring"
    root: str = ""
    kind: Literal["collective"] = "collective"

    resource = Resource.COLLECTIVE
    crosses_devices = True
    waits_for_peers = True

    @property
    def name(self) -> str:
        """The operation, and the algorithm if the library must follow it: "server" is a sum at the root and a broadcast."""
        return f"{self.operation}>{self.algorithm}" if self.algorithm == "server" else self.operation

    def of(self, device: str, task: Task) -> tuple[Operand, ...]:
        """The operands of one device."""
        count, rank = len(task.mutates) // len(self.devices), self.devices.index(device)
        return task.mutates[rank * count : (rank + 1) * count]

    def payload_bytes(self, task: Task) -> int:
        """Bytes of one device's operands."""
        return sum(operand.bytes for operand in self.of(self.devices[0], task))

    def key(self, task: Task) -> str:
        """Operation, algorithm, devices, bytes and number of tensors."""
        count = len(task.mutates) // len(self.devices)
        algorithm = f"{self.algorithm}{'>' + self.root if self.root else ''}"
        return f"collective|{self.operation}|{algorithm}|{','.join(self.devices)}|{self.payload_bytes(task)}|{count}"

    def work(self, task: Task) -> Work:
        """Bytes that every device reads and writes."""
        return Work("collective", 0.0, 2.0 * self.payload_bytes(task))
