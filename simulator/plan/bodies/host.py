"""Time spent on the host: Python, data loading, a gap in a recorded trace."""

from dataclasses import dataclass
from typing import Literal

from simulator.plan.task import Body, Resource, Task, Work


@dataclass(frozen=True, slots=True)
class Host(Body):
    """Occupy the lane for `duration_s` seconds. A GPU's stream calls the host, and waits somewhat longer than that.

    `op`: the op or annotation that covers the time in a recording, "" if none does.
    """

    duration_s: float
    label: str = ""
    op: str = ""
    kind: Literal["host"] = "host"

    launches = 0
    resource = Resource.HOST

    def __post_init__(self):
        """Raise ValueError for a negative or infinite duration."""
        if not 0 <= self.duration_s < float("inf"):
            raise ValueError(f"a host task cannot take {self.duration_s} s; expected a finite number of at least 0")

    def key(self, task: Task) -> str:
        """Label and duration: the duration is the cost."""
        return f"host|{self.label}|{self.duration_s!r}"

    def work(self, task: Task) -> Work:
        """No FLOPs and no bytes on a device."""
        return Work("host", 0.0, 0.0)
