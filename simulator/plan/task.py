"""What plans are made of: operands, values on storages, task bodies, tasks and segments, as plain data."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

DTYPE_BYTES = MappingProxyType({
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
})  # fmt: skip

INPUT, PARAMETER, BUFFER, OPTIMIZER_STATE = "input", "parameter", "buffer", "optimizer-state"
GRADIENT, ACTIVATION, SCRATCH = "gradient", "activation", "scratch"
KINDS = (INPUT, PARAMETER, BUFFER, OPTIMIZER_STATE, GRADIENT, ACTIVATION, SCRATCH)
#: Kinds whose storage lives as long as the job; all others live for one iteration.
CARRIED_KINDS = frozenset({PARAMETER, BUFFER, OPTIMIZER_STATE})

FORWARD, BACKWARD, UPDATE, TRANSFER, COLLECTIVE = "forward", "backward", "update", "transfer", "collective"
PHASES = (FORWARD, BACKWARD, UPDATE, TRANSFER, COLLECTIVE)


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One aten view op applied to an operand: `args` is the JSON text of its arguments after the tensor.

    `output` picks one result of ops that return several views (split, unbind).
    """

    target: str
    args: str = "[]"
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A value seen through view steps, with the shape, strides (in elements) and dtype that result."""

    value: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    views: tuple[ViewStep, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        """Bytes touched when every distinct element is read once (expanded dimensions, stride 0, count once)."""
        count = 1
        for extent, stride in zip(self.shape, self.strides, strict=True):
            count *= extent if stride else 1
        return count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of one device. Several values may lie on one storage."""

    name: str
    bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor. `source` says where its initial content comes from among the job's tensors (this cuts shards)."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    kind: str
    storage: str
    source: Operand | None = None

    def operand(self) -> Operand:
        """The whole value, without views."""
        return Operand(self.name, self.shape, self.strides, self.dtype)


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of a task. `op_class` groups tasks that reach similar efficiency."""

    op_class: str
    flops: float
    bytes: float


class Body(Protocol):
    """What every body offers. It is a frozen dataclass of plain data."""

    kind: str
    launches: int

    def key(self, task: "Task") -> str:
        """The body's part of the cost key: two tasks with one key take the same time."""

    def work(self, task: "Task") -> Work:
        """FLOPs and bytes, for the roofline."""


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work on one lane. In period p it works on iteration p − lag and is skipped where that is negative.

    `priority`: smaller is more urgent. `after`: names of tasks of the same period that must end first. `reads`, `writes` and `mutates`
    are disjoint; bodies refer to `reads + mutates` by position.
    """

    name: str
    body: Body
    device: str
    stream: int = 0
    priority: int = 0
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()
    after: tuple[str, ...] = ()
    phase: str = FORWARD
    layer: str = ""
    micro_batch: int = 0
    lag: int = 0

    @property
    def lane(self) -> tuple[str, int]:
        """The serial queue it runs in: (device, stream)."""
        return (self.device, self.stream)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`: what a body's references count through."""
        return self.reads + self.mutates


@dataclass(frozen=True, slots=True)
class Segment:
    """Tasks of one period in issue order, and how many iterations they are repeated for (None: as many as asked)."""

    tasks: tuple[Task, ...]
    repeat: int | None = None
