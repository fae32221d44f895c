"""The share of a plan that one process runs: its device's tasks and the collectives in which the device takes part."""

from dataclasses import dataclass, replace
from functools import cached_property

from simulator.bodies.collective import Collective
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import Resource, Segment, Task
from traces.errors import StepcastError


@dataclass(frozen=True)
class LocalPlan(Plan):
    """A device's share of the plan `whole`. `numbers`: the index in `whole.tasks` of each task of `tasks`."""

    whole: Plan | None = None
    device: str = ""
    numbers: tuple[int, ...] = ()

    @cached_property
    def carried(self) -> frozenset[str]:
        """Carried storages of the whole plan that this device has."""
        return self.whole.carried & self.storages.keys()

    @property
    def empty(self) -> bool:
        """Whether the device has no tasks."""
        return not self.tasks


def local_plan(plan: Plan, device: str) -> LocalPlan:
    """The share of `plan` that the process of `device` runs.

    A collective runs on the device's own lane of the same stream, with only the device's operands, which order it relative to the tasks
    before and after it. `after` edges between tasks of two devices are dropped, since collectives order devices. Raises StepcastError for a
    task that moves tensors between two devices.
    """
    segments = tuple(Segment(tuple(task for _, task in _tasks(segment, device)), segment.repeat) for segment in plan.segments)
    used = {o.value for segment in segments for task in segment.tasks for o in (*task.inputs, *task.writes)}
    values = {name: v for name, v in plan.values.items() if v.device == device or (v.device == HOST and name in used)}
    local_storages = {value.storage for value in values.values()}
    return LocalPlan(
        strategy=plan.strategy,
        segments=segments,
        values=values,
        storages={name: storage for name, storage in plan.storages.items() if name in local_storages},
        losses=tuple(name for name in plan.losses if name in values),
        gradients={name: operand for name, operand in plan.gradients.items() if operand.value in values},
        options=plan.options,
        semantics=plan.semantics,
        whole=plan,
        device=device,
        numbers=tuple(number for number, _ in _tasks(plan.segments[-1], device)),
    )


def _tasks(segment: Segment, device: str) -> list[tuple[int, Task]]:
    """The device's tasks, each with its index in the segment."""
    numbered = []
    for number, task in enumerate(segment.tasks):
        body = task.body
        if body.resource is Resource.COLLECTIVE:
            if device in body.devices:
                numbered.append((number, replace(task, device=device, mutates=body.of(device, task))))
            continue
        if body.ends is not None and HOST not in body.ends and body.ends[0] != body.ends[1]:
            raise StepcastError(
                f"task {task.name} copies from {body.ends[0]} to {body.ends[1]}: processes can exchange tensors only by collectives;"
                " run the strategy in one process with --devices, or use image-parallel"
            )
        if task.device == device:
            numbered.append((number, task))
    names = {task.name for _, task in numbered}
    return [(number, replace(task, after=tuple(name for name in task.after if name in names))) for number, task in numbered]


@dataclass(frozen=True)
class ProcessGroup:
    """Devices that take part in the collectives of one stream; each group needs its own communicator.

    Collectives of one communicator must be issued in the same order on every device. Those of one stream are, those of two streams need not
    be.
    """

    devices: tuple[str, ...]
    stream: int


def groups_of(plan: Plan) -> tuple[ProcessGroup, ...]:
    """The process groups of a plan, in the order in which all processes must create them."""
    groups = {
        ProcessGroup(task.body.devices, task.stream)
        for segment in plan.segments
        for task in segment.tasks
        if isinstance(task.body, Collective)
    }
    return tuple(sorted(groups, key=lambda group: (group.stream, group.devices)))
