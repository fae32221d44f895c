"""An operation in which several devices take part at once, made by a library of collectives (NCCL, gloo)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Operand, Task

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"


@dataclass(frozen=True, slots=True)
class Collective:
    """`operation` over `devices`, in rank order.

    Operands stand device by device, as many of each. "all-reduce": `mutates` become their sum on every device. "reduce-scatter": rank r
    keeps the sum of chunk r of its `mutates`, "all-gather": every device gets chunk r from rank r; chunks are those of
    `collectives.chunks`, and what else the operands hold after a reduce-scatter has no meaning. `algorithm`: how bytes travel, which
    decides what links price it at ("ring", "tree", "distributed", "server"); a library may know better. `root` of a "server": a device,
    or the host.
    """

    operation: Literal["all-reduce", "reduce-scatter", "all-gather"]
    devices: tuple[str, ...]
    algorithm: Literal["ring", "tree", "distributed", "server"] = "ring"
    root: str = ""
    kind: Literal["collective"] = "collective"

    launches: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """The operation, and the algorithm where a library is told one: "server" is a sum at the root and a broadcast."""
        return f"{self.operation}>{self.algorithm}" if self.algorithm == "server" else self.operation

    def of(self, device: str, task: "Task") -> "tuple[Operand, ...]":
        """The operands of one device."""
        each, rank = len(task.mutates) // len(self.devices), self.devices.index(device)
        return task.mutates[rank * each : (rank + 1) * each]

    def payload_bytes(self, task: "Task") -> int:
        """Bytes of one device's operands."""
        return sum(operand.bytes for operand in self.of(self.devices[0], task))

    def key(self, task: "Task") -> str:
        """Operation, algorithm, devices, bytes and tensors."""
        each = len(task.mutates) // len(self.devices)
        how = f"{self.operation}|{self.algorithm}{'>' + self.root if self.root else ''}"
        return f"collective|{how}|{','.join(self.devices)}|{self.payload_bytes(task)}|{each}"

    def work(self, task: "Task") -> Work:
        """Bytes that every device reads and writes."""
        return Work("collective", 0.0, 2.0 * self.payload_bytes(task))
