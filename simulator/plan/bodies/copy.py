"""A transfer between two devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.plan.task import Body, Resource, Task, Value, Work

#: How bytes get from one device to the other: over the machine's links; by a kernel of the task's device, if both devices share one
#: memory; or not at all, because the target is a second name for the source's memory.
LINK, KERNEL, ALIAS = "link", "kernel", "alias"


@dataclass(frozen=True, slots=True)
class Copy(Body):
    """Copy each of `reads`, on device `source`, to the write or the mutated operand at the same position, on device `target`.

    With `add`, add it to what the mutated operand holds. `means` is "link", "kernel" or "alias". The bytes of a "kernel" also pass the link
    that the machine states between the two devices, if it states one.
    """

    source: str
    target: str
    add: bool = False
    means: Literal["link", "kernel", "alias"] = LINK
    kind: Literal["copy"] = "copy"

    crosses_devices = True
    is_copy = True

    @property
    def resource(self) -> Resource:
        """The links, or the SMs of the kernel that copies."""
        return Resource.COMPUTE if self.means == KERNEL else Resource.LINK

    @property
    def aliases(self) -> bool:
        """Whether the target is a second name for the source's memory."""
        return self.means == ALIAS

    @property
    def ends(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    def moved_bytes(self, task: Task) -> int:
        """Bytes of all reads."""
        return sum(operand.bytes for operand in task.reads)

    def key(self, task: Task) -> str:
        """Route and bytes; for a kernel, what it does, dtype, bytes and number of tensors."""
        moved = self.moved_bytes(task)
        if self.means == KERNEL:
            return f"copy|{'add' if self.add else 'put'}|{task.reads[0].dtype}|{moved}|{len(task.reads)}"
        return f"copy|{self.source}>{self.target}|{moved}"

    def work(self, task: Task) -> Work:
        """Bytes read and written, and with `add` one FLOP per element."""
        moved = self.moved_bytes(task)
        if self.means == KERNEL:
            added = float(sum(operand.elements for operand in task.reads)) if self.add else 0.0
            return Work("elementwise", added, (3.0 if self.add else 2.0) * moved)
        return Work("copy", 0.0, 2.0 * moved)

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Reads and targets that do not pair up, or that lie on other devices than `source` and `target`."""
        targets = task.mutates or task.writes
        if len(task.reads) != len(targets) or not targets:
            yield f"copies {len(task.reads)} operands to {len(targets)}; expected as many, and at least one"
            return
        source, target = (values[o.value].device if o.value in values else "nowhere" for o in (task.reads[0], targets[0]))
        if (source, target) != self.ends:
            yield f"copies from {self.source} to {self.target}, but its values lie on {source} and {target}"
