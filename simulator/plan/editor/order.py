"""The order of a plan's tasks as data: which task is issued when, on which lane and with which priority."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.errors import SchedcastError, nearest


class Entry(NamedTuple):
    """One task in the order: its name, its lane (device and stream) and its priority (smaller is more urgent)."""

    task: str
    device: str
    stream: int
    priority: int

    @property
    def lane(self) -> tuple[str, int]:
        """The serial queue that the task runs in: (device, stream)."""
        return (self.device, self.stream)


class OrderError(SchedcastError):
    """An order that is not one of the plan's tasks. `position`: of the entry at fault, from 0; None if it is no single one."""

    def __init__(self, message: str, position: int | None = None):
        """`message` is one line."""
        super().__init__(message)
        self.position = position


@dataclass(frozen=True)
class Order:
    """The entries of a plan in issue order; of a run that follows several, those of one plan after those of another."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Order":
        """The order that a plan has. Raises SchedcastError if the plan is only predicted."""
        plan.require_whole()
        return cls(tuple(Entry(task.name, task.device, task.stream, task.priority) for task in plan.every_task))

    def applied(self, plan: Plan) -> Plan:
        """`plan` with its tasks in this order. Raises OrderError unless these are the tasks of the plan."""
        if len(self.entries) != len(plan.every_task):
            raise OrderError(_different(self.entries, plan))
        entries = enumerate(self.entries)
        return plan.each(lambda own: replace(own, tasks=_ordered(own, list(islice(entries, len(own.tasks))))))


def _ordered(plan: Plan, entries: Sequence[tuple[int, Entry]]) -> tuple[Task, ...]:
    """The tasks of a plan as `entries` say, which have their positions in the whole order."""
    own: Mapping[str, Task] = {task.name: task for task in plan.tasks}
    seen: dict[str, int] = {}
    tasks = []
    for position, entry in entries:
        task = own.get(entry.task)
        if task is None:
            raise OrderError(_unknown(plan, entry.task, own), position)
        if entry.task in seen:
            raise OrderError(f"{entry.task!r} is there twice; list each task once", position)
        seen[entry.task] = position
        changed = (task.device, task.stream, task.priority) != entry[1:]
        tasks.append(replace(task, device=entry.device, stream=entry.stream, priority=entry.priority) if changed else task)
    return tuple(tasks)


def _unknown(plan: Plan, name: str, own: Mapping[str, Task]) -> str:
    near = nearest(name, list(own))
    hint = f" (did you mean {near!r}?)" if near is not None else ""
    return f"{name!r} is not a task of {plan.strategy}'s plan{hint}; an order has the tasks of the plan that it is made for"


def _different(entries: Sequence[Entry], plan: Plan) -> str:
    """Why the number of entries is not that of the plan's tasks."""
    wanted, given = Counter(task.name for task in plan.every_task), Counter(entry.task for entry in entries)
    missing, added = [*(wanted - given)], [*(given - wanted)]
    lacks = f"it lacks {_listed(missing)}" if missing else f"{_listed(added)} should not be there, or not so often"
    return f"{len(entries)} tasks, but {plan.strategy}'s plan has {len(plan.every_task)}: {lacks}; list each task of the plan once"


def _listed(names: Sequence[str]) -> str:
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
