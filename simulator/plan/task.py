"""The parts of a plan as plain data: operands, values on storages, task bodies and tasks.

Finds every kind of task body. Bodies build on plans, so this module knows their package by name alone.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator

from simulator.plan.discovery import modules

# The ops that a plan or a captured graph may name: pure tensor ops, listed by name in `ops.json`.
# A plan is data and may come from anyone. So what it can make an executor call is an explicit list: ops that compute tensors from tensors
# and numbers. Ops that open files, or that change anything but their results, are not on it.


LIST = Path(__file__).with_name("ops.json")
NAMESPACES = ("aten", "schedcast")


@cache
def allowed() -> frozenset[str]:
    """The full names of all ops on the list, such as `aten.mm.default`."""
    return frozenset(f"{name}.{overload}" for name, overloads in json.loads(LIST.read_text()).items() for overload in overloads.split())


def check_op(target: str) -> str:
    """Return `target`. Raises ValueError if it is not on the list."""
    if target not in allowed():
        raise ValueError(f"{target[:80]!r} is not a tensor op that a plan may call")
    return target


#: The name of an op. Documents with any other name are refused when they are read.
OpName = Annotated[str, AfterValidator(check_op)]


def body_types() -> dict[str, type]:
    """Every kind of body by its `kind` string: the dataclasses with a field `kind` that a module of `simulator.plan.bodies` defines."""
    return {
        str(item.__dataclass_fields__["kind"].default): item
        for module in modules(f"{__package__}.bodies")
        for item in vars(module).values()
        if is_dataclass(item) and isinstance(item, type) and item.__module__ == module.__name__ and "kind" in item.__dataclass_fields__
    }


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

#: The suffix of the names of forward ops that run again in backward, and of the values that they write.
AGAIN = "#again"


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One aten view op applied to an operand: `args` is the JSON text of its arguments after the tensor.

    `output` picks one result of ops that return several views (split, unbind).
    """

    target: OpName
    args: str = "[]"
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """A value and the view steps applied to it, with the resulting shape, strides (in elements) and dtype."""

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
        """Bytes read if every distinct element is read once. An expanded dimension (stride 0) counts once."""
        count = 1
        for extent, stride in zip(self.shape, self.strides, strict=True):
            count *= extent if stride else 1
        return count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of one device. Several values may be on one storage."""

    name: str
    bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor.

    `storage`: where its bytes are; by default, a separate storage with its name. `source`: the tensor of the job that the initial content
    comes from, and the view steps that cut a shard of it.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str
    kind: str
    storage: str = ""
    source: Operand | None = None

    def __post_init__(self):
        if not self.storage:
            object.__setattr__(self, "storage", self.name)

    def operand(self) -> Operand:
        """The whole value, without views."""
        return Operand(self.name, self.shape, self.strides, self.dtype)

    def origin(self) -> Operand:
        """For a graph's parameter or buffer: which part of the job's tensor it is."""
        return self.source or self.operand()


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes of a task. `op_class` groups tasks that reach similar efficiency."""

    op_class: str
    flops: float
    bytes: float


class Resource(StrEnum):
    """What decides how long a task takes, and what it competes for with other tasks."""

    #: A kernel on the SMs of a GPU, or an op on a CPU core. Calibration measures its time.
    COMPUTE = "compute"
    #: Bytes that pass over the links of the machine, from one place to another (`Body.ends`).
    LINK = "link"
    #: An operation of several devices together over the links between them. The body is a `bodies.collective.Collective`.
    COLLECTIVE = "collective"
    #: The host, for the body's own `duration_s`. A GPU's stream waits meanwhile.
    HOST = "host"


class HasOperands(Protocol):
    """A task, a step of an `OpList`, or an op of a captured graph."""

    @property
    def body(self) -> Any: ...
    @property
    def reads(self) -> tuple[Operand, ...]: ...
    @property
    def writes(self) -> tuple[Operand, ...]: ...
    @property
    def mutates(self) -> tuple[Operand, ...]: ...
    @property
    def inputs(self) -> tuple[Operand, ...]: ...


