"""A transfer between two devices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from .work import Work

if TYPE_CHECKING:
    from ..plan import Task


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `reads[0]` to `writes[0]`, which lies on another device; the machine's link says how long it takes."""

    source: str
    target: str
    kind: Literal["copy"] = "copy"

    launches: ClassVar[int] = 1

    def key(self, task: "Task") -> str:
        """Route and bytes."""
        return f"copy|{self.source}>{self.target}|{task.reads[0].bytes}"

    def work(self, task: "Task") -> Work:
        """Bytes read and written."""
        return Work("copy", 0.0, 2.0 * task.reads[0].bytes)
