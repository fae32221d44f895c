"""Work of a device whose duration was recorded: a kernel, a memory copy or set, a collective."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Task

CATEGORIES = ("kernel", "memcpy", "memset", "collective")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Occupy a stream for `duration_s` seconds. `name` as the profiler wrote it, `category` one of `CATEGORIES`.

    `bytes`: moved, where the recording says so; `grid`: blocks, 0 where it does not say.
    """

    name: str
    category: str
    duration_s: float
    bytes: float = 0.0
    grid: int = 0
    kind: Literal["recorded"] = "recorded"

    launches: ClassVar[int] = 1

    def __post_init__(self):
        """Raise ValueError for a category or a duration that no recording can show."""
        if self.category not in CATEGORIES:
            raise ValueError(f"recorded work has category {self.category!r}; expected one of {', '.join(CATEGORIES)}")
        if not 0 <= self.duration_s < float("inf"):
            raise ValueError(f"recorded work cannot take {self.duration_s} s; expected a finite number of at least 0")

    def key(self, task: "Task") -> str:
        """The duration is the cost."""
        return f"recorded.{self.category}|{self.name}|{self.duration_s!r}"

    def work(self, task: "Task") -> Work:
        """The recorded bytes; FLOPs are not recorded."""
        return Work(self.category, 0.0, self.bytes)
