"""One process's half of a copy between the devices of two processes: it sends, or it receives."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.plan.task import Body, Resource, Task, Value, Work


@dataclass(frozen=True, slots=True)
class Message(Body):
    """Send the `reads` to the process of device `target`, or receive them from that of `source`.

    It occurs only in the share of a plan that a process runs (`collectives.local_plan`), where it stands for a `Copy` of the whole plan.
    The task on `source` has reads only, the one on `target` the writes, or the mutated operands, of the copy; with `add` they grow by what
    arrives. `channel`: the stream on which the target receives, which no other direction has. `strides`: those of each tensor on the
    target. Elements travel in that order.
    """

    source: str
    target: str
    channel: int
    strides: tuple[tuple[int, ...], ...]
    add: bool = False
    kind: Literal["message"] = "message"

    resource = Resource.LINK
    crosses_devices = True
    waits_for_peers = True

    @property
    def ends(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    def sends(self, task: Task) -> bool:
        """Whether this is the sender's half."""
        return task.device == self.source

    def moved_bytes(self, task: Task) -> int:
        """Bytes of all tensors."""
        return sum(operand.bytes for operand in task.reads or task.writes or task.mutates)

    def key(self, task: Task) -> str:
        """Direction, route and bytes."""
        return f"message|{'send' if self.sends(task) else 'receive'}|{self.source}>{self.target}|{self.moved_bytes(task)}"

    def work(self, task: Task) -> Work:
        """Bytes read or written."""
        return Work("copy", 0.0, float(self.moved_bytes(task)))

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """A device that is neither the sender nor the receiver."""
        if task.device not in self.ends:
            yield f"is a message from {self.source} to {self.target}; expected to run on one of them"
