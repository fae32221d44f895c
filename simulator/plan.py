"""The plan: plain data that says which task runs where, in what order, reading and writing which values.

A strategy makes it; the simulator and the executors consume the same object, and it goes to JSON and back without loss
(`simulator.plan_json`). What a plan means: the issue order of a period, repeated period after period with skipped tasks left out, is a
sequential program (`program`); any execution that respects its hazards (`simulator.dependencies`) gives the same numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bodies.work import Body

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
class Task:
    """One unit of work on one lane. In period p it works on iteration p − lag and is skipped where that is negative.

    `priority`: smaller is more urgent. `after`: names of tasks of the same period that must end first. `reads`, `writes` and `mutates`
    are disjoint; bodies refer to `reads + mutates` by position.
    """

    name: str
    body: "Body"
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


@dataclass(frozen=True)
class Plan:
    """What a strategy decided.

    `losses` are the scalar values whose mean is the step's loss (one per micro-batch). `gradients` maps a parameter to the operand that
    holds its complete gradient. `semantics` says in words what differs from plain training.
    """

    strategy: str
    segments: tuple[Segment, ...]
    values: Mapping[str, Value]
    storages: Mapping[str, Storage]
    losses: tuple[str, ...] = ()
    gradients: Mapping[str, Operand] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    semantics: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the last segment's period, the one that a step time refers to, in issue order."""
        return self.segments[-1].tasks

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices in order of first use."""
        return tuple(dict.fromkeys(task.device for segment in self.segments for task in segment.tasks))

    @cached_property
    def carried(self) -> frozenset[str]:
        """Storages with one buffer for the whole job; all others have a fresh instance per iteration.

        Parameters, optimizer state and buffers, and whatever an iteration reads before it writes it (inputs excepted: they are fed).
        """
        carried = {value.storage for value in self.values.values() if value.kind in CARRIED_KINDS}
        fed = {value.storage for value in self.values.values() if value.kind == INPUT}
        for segment in self.segments:
            written: set[str] = set()
            for task in sorted(segment.tasks, key=lambda t: t.lag):  # an iteration meets its tasks in order of (lag, issue)
                used = {self.values[o.value].storage for o in task.inputs}
                carried |= used - written - fed
                written |= {self.values[o.value].storage for o in task.writes}
        return frozenset(carried)

    @cached_property
    def instances(self) -> tuple[tuple[str, ...], ...]:
        """Per task, the per-iteration storages it accesses, each once, in the order of its operands."""
        carried, values = self.carried, self.values
        return tuple(
            tuple(dict.fromkeys(name for o in (*task.inputs, *task.writes) if (name := values[o.value].storage) not in carried))
            for task in self.tasks
        )

    def storage_of(self, operand: Operand) -> str:
        """The storage that an operand lies on."""
        return self.values[operand.value].storage

    def keys(self, machine) -> dict[str, Task]:
        """Every cost key the plan needs on `machine`, with the first task that needs it. Keys end in the device's SM count."""
        found: dict[str, Task] = {}
        for segment in self.segments:
            for task in segment.tasks:
                found.setdefault(cost_key(task, machine), task)
        return found

    def validate(self, machine) -> None:
        """Raise PlanError where the plan cannot run on `machine`, with the lanes drawn around the fault."""
        from .plan_check import check

        check(self, machine)


def cost_key(task: Task, machine) -> str:
    """The name under which a profile knows the task's cost: body, operand geometry, and the SMs it has to itself."""
    return f"{task.body.key(task)}@{machine.device(task.device).sms}"


def program(tasks: tuple[Task, ...], iterations: int, periods: int | None = None) -> Iterator[tuple[int, int, Task]]:
    """Yield (period, index in the period, task) of `iterations` iterations in sequential order, prologue and drain included.

    With `periods`, stop after that many periods and do not drain.
    """
    last = max((task.lag for task in tasks), default=0)
    for period in range(iterations + last if periods is None else periods):
        for index, task in enumerate(tasks):
            if 0 <= period - task.lag < iterations:
                yield period, index, task
