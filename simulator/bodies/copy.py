"""A transfer between two devices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Task

#: How bytes get from one device to the other: over the machine's links; by a kernel of the task's device, where both lie in one memory;
#: or not at all, as the target is a second name of the source's memory.
LINK, KERNEL, ALIAS = "link", "kernel", "alias"


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy each of `reads`, on device `source`, to the write, or into the mutated operand, of its place, on `target`.

    With `add` it is added to what the mutated operand holds. `means`: "link", "kernel" or "alias"; a kernel's bytes also pass the link
    that a machine states between two devices of one memory.
    """

    source: str
    target: str
    add: bool = False
    means: Literal["link", "kernel", "alias"] = LINK
    kind: Literal["copy"] = "copy"

    launches: ClassVar[int] = 1

    def key(self, task: "Task") -> str:
        """Route and bytes; of a kernel, what it does to how many bytes of how many tensors."""
        moved = moved_bytes(task)
        if self.means == KERNEL:
            return f"copy|{'add' if self.add else 'put'}|{task.reads[0].dtype}|{moved}|{len(task.reads)}"
        return f"copy|{self.source}>{self.target}|{moved}"

    def work(self, task: "Task") -> Work:
        """Bytes read and written; an addition for every element."""
        moved = moved_bytes(task)
        if self.means == KERNEL:
            added = float(sum(operand.elements for operand in task.reads)) if self.add else 0.0
            return Work("elementwise", added, (3.0 if self.add else 2.0) * moved)
        return Work("copy", 0.0, 2.0 * moved)


def moved_bytes(task: "Task") -> int:
    """Bytes that pass from one device to another."""
    return sum(operand.bytes for operand in task.reads)
