"""Refuse a plan that cannot run on a machine, and show the tasks around the fault."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from simulator.machine.machine import HOST, Machine
from simulator.plan.contents import PlanContents
from simulator.plan.messages import deadlocks
from simulator.plan.task import BUFFER, CARRIED_KINDS, INPUT, OPTIMIZER_STATE, PARAMETER, Operand, Task, Value
from simulator.plan.tensors import box_of, extent_bytes
from simulator.plan.text_lines import abridged_lines
from traces.errors import Code, SchedcastError

#: Kinds of values that have content before the first step.
INITIALIZED = frozenset({INPUT, PARAMETER, BUFFER, OPTIMIZER_STATE})


class PlanError(SchedcastError):
    """A plan that cannot run. `details` shows the tasks around the fault, a line each, with an arrow at the faulty one; "" without one."""

    def __init__(self, message: str, details: str = ""):
        """`message` is one line; `details` may be several."""
        super().__init__(message, Code.PLAN)
        self.details = details


class _Fault(NamedTuple):
    position: int
    what: str


def check(plan: PlanContents, machine: Machine) -> None:
    """Raise PlanError at the first fault that keeps `plan` from running on `machine`."""
    if not plan.tasks:
        raise PlanError(f"plan {plan.strategy!r} has no tasks; expected at least one")
    for what in _value_faults(plan, machine):
        raise PlanError(f"plan {plan.strategy!r}: {what}")
    filled = {value.storage for value in plan.values.values() if value.kind in INITIALIZED or value.source is not None}
    for fault in chain(_task_faults(plan, machine), _content_faults(plan, filled)):
        task = plan.tasks[fault.position]
        raise PlanError(f"plan {plan.strategy!r}: task {task.name!r} {fault.what}", excerpt(plan.tasks, fault.position))
    for deadlock in deadlocks(plan, plan.tasks, machine):
        name = plan.tasks[deadlock.position].name
        raise PlanError(f"plan {plan.strategy!r}: task {name!r} {deadlock.what}", deadlock.details)


def excerpt(tasks: Sequence[Task], fault: int, around: int = 4) -> str:
    """The lines of up to `around` tasks before and after the task at index `fault`, in issue order, with an arrow at that one.

    >>> from simulator.plan.bodies.host import Host
    >>> tasks = Task("forward", Host(1.0), "cuda:0", after=("backward",)), Task("backward", Host(2.0), "cuda:0")
    >>> print(excerpt(tasks, 0))
    # task    lane      phase    layer  body                 operands
    forward   cuda:0/0  forward  -      host duration_s=1.0  after backward  <-- here
    backward  cuda:0/0  forward  -      host duration_s=2.0
    """
    first = max(0, fault - around)
    names, *lines = abridged_lines(tasks[first : fault + around + 1])
    lines[fault - first] += "  <-- here"
    return "\n".join([names, *lines])


def _value_faults(plan: PlanContents, machine: Machine) -> Iterator[str]:
    devices = {device.name for device in machine.devices}
    places = devices | {HOST}
    for storage in plan.storages.values():
        if storage.device not in places:
            yield f"storage {storage.name!r} lies on {storage.device!r}, which {machine.name} lacks; it has {', '.join(sorted(devices))}"
    for value in plan.values.values():
        own = plan.storages.get(value.storage)
        if own is None:
            yield f"value {value.name!r} lies on storage {value.storage!r}, which the plan does not list"
            continue
        if own.device != value.device:
            yield f"value {value.name!r} is on {value.device} but its storage {own.name!r} on {own.device}"
        if extent_bytes(value) > own.bytes:
            yield f"value {value.name!r} reaches {extent_bytes(value)} bytes into storage {own.name!r} of {own.bytes} bytes"
        if value.kind in CARRIED_KINDS and value.source is not None:
            yield from _source_faults(value, value.source)
    yield from (f"the loss {name!r} is not among the plan's values" for name in plan.losses if name not in plan.values)
    for parameter, operand in plan.gradients.items():
        if operand.value not in plan.values:
            yield f"the gradient of {parameter!r} is {operand.value!r}, which is not among the plan's values"
        elif operand.shape != plan.gradient_sources[parameter].shape:
            yield f"the gradient of {parameter!r} has shape {operand.shape}; expected {plan.gradient_sources[parameter].shape}"


def _source_faults(value: Value, source: Operand) -> Iterator[str]:
    """Why a carried value cannot hold the piece of the job's tensor that is its source."""
    if source.shape != value.shape:
        yield f"value {value.name!r} has shape {value.shape}, but its source in {source.value!r} has {source.shape}"
    try:
        box_of(source)
    except ValueError as error:
        yield f"value {value.name!r} is no piece of {source.value!r}: {error}"


def _task_faults(plan: PlanContents, machine: Machine) -> Iterator[_Fault]:
    devices = {device.name: device for device in machine.devices}
    positions: dict[str, int] = {}
    for index, task in enumerate(plan.tasks):
        if task.name in positions:
            yield _Fault(index, f"has the name of task {positions[task.name]} of the same period; names must differ")
        positions.setdefault(task.name, index)
    for index, task in enumerate(plan.tasks):
        device = devices.get(task.device)
        if device is None:
            yield _Fault(index, f"runs on {task.device!r}, which {machine.name} lacks; it has {', '.join(devices)}")
            continue
        lowest = 1 - device.priority_levels
        if not lowest <= task.priority <= 0:
            allowed = f"{lowest}..0, smaller is more urgent" if lowest else "only 0"
            yield _Fault(index, f"has priority {task.priority}; {task.device} has {device.priority_levels} levels ({allowed})")
        if task.lag < 0:
            yield _Fault(index, f"has lag {task.lag}; it cannot work on an iteration of the future")
        for name in task.after:
            if name not in positions:
                yield _Fault(index, f"comes after {name!r}, which its period lacks")
            elif positions[name] >= index:
                yield _Fault(index, f"comes after {name!r}, which is issued later; swap the two in issue order")
        for what in _operand_faults(plan, task):
            yield _Fault(index, what)


def _operand_faults(plan: PlanContents, task: Task) -> Iterator[str]:
    for verb, operands in (("reads", task.reads), ("writes", task.writes), ("mutates", task.mutates)):
        for operand in operands:
            value = plan.values.get(operand.value)
            if value is None:
                yield f"{verb} {operand.value!r}, which is not among the plan's values"
            elif value.device != task.device and not task.body.crosses_devices:
                yield f"on {task.device} {verb} {value.name!r} on {value.device}; copy the value first"
    yield from task.body.faults(task, plan.values)


def _content_faults(plan: PlanContents, filled: set[str]) -> Iterator[_Fault]:
    """Reads of storages without content. An iteration runs its tasks in order of (lag, issue)."""
    order = sorted(range(len(plan.tasks)), key=lambda i: plan.tasks[i].lag)
    written_by_some_task = {plan.storage_of(o) for task in plan.tasks for o in task.writes}
    written = set(filled)
    for index in order:
        task = plan.tasks[index]
        for operand in task.inputs:
            storage = plan.storage_of(operand)
            if storage in written:
                continue
            if storage in written_by_some_task:
                what = f"reads {operand.value!r} before its iteration writes it, and nothing fills its storage before the first step"
            else:
                what = f"reads {operand.value!r}, which no task writes and nothing feeds"
            yield _Fault(index, what)
        written |= {plan.storage_of(o) for o in task.writes}
