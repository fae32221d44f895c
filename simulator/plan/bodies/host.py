"""Time spent on the host: Python, data loading, a gap in a recorded trace."""

from dataclasses import dataclass
from typing import Literal

from simulator.plan.task import Body, Resource, Task, Work


@dataclass(frozen=True, slots=True)
class Host(Body):
    """Occupy the lane for `duration_s` seconds. A GPU's stream calls the host, and waits slightly longer than that.

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


@dataclass(frozen=True, slots=True)
class Synchronize(Body):
    """The host issues nothing until this task has ended: `cudaStreamSynchronize`, or reading a loss with `.item()`.

    The task takes no time: its lane reaches it after the lane's earlier tasks, and after those that it is `after`. No host issues the
    tasks of a CPU, so that it is a task like others there.
    """

    kind: Literal["synchronize"] = "synchronize"

    launches = 0
    resource = Resource.HOST
    duration_s = 0.0
    blocks_host = True

    def key(self, task: Task) -> str:
        """The same for all."""
        return "synchronize"

    def work(self, task: Task) -> Work:
        """No FLOPs and no bytes."""
        return Work("host", 0.0, 0.0)


#: What the host runs in PyTorch's own parallel loops (`engine.costs.hooks`).
HookName = Literal[
    "ddp step", "ddp parameter", "ddp bucket", "fsdp forward", "fsdp pre-forward", "fsdp post-forward", "fsdp pre-backward",
    "fsdp post-backward", "fsdp end", "dtensor update foreach", "dtensor update fused", "dtensor update for",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hook(Body):
    """Code of PyTorch's parallel loops that the host runs, such as a hook of a unit, before it issues the next task.

    `runs`: the hook; `parameters`: how many it works on. Its duration depends on the host.
    """

    runs: HookName
    parameters: int = 0
    kind: Literal["hook"] = "hook"

    launches = 0
    resource = Resource.HOST
    on_host = True

    def key(self, task: Task) -> str:
        """What runs, and for how many parameters."""
        return f"hook|{self.runs}|{self.parameters}"

    def work(self, task: Task) -> Work:
        """No FLOPs and no bytes on a device."""
        return Work("host", 0.0, 0.0)


# Work of a device whose duration was recorded: a kernel, a memory copy or set, a collective.


CATEGORIES = ("kernel", "memcpy", "memset", "collective")


@dataclass(frozen=True, slots=True)
class Recorded(Body):
    """Occupy a stream for `duration_s` seconds. `name` is the profiler's, `category` one of `CATEGORIES`.

    `bytes`: bytes moved, 0 if the recording does not say. `grid`: blocks of the kernel, 0 if the recording does not say. `op`: the op that
    launched it, "" if the recording does not say. `callers`: the calling ops and that op, the outermost first; `call`: the number of this
    call in its iteration, from 1; "" and 0 if the recording does not say.
    """

    name: str
    category: str
    duration_s: float
    bytes: float = 0.0
    grid: int = 0
    op: str = ""
    callers: str = ""
    call: int = 0
    kind: Literal["recorded"] = "recorded"

    resource = Resource.COMPUTE

    def __post_init__(self):
        """Raise ValueError for an unknown category, or a negative or infinite duration."""
        if self.category not in CATEGORIES:
            raise ValueError(f"recorded work has category {self.category!r}; expected one of {', '.join(CATEGORIES)}")
        if not 0 <= self.duration_s < float("inf"):
            raise ValueError(f"recorded work cannot take {self.duration_s} s; expected a finite number of at least 0")

    def key(self, task: Task) -> str:
        """Category, name and duration: the duration is the cost."""
        return f"recorded.{self.category}|{self.name}|{self.duration_s!r}"

    def work(self, task: Task) -> Work:
        """The recorded bytes; FLOPs are not recorded."""
        return Work(self.category, 0.0, self.bytes)
