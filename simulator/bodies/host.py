"""Time spent on the host: Python, data loading, a gap in a recorded trace."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Task


@dataclass(frozen=True, slots=True)
class Host:
    """Occupy the lane for `duration_s` seconds. A GPU's stream calls the host for it, and stands still for somewhat longer."""

    duration_s: float
    label: str = ""
    kind: Literal["host"] = "host"

    launches: ClassVar[int] = 0

    def __post_init__(self):
        """Raise ValueError for a duration that no clock can show."""
        if not 0 <= self.duration_s < float("inf"):
            raise ValueError(f"a host task cannot take {self.duration_s} s; expected a finite number of at least 0")

    def key(self, task: "Task") -> str:
        """The duration is the cost."""
        return f"host|{self.label}|{self.duration_s!r}"

    def work(self, task: "Task") -> Work:
        """Nothing on a device."""
        return Work("host", 0.0, 0.0)
