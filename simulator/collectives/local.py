"""The part of a plan that one process runs: its device's tasks, and the collectives that the device takes part in."""

from dataclasses import dataclass, replace
from functools import cached_property

from simulator.bodies.collective import Collective
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import Resource, Segment, Task
from traces.errors import StepcastError


@dataclass(frozen=True)
class LocalPlan(Plan):
    """A device's part of the plan `whole`. `numbers`: of each task of `tasks`, its place in `whole.tasks`."""

    whole: Plan | None = None
    device: str = ""
    numbers: tuple[int, ...] = ()

    @cached_property
    def carried(self) -> frozenset[str]:
        """As in the whole plan."""
        return self.whole.carried & self.storages.keys()

    @property
    def empty(self) -> bool:
        """Whether the device has nothing to do."""
        return not self.tasks


def local_plan(plan: Plan, device: str) -> LocalPlan:
    """The part of `plan` that the process of `device` runs.

    A collective stands on the device's own lane of the same stream, with the device's operands alone, and orders what comes before and
    after it by those. Pure orders (`after`) between two devices' tasks are left to collectives. Raises StepcastError for a task that moves
    tensors between two devices.
    """
    segments = tuple(Segment(tuple(task for _, task in _tasks(segment, device)), segment.repeat) for segment in plan.segments)
    used = {o.value for segment in segments for task in segment.tasks for o in (*task.inputs, *task.writes)}
    values = {name: v for name, v in plan.values.items() if v.device == device or (v.device == HOST and name in used)}
    kept = {value.storage for value in values.values()}
    return LocalPlan(
        strategy=plan.strategy,
        segments=segments,
        values=values,
        storages={name: storage for name, storage in plan.storages.items() if name in kept},
        losses=tuple(name for name in plan.losses if name in values),
        gradients={name: operand for name, operand in plan.gradients.items() if operand.value in values},
        options=plan.options,
        semantics=plan.semantics,
        whole=plan,
        device=device,
        numbers=tuple(number for number, _ in _tasks(plan.segments[-1], device)),
    )


def _tasks(segment: Segment, device: str) -> list[tuple[int, Task]]:
    found = []
    for number, task in enumerate(segment.tasks):
        body = task.body
        if body.resource is Resource.COLLECTIVE:
            if device in body.devices:
                found.append((number, replace(task, device=device, mutates=body.of(device, task))))
            continue
        if body.ends is not None and HOST not in body.ends and body.ends[0] != body.ends[1]:
            raise StepcastError(
                f"task {task.name} copies from {body.ends[0]} to {body.ends[1]}: processes exchange tensors by collectives alone;"
                " run the strategy in one process with --devices, or use image-parallel"
            )
        if task.device == device:
            found.append((number, task))
    names = {task.name for _, task in found}
    return [(number, replace(task, after=tuple(name for name in task.after if name in names))) for number, task in found]


@dataclass(frozen=True)
class ProcessGroup:
    """Devices that take part in collectives of one stream: they need a communicator of their own.

    Collectives of one communicator must be issued in one order everywhere: those of a stream are, those of two streams are not.
    """

    devices: tuple[str, ...]
    stream: int


def groups_of(plan: Plan) -> tuple[ProcessGroup, ...]:
    """Those of a plan, in the order in which all processes must make them."""
    found = {
        ProcessGroup(task.body.devices, task.stream)
        for segment in plan.segments
        for task in segment.tasks
        if isinstance(task.body, Collective)
    }
    return tuple(sorted(found, key=lambda group: (group.stream, group.devices)))
