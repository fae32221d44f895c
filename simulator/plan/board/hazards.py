"""The hazards of a plan that another order of its tasks breaks.

The issue order of a period is a sequential program. Another order computes the same numbers if and only if both programs run any two
executions that conflict in the same order. Executions of different periods stay in order, so only the hazards within a period count.
"""

from collections.abc import Iterator
from typing import NamedTuple

from simulator.machine.machine import Machine
from simulator.plan.dependencies import box, dependencies_of, overlap
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task

#: What a task does with its reads, mutates and writes.
_VERBS = ("reads", "changes", "overwrites")


class Hazard(NamedTuple):
    """Two tasks of a segment whose order matters, by their index there: `before` comes first. `kind`: as in `dependencies.Edge`."""

    before: int
    after: int
    kind: str


def hazards_within(part: Plan, machine: Machine) -> tuple[Hazard, ...]:
    """The hazards between tasks of one period of a plan of one segment. Those that follow from others are left out.

    The order of messages between devices, where receives block, is no hazard: it follows from the issue order.
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
