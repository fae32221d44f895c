"""The editor of a plan: moves its tasks, and says whether another order of them still computes the same numbers.

The hazards of a plan that another order of its tasks breaks.

The issue order of a period is a sequential program. Another order computes the same numbers if and only if both programs run any two
executions that conflict in the same order. Executions of different periods stay in order, so only the hazards within a period count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from simulator.machine.machine import Machine
from simulator.plan.check import PlanError
from simulator.plan.dependencies import box, dependencies_of, overlap
from simulator.plan.editor.order import Entry, Order, OrderError
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task

#: What a task does with its reads, mutates and writes.
_VERBS = ("reads", "changes", "overwrites")


class Hazard(NamedTuple):
    """Two tasks of a plan whose order matters, by their index there: `before` comes first. `kind`: as in `dependencies.Edge`."""

    before: int
    after: int
    kind: str


def hazards_within(part: Plan, machine: Machine) -> tuple[Hazard, ...]:
    """The hazards between tasks of one period of a plan. Hazards that follow from others are omitted.

    If receives block, the order of messages between devices is not a hazard: it follows from the issue order.
    """
    dependencies = dependencies_of(part, machine)
    rows = enumerate(dependencies.edges(dependencies.steady))  # in a steady period every task runs
    edges = ((after, edge) for after, row in rows for edge in row)
    return tuple(Hazard(edge.index, after, edge.kind) for after, edge in edges if edge.delta == 0 and edge.kind != "message")


def hazard_words(part: Plan, hazard: Hazard) -> str:
    """The hazard as a sentence: conv1/update must come after conv1.dW: it reads the gradient dw1, which conv1.dW writes."""
    before, after = part.tasks[hazard.before], part.tasks[hazard.after]
    return f"{after.name} must come after {before.name}: {next(_conflicts(part, before, after), 'the strategy orders them so')}"


def _conflicts(part: Plan, before: Task, after: Task) -> Iterator[str]:
    """Yield what `after` does with memory that `before` uses, as long as one of the two changes it."""
    for verb, operand in _accesses(after):
        for earlier_verb, earlier in _accesses(before):
            if verb == earlier_verb == "reads" or not _meet(part, operand, earlier):
                continue
            value = part.values[operand.value]
            kind, done = value.kind.replace("-", " "), "writes" if earlier_verb == "overwrites" else earlier_verb
            shared = "" if earlier.value == value.name else f", in the memory of {earlier.value}"
            named = f"{kind} that" if before.name.startswith(value.name) else f"{kind} {value.name}{shared}, which"
            yield f"it {verb} the {named} {before.name} {done}"


def _accesses(task: Task) -> Iterator[tuple[str, Operand]]:
    for verb, operands in zip(_VERBS, (task.reads, task.mutates, task.writes), strict=True):
        yield from ((verb, operand) for operand in operands)


def _meet(part: Plan, one: Operand, other: Operand) -> bool:
    """Whether two operands share memory."""
    if part.storage_of(one) != part.storage_of(other):
        return False
    shape = part.values[one.value].shape
    return one.value != other.value or overlap(box(one, shape), box(other, shape))


class Move(NamedTuple):
    """A task, the lane to move it to, and the task of that lane to move it before (None: after all of them).

    `priority`: None for that of the lane's tasks, if they have one in common, and else the task's own.
    """

    task: str
    device: str
    stream: int
    before: str | None = None
    priority: int | None = None


class Fault(NamedTuple):
    """Why an order cannot be run, in one line, and the position in the order of the task at fault (None: no single one)."""

    position: int | None
    words: str


@dataclass(frozen=True)
class ScheduleEditor:
    """A plan whose tasks can be moved, on the machine that it is for."""

    plan: Plan
    machine: Machine

    @cached_property
    def own(self) -> Order:
        """The strategy's own order."""
        return Order.of(self.plan)

    @cached_property
    def _hazards(self) -> tuple[tuple[Hazard, ...], ...]:
        """The hazards within a period, by plan of the run."""
        return tuple(hazards_within(part, self.machine) for part in self.plan.sequence)

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """The position of each plan's first task in an order."""
        return tuple(accumulate((len(part.tasks) for part in self.plan.earlier), initial=0))

    def faults(self, order: Order) -> tuple[Fault, ...]:
        """Every reason why `order` does not compute the same numbers or cannot run on the machine; none if it does and can.

        Raises OrderError unless the tasks are those of the plan.
        """
        edited = order.applied(self.plan)
        faults = (*self._away(edited), *self._reversed(order), *self._mixed(order))
        if faults:
            return faults
        try:
            edited.validate(self.machine)
        except PlanError as error:
            return (Fault(None, str(error)),)
        return ()

    def _away(self, edited: Plan) -> Iterator[Fault]:
        """Yield tasks that were moved to a device that lacks their values."""
        own = [{task.name: task for task in part.tasks} for part in self.plan.sequence]
        for first, part, tasks in zip(self._firsts, edited.sequence, own, strict=True):
            for position, task in enumerate(part.tasks, start=first):
                if task.device != tasks[task.name].device and not task.body.crosses_devices:
                    yield from (Fault(position, words) for words in _values_elsewhere(part, task))

    def _mixed(self, order: Order) -> Iterator[Fault]:
        """Yield tasks of a GPU's stream whose priority is not that of the stream, which its first task has."""
        gpus = {device.name for device in self.machine.devices if device.kind == "gpu"}
        firsts: dict[tuple[str, int], Entry] = {}
        for position, entry in enumerate(order.entries):
            first = firsts.setdefault(entry.lane, entry)
            if entry.priority != first.priority and entry.device in gpus:
                stream = f"stream {entry.stream} of {entry.device}"
                yield Fault(position, f"{entry.task} has priority {entry.priority} on {stream}, where {first.task} has {first.priority};"
                            " a stream of a GPU has one priority: use another stream")  # fmt: skip

    def _reversed(self, order: Order) -> Iterator[Fault]:
        """Yield the hazards whose second task comes first."""
        for first, part, hazards in zip(self._firsts, self.plan.sequence, self._hazards, strict=True):
            position = {entry.task: first + place for place, entry in enumerate(order.entries[first : first + len(part.tasks)])}
            places = [position[task.name] for task in part.tasks]
            for hazard in hazards:
                if places[hazard.after] < places[hazard.before]:
                    yield Fault(places[hazard.after], hazard_words(part, hazard))

    def moved(self, order: Order, move: Move) -> Order:
        """`order` after a move of a task of the last plan. Raises OrderError for a task that this lacks.

        In its new lane, the task is placed where the move says. Among tasks of other lanes, it stays as close to its former position as the
        hazards allow; if they allow none, it comes right before the task that the move names.
        """
        first = self._firsts[-1]
        entries = list(order.entries[first:])
        old = _index(entries, move.task)
        entry = entries.pop(old)
        lane = [index for index, other in enumerate(entries) if other.lane == (move.device, move.stream)]
        before = len(entries) if move.before is None else _index(entries, move.before)
        if move.before is not None and before not in lane:
            raise OrderError(f"{move.before!r} is not on stream {move.stream} of {move.device}; name a task of the lane")
        lowest = max((index + 1 for index in lane if index < before), default=0)
        low, high = self._allowed(entries, move.task)
        low, high = max(low, lowest), min(high, before)
        place = min(max(old, low), high) if low <= high else (lowest if move.before is None else before)
        placed = Entry(move.task, move.device, move.stream, _priority(entry, [entries[index] for index in lane], move))
        return Order((*order.entries[:first], *entries[:place], placed, *entries[place:]))

    def _allowed(self, entries: Sequence[Entry], task: str) -> tuple[int, int]:
        """The first and the last index in `entries` at which `task`, which is not among them, breaks no hazard."""
        places = {entry.task: index for index, entry in enumerate(entries)}
        tasks = self.plan.tasks
        own = next(index for index, each in enumerate(tasks) if each.name == task)
        earlier = (places[tasks[hazard.before].name] + 1 for hazard in self._hazards[-1] if hazard.after == own)
        later = (places[tasks[hazard.after].name] for hazard in self._hazards[-1] if hazard.before == own)
        return max(earlier, default=0), min(later, default=len(entries))


def _values_elsewhere(part: Plan, task: Task) -> Iterator[str]:
    for operand in (*task.inputs, *task.writes):
        value = part.values[operand.value]
        if value.device != task.device:
            what = f"{task.name} cannot run on {task.device}: it needs the {value.kind} {value.name}, which is on {value.device}"
            yield f"{what}; move it to another stream of {value.device}, or a whole stage of a pipeline with the option placement"
            return


def _index(entries: Sequence[Entry], task: str) -> int:
    for index, entry in enumerate(entries):
        if entry.task == task:
            return index
    raise OrderError(f"{task!r} is not a task of the run's last plan; move another one")


def _priority(entry: Entry, lane: Sequence[Entry], move: Move) -> int:
    """The priority of a moved task: on a GPU a stream has one priority, so the task takes that of its new lane."""
    if move.priority is not None:
        return move.priority
    common = {other.priority for other in lane}
    return common.pop() if len(common) == 1 else entry.priority