class Body:
    """What a task does. A kind of body is a frozen dataclass of plain data that derives from this class.

    It has a field `kind` (its name in JSON, and the key of its handler in the executors) and gives `key` and `work`. The other members tell
    the cost model, the engine and the executors how to treat its tasks; the defaults are those of one kernel on the task's own device. A
    method takes the task, or a step of an `OpList`, because shapes are in the operands.
    """

    __slots__ = ()

    kind: str
    #: Whether its operands may lie on several devices.
    crosses_devices: bool = False
    #: Whether it updates parameters.
    is_update: bool = False
    #: Whether it waits for another process while it runs, so that no worker of the device should.
    waits_for_peers: bool = False
    #: Whether the host itself runs it before it issues the next task: on a GPU, nothing is launched and no stream waits.
    on_host: bool = False
    #: Whether the host that issues it continues only when it has ended. A graph, whose launch issues everything at once, cannot contain it.
    blocks_host: bool = False

    @property
    def launches(self) -> int:
        """Kernels on CUDA, which the host launches one by one."""
        return 1

    @property
    def resource(self) -> Resource:
        """What the task occupies while it runs."""
        return Resource.COMPUTE

    @property
    def aliases(self) -> bool:
        """Whether each write is a second name for the memory of the read in its place, so that nothing moves."""
        return False

    @property
    def op(self) -> str:
        """The op that it calls, if it is one call; else empty."""
        return ""

    @property
    def is_copy(self) -> bool:
        """Whether its result is what it reads."""
        return False

    @property
    def has_products(self) -> bool:
        """Whether it runs matrix products of cuBLAS, which keeps a workspace per stream."""
        return False

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return False

    @property
    def ends(self) -> tuple[str, str] | None:
        """(source, target) of bytes that go from one device (or the host) to another; None if the task stays on its device."""
        return None

    def key(self, task: "Task") -> str:
        """The body's part of the cost key: two tasks with one key take the same time."""
        raise NotImplementedError

    def work(self, task: "Task") -> Work:
        """FLOPs and bytes, for the roofline."""
        raise NotImplementedError

    @property
    def calls(self) -> int:
        """Op calls that a CPU worker makes."""
        return self.launches

    @property
    def loop_length(self) -> int:
        """Steps of a task that is a loop, in which each step needs the one before, as in a recurrent layer; else 1."""
        return 1

    @property
    def as_measured(self) -> "Body":
        """The body to time for the key: this one, unless the key omits something."""
        return self

    @property
    def inner_ops(self) -> "tuple[HasOperands, ...]":
        """The ops that the task runs one after another; empty unless it is a list of ops."""
        return ()

    def least_kernels(self, device_kind: str) -> int:
        """The task's minimum duration in multiples of the shortest kernel of a "gpu", or of the shortest op call of a "cpu"."""
        return self.launches

    def blocks(self, task: "Task") -> int | None:
        """Blocks of the task's kernel on CUDA; None to derive them from the number of elements written."""
        return None

    def temporaries(self, task: "Task") -> list[int]:
        """Peak bytes of the task's temporary tensors."""
        return []

    def made(self, task: "Task") -> list[int]:
        """Bytes of all the task's temporary tensors, which need not exist at the same time."""
        return []

    def moved_bytes(self, task: "Task") -> int:
        """Bytes that go from one of `ends` to the other."""
        return 0

    def faults(self, task: "Task", values: "Mapping[str, Value]") -> Iterator[str]:
        """Yield why the task's operands do not fit the body, as predicates: "copies 2 operands to 1". `values`: those of the plan."""
        yield from ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Read a field of type `Body` as the kind of body that its `kind` names."""
        if cls is not Body:
            return handler(source)
        from pydantic import Discriminator

        return handler.generate_schema(Annotated[reduce(or_, body_types().values()), Discriminator("kind")])


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work on one lane. In period p it works on iteration p − lag, and is skipped if that is negative.

    `priority`: smaller is more urgent. `after`: names of tasks of the same period that must end first. `reads`, `writes` and `mutates`
    are disjoint. Bodies refer to `reads + mutates` by position. `view_calls`: how many more view calls plain PyTorch makes than the
    executor before this op. `action`: the pipeline action that the task is part of, such as "0F3" (`pipeline.schedule.Action`).

    >>> from simulator.plan.bodies.host import Host
    >>> Task("update", Host(duration_s=0.5), "cuda:0", stream=1, after=("backward",)).lane
    ('cuda:0', 1)
    """

    name: str
    body: Annotated[Any, Body]  # a kind of body; its handlers know its fields
    device: str
    stream: int = 0
    priority: int = 0
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()
    after: tuple[str, ...] = ()
    phase: str = FORWARD
    layer: str = ""
    microbatch: int = 0
    lag: int = 0
    view_calls: int = 0
    action: str = ""

    @property
    def lane(self) -> tuple[str, int]:
        """The serial queue that the task runs in: (device, stream)."""
        return (self.device, self.stream)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`, which bodies refer to by position."""
        return self.reads + self.mutates


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices that do the same at the same time, of which a plan has only one: such a plan can be predicted, but not run.

    `device`: the one that the plan has. `members`: all of them, `device` first. The members of two classes correspond in order: what a
    class's device copies to that of another class, each member copies to its counterpart.
    """

    device: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Tasks of a step that run `times` more times, each time on later microbatches: such a plan can be predicted, but not run.

    `tasks`: their names, one after another in issue order, after as many that do the same on earlier microbatches (`plan.repeat.expand`).
    `period`: how many microbatches they go on by. `shown`: how many microbatches the plan has. `inputs`: by storage of an input, the
    storages of the omitted inputs, which stay allocated as long.
    """

    tasks: tuple[str, ...]
    times: int
    period: int
    shown: int
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many microbatches the plan omits."""
        return self.times * self.period

    @property
    def words(self) -> str:
        """The microbatches of the plan."""
        return f"{self.shown} of {self.shown + self.count} microbatches are shown; those between do the same"
