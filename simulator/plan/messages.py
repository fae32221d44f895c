"""Messages between devices whose receives block (`Machine.receives`): the order in which they run, and orders that deadlock.

Two devices exchange messages in both directions on one stream of each device, which runs them in the order in which the device issues them.
A message occupies both streams: it starts when both devices have reached it. A device issues its sends where the plan has the transfers. If
it issues its receives there too, both devices have the order of the plan, and messages run in this order: a message may wait for one that
it does not need, but there is no deadlock. Receives that are issued late, right before the first task that reads the received tensor, may
come in a different order than on the other device. Then each device waits forever for a message that the other one issues only later.

Not modeled: the host's time to issue a receive, messages that are small enough for the library to buffer, and that PyTorch lets a message
wait for all ops that were issued before it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.machine.machine import BLOCKING, FREE, HOST, LATE, Machine
from simulator.plan.contents import PlanContents
from simulator.plan.task import Task

#: An execution of a task: (period, index in the period). Later ones are greater.
At = tuple[int, int]
#: Messages before and after the one at fault that a drawing shows.
_AROUND = 3


def between_devices(task: Task) -> bool:
    """Whether the task copies tensors from one device to another."""
    ends = task.body.ends
    return ends is not None and HOST not in ends and ends[0] != ends[1]


def blocking_pairs(tasks: Sequence[Task], receives: str) -> dict[int, tuple[str, str]]:
    """By index of each message that occupies streams of two devices, the two devices in order. Empty if receives do not block."""
    if receives == FREE:
        return {}
    return {index: _pair(task) for index, task in enumerate(tasks) if between_devices(task) and not task.body.aliases}


class Deadlock(NamedTuple):
    """Two devices that wait for each other.

    `position`: the message at which the first of them waits. `details`: their messages in the order in which they issue them, with arrows
    at those at which they wait.
    """

    position: int
    what: str
    details: str


def deadlocks(plan: PlanContents, tasks: Sequence[Task], machine: Machine) -> Iterator[Deadlock]:
    """The pairs of devices that wait for each other because they issue the messages between them in different orders."""
    if machine.receives != LATE:
        return
    pairs = blocking_pairs(tasks, machine.receives)
    issued = _issued(plan, tasks, pairs)
    for pair in dict.fromkeys(pairs.values()):
        orders = [issued[pair, device] for device in pair]
        position = next((number for number, (one, other) in enumerate(zip(*orders, strict=True)) if one != other), None)
        if position is not None:
            heads = [_verb(tasks, order[position], device) for device, order in zip(pair, orders, strict=True)]
            what = f"deadlocks: {pair[0]} waits to {heads[0]}, {pair[1]} to {heads[1]}; both issue a receive right before it is needed: let"
            rows = [_row(tasks, device, order, position) for device, order in zip(pair, orders, strict=True)]
            yield Deadlock(orders[0][position][1], f"{what} them issue it where the plan has the transfer ({BLOCKING})", "\n".join(rows))


def _pair(task: Task) -> tuple[str, str]:
    low, high = sorted(task.body.ends)
    return low, high


def _issued(plan: PlanContents, tasks: Sequence[Task], pairs: Mapping[int, tuple[str, str]]) -> dict[tuple[tuple[str, str], str], list[At]]:
    """By pair and device, the messages in the order in which the device issues them, with late receives."""
    late: dict[int, list[int]] = {}  # by index of the reader
    readers = _first_readers(plan, tasks, pairs)
    for index, reader in readers.items():
        if reader is not None:
            late.setdefault(reader, []).append(index)
    issued: dict[tuple[tuple[str, str], str], list[At]] = {}
    for period in range(2 + max((task.lag for task in tasks), default=0)):
        for index, task in enumerate(tasks):
            if period < task.lag:
                continue
            for message in late.get(index, ()):
                sent = period - task.lag + tasks[message].lag
                issued.setdefault((pairs[message], tasks[message].body.ends[1]), []).append((sent, message))
            if index in pairs:
                for device in task.body.ends if readers[index] is None else task.body.ends[:1]:
                    issued.setdefault((pairs[index], device), []).append((period, index))
    both = {pair: set(issued.get((pair, pair[0]), ())) & set(issued.get((pair, pair[1]), ())) for pair in pairs.values()}
    return {(pair, device): [at for at in order if at in both[pair]] for (pair, device), order in issued.items()}


def _first_readers(plan: PlanContents, tasks: Sequence[Task], messages: Iterable[int]) -> dict[int, int | None]:
    """By message, the first task of its iteration that reads the received tensors; None if no task does."""
    readers: dict[str, list[At]] = {}  # (lag, index), the order of an iteration
    for index, task in enumerate(tasks):
        for storage in {plan.storage_of(operand) for operand in task.inputs}:
            readers.setdefault(storage, []).append((task.lag, index))
    first: dict[int, int | None] = {}
    for message in messages:
        sent = tasks[message]
        arriving = {plan.storage_of(operand) for operand in (*sent.writes, *sent.mutates)}
        later = [at for storage in arriving for at in readers.get(storage, ()) if at > (sent.lag, message)]
        first[message] = min(later)[1] if later else None
    return first


def _verb(tasks: Sequence[Task], at: At, device: str) -> str:
    task = tasks[at[1]]
    return f"{'send' if device == task.body.ends[0] else 'receive'} {task.name!r}"


def _row(tasks: Sequence[Task], device: str, order: Sequence[At], position: int) -> str:
    """The messages around `position` in the order of a device, with an arrow."""
    first = max(0, position - _AROUND)
    shown = [_verb(tasks, at, device) for at in order[first : position + _AROUND + 1]]
    shown[position - first] += " <-- waits here"
    return f"{device}: {'... ' if first else ''}{', '.join(shown)}{' ...' if position + _AROUND + 1 < len(order) else ''}"
