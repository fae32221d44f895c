"""The share of a plan that one process runs: its device's tasks, and its part of collectives and of copies between two devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from simulator.machine.machine import HOST
from simulator.plan.bodies.copy import Message
from simulator.plan.messages import between_devices
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Resource, Task
from traces.errors import Code, SchedcastError


@dataclass(frozen=True)
class LocalPlan(Plan):
    """A device's share of the plan `whole`. `numbers`: the index in `whole.tasks` of each task of `tasks`."""

    whole: Plan = field(kw_only=True)
    device: str = ""
    numbers: tuple[int, ...] = ()

    @cached_property
    def carried(self) -> frozenset[str]:
        """The carried storages of the whole plan that are on this device."""
        return self.whole.carried & self.storages.keys()

    @cached_property
    def gradient_sources(self) -> dict[str, Operand]:
        """The parameters of the whole plan, since a parameter may be on a different device than its gradient."""
        return {name: self.whole.gradient_sources[name] for name in self.gradients}

    @cached_property
    def largest_lag(self) -> int:
        """The number for the whole plan, so that all processes run the same periods."""
        return self.whole.largest_lag

    @property
    def empty(self) -> bool:
        """Whether the device has no tasks."""
        return not self.tasks


def local_plan(plan: Plan, device: str) -> LocalPlan:
    """The share of `plan` that the process of `device` runs.

    A collective runs on the device's lane of the same stream, with only the device's operands, which order it relative to the tasks before
    and after it. A copy between two devices becomes a `Message` on each: it is sent on the lane of the copy, and received on a separate
    lane (`directions`), so that a waiting receive delays only later receives from the same device. Both processes have their messages in
    the order of the plan, so the earliest task that waits for a message is always served, and no order of other tasks can deadlock. `after`
    edges between tasks of two devices are dropped, since data order devices. Raises SchedcastError for a plan that can only be predicted,
    and for a task for which two devices share memory.
    """
    plan.require_runnable()
    receiving = directions(plan)
    numbered = _tasks(plan, device, receiving)
    used = {o.value for _, task in numbered for o in (*task.inputs, *task.writes)}
    values = {name: v for name, v in plan.values.items() if v.device == device or (v.device == HOST and name in used)}
    local_storages = {value.storage for value in values.values()}
    return LocalPlan(
        strategy=plan.strategy,
        tasks=tuple(task for _, task in numbered),
        values=values,
        storages={name: storage for name, storage in plan.storages.items() if name in local_storages},
        losses=tuple(name for name in plan.losses if name in values),
        gradients={name: operand for name, operand in plan.gradients.items() if operand.value in values},
        options=plan.options,
        semantics=plan.semantics,
        whole=plan,
        device=device,
        numbers=tuple(number for number, _ in numbered),
    )


def devices_of(plan: Plan) -> frozenset[str]:
    """The devices that run a task of the plan or take part in one: those whose `local_plan` is not empty."""
    return frozenset(device for task in plan.tasks for device in _taking_part(task))


def _taking_part(task: Task) -> tuple[str, ...]:
    """The devices that run a task, or a part of it."""
    if task.body.resource is Resource.COLLECTIVE:
        return task.body.devices
    return task.body.ends if between_devices(task) else (task.device,)


class Direction(NamedTuple):
    """One way from a device to another: the messages that the lane `stream` of `source` sends to `target`, in the order of the plan."""

    source: str
    stream: int
    target: str


def directions(plan: Plan) -> dict[Direction, int]:
    """The stream on which the target of each direction receives. No other task of the plan has it."""
    used = {Direction(task.body.source, task.stream, task.body.target) for task in plan.tasks if between_devices(task)}
    first = 1 + max((task.stream for task in plan.tasks), default=0)
    return {direction: first + number for number, direction in enumerate(sorted(used))}


def _half(task: Task, device: str, receiving: Mapping[Direction, int]) -> Task:
    """The part of a copy between two devices that `device` does."""
    body = task.body
    if body.aliases:
        raise SchedcastError(
            f"task {task.name} gives memory of {body.source} a second name on {body.target}, but processes share no memory; run the plan in"
            " one process, or plan it for several",
            Code.PLAN,
        )
    channel = receiving[Direction(body.source, task.stream, body.target)]
    message = Message(body.source, body.target, channel, tuple(o.strides for o in task.writes or task.mutates), body.add)
    if device == body.source:
        return replace(task, body=message, device=device, writes=(), mutates=())
    return replace(task, body=message, device=device, stream=channel, reads=())


def _tasks(plan: Plan, device: str, receiving: Mapping[Direction, int]) -> list[tuple[int, Task]]:
    """The device's tasks, each with its index in the plan."""
    numbered = []
    for number, task in enumerate(plan.tasks):
        if device not in _taking_part(task):
            continue
        if task.body.resource is Resource.COLLECTIVE:
            reads, writes, mutates = (task.body.share(device, operands) for operands in (task.reads, task.writes, task.mutates))
            task = replace(task, device=device, reads=reads, writes=writes, mutates=mutates)
        elif between_devices(task):
            task = _half(task, device, receiving)
        numbered.append((number, task))
    names = {task.name for _, task in numbered}
    return [(number, replace(task, after=tuple(name for name in task.after if name in names))) for number, task in numbered]


@dataclass(frozen=True)
class ProcessGroup:
    """Devices that take part in the collectives of one stream, or source and target of messages; each group needs its own communicator.

    Collectives of one communicator must be issued in the same order on every device. Those of one stream are, those of two streams need not
    be. The stream of messages is the one on which they are received.
    """

    devices: tuple[str, ...]
    stream: int


def groups_of(plan: Plan) -> tuple[ProcessGroup, ...]:
    """The process groups of a plan, in the order in which all processes must create them."""
    groups = {ProcessGroup(task.body.devices, task.stream) for task in plan.tasks if task.body.resource is Resource.COLLECTIVE} | {
        ProcessGroup((way.source, way.target), stream) for way, stream in directions(plan).items()
    }
    return tuple(sorted(groups, key=lambda group: (group.stream, group.devices)))
