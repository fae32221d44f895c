"""The hazards of a plan's sequential program: read-after-write, write-after-read and write-after-write per storage.

Two operands of one storage conflict only if their boxes overlap. A box is the part of a value that the slices and selects at the start of
an operand's view steps select. Dependencies are derived only here; simulator, validator and executors all use this module.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from math import inf

from simulator.machine.machine import FREE, Machine
from simulator.plan.messages import blocking_pairs
from simulator.plan.plan import Plan, program
from simulator.plan.task import Operand, Task
from simulator.plan.tensors import Box, covers
from traces.process import gc_paused

#: (period, index in the period) of an execution.
_At = tuple[int, int]


def box(operand: Operand, shape: tuple[int, ...]) -> Box | None:
    """Half-open range per dimension of the value that the slices and selects at the start of the view steps select; None for all of it.

    >>> from simulator.plan.task import ViewStep
    >>> first_rows = Operand("x", (2, 10), (10, 1), "float32", (ViewStep("aten.slice.Tensor", "[0, 0, 2]"),))
    >>> box(first_rows, shape=(8, 10))
    ((0, 2), (0, 10))
    """
    ranges = [(0, extent) for extent in shape]
    dims = list(range(len(shape)))  # which dimension of the value each remaining dimension is
    for view in operand.views:
        args = json.loads(view.args)
        if view.target == "aten.slice.Tensor":
            dim, start, stop, step = [*args, None, None, None, None][:4]
            dim = dims[dim or 0]
            low, high = ranges[dim]
            extent = high - low
            start, stop = _clamp(start, 0, extent), _clamp(stop, extent, extent)
            ranges[dim] = (low + start, low + max(start, stop))
            if step not in (None, 1):
                break  # use the hull of a strided slice, and ignore what follows
        elif view.target == "aten.select.int":
            position = args[0] % len(dims)
            low, high = ranges[dims[position]]
            index = args[1] + (high - low if args[1] < 0 else 0)
            ranges[dims[position]] = (low + index, low + index + 1)
            dims.pop(position)
        elif view.target == "aten.as_strided.default":
            return None  # addresses the whole storage, whatever the steps before kept
        else:
            break
    return tuple(ranges) if any(r != (0, extent) for r, extent in zip(ranges, shape, strict=True)) else None


def _clamp(index: int | None, default: int, extent: int) -> int:
    if index is None:
        return default
    return max(0, min(extent, index + extent if index < 0 else index))


def overlap(a: Box | None, b: Box | None) -> bool:
    """Whether two boxes of one value share an element."""
    if a is None or b is None or len(a) != len(b):
        return True
    return all(low < other_high and other_low < high for (low, high), (other_low, other_high) in zip(a, b, strict=True))


@dataclass(frozen=True, slots=True)
class Edge:
    """Task `index` of the period `delta` periods earlier must end first. `kind`: raw, war, waw, after or message."""

    index: int
    delta: int
    kind: str


class Dependencies:
    """Edges of every task: exact in the prologue and in the drain, periodic in between.

    `edges` and `waits` return the same list object for all periods of one kind, so that callers can key their own tables on it.

    >>> from simulator.plan.bodies.host import Host
    >>> from simulator.plan.task import Storage, Value
    >>> w = Value("w", (1,), (1,), "float32", "cpu:0", "parameter", storage="w")
    >>> forward = Task("forward", Host(1.0), "cpu:0", reads=(w.operand(),))
    >>> update = Task("update", Host(1.0), "cpu:0", mutates=(w.operand(),))
    >>> plan = Plan("tiny", (forward, update), {"w": w}, {"w": Storage("w", 4, "cpu:0")})
    >>> of_forward, of_update = Dependencies(plan).edges(period=1)
    >>> of_forward  # the weights that the update of the period before wrote
    (Edge(index=1, delta=1, kind='raw'),)
    >>> of_update  # these too, and it must not overwrite them before the forward has read them
    (Edge(index=1, delta=1, kind='raw'), Edge(index=0, delta=0, kind='war'))
    """

    def __init__(self, plan: Plan, tasks: tuple[Task, ...] | None = None, receives: str = FREE):
        """Derive the edges of `tasks` (default: the plan's).

        `receives`: as in `Machine`. If receives block, a message between two devices also comes after the one before it (`plan.messages`).
        """
        self.plan = plan
        self.tasks = plan.tasks if tasks is None else tasks
        self._pairs = blocking_pairs(self.tasks, receives)
        self.largest_lag = plan.largest_lag if tasks is None else max((task.lag for task in tasks), default=0)
        #: From this period on the lists repeat: every task has run in the period before.
        self.steady = self.largest_lag + 1
        self._derived: dict[int, list[list[tuple[Edge, ...]]]] = {}
        self._waits: dict[int, list[tuple[Edge, ...]]] = {}
        self._rows(self.steady + 1)

    def edges(self, period: int, iterations: int | None = None) -> list[tuple[Edge, ...]]:
        """Edges by task index of `period`, in order of (period, index). Skipped tasks have none.

        `iterations`: how many iterations the program has, after which it drains; None if it does not end.
        """
        full = self.steady + 1
        if iterations is None or period < iterations >= full:
            return self._rows(full)[min(period, self.steady)]
        if iterations >= full:
            return self._rows(full)[full + period - iterations]
        return self._rows(iterations)[period]

    def existing(self, period: int, iterations: int | None = None, among: Sequence[int] | None = None) -> Sequence[int]:
        """The tasks of `among` (default: all, in issue order) that run in `period`: tasks run only in their iterations.

        They are indices. `iterations` as in `edges`.
        """
        among = range(len(self.tasks)) if among is None else among
        end = inf if iterations is None else iterations
        if self.largest_lag <= period < end:
            return among
        return [index for index in among if 0 <= period - self.tasks[index].lag < end]

    def waits(self, period: int, iterations: int | None = None) -> list[tuple[Edge, ...]]:
        """The edges that need an event: those from other lanes. Of each lane only the latest edge counts, because lanes are serial."""
        row = self.edges(period, iterations)
        waits = self._waits.get(id(row))
        if waits is None:
            number = {lane: at for at, lane in enumerate(dict.fromkeys(task.lane for task in self.tasks))}
            lanes = [number[task.lane] for task in self.tasks]
            waits = self._waits[id(row)] = [
                _latest_of_other_lanes(edges, lane, lanes) if edges else () for lane, edges in zip(lanes, row, strict=True)
            ]
        return waits

    @cached_property
    def recorded(self) -> frozenset[int]:
        """The tasks whose end another lane waits for."""
        return frozenset(edge.index for edges in self.waits(self.steady) for edge in edges)

    def _rows(self, iterations: int) -> list[list[tuple[Edge, ...]]]:
        if iterations not in self._derived:
            with gc_paused():
                self._derived[iterations] = _derive(self.plan, self.tasks, iterations, self.largest_lag, self._pairs)
        return self._derived[iterations]


def dependencies_of(plan: Plan, machine: Machine) -> Dependencies:
    """Return the dependencies of `plan` on `machine`, which are derived once for all machines that receive messages in one way."""
    return plan.derived(Dependencies, None, machine.receives)


def _latest_of_other_lanes(edges: tuple[Edge, ...], lane: int, lanes: list[int]) -> tuple[Edge, ...]:
    latest = {lanes[edge.index]: edge for edge in edges}  # edges are in order of (period, index): the last one wins
    latest.pop(lane, None)
    return tuple(latest.values())


class _Access:
    """The last writers of one storage instance, and its readers since: (execution, value, box) by (task index, operand).

    A lane is serial, so a later execution of a task replaces the earlier one.
    """

    __slots__ = ("readers", "writers")

    def __init__(self):
        self.writers: dict[tuple[int, int], tuple[_At, str, Box | None]] = {}
        self.readers: dict[tuple[int, int], tuple[_At, str, Box | None]] = {}


def _derive(
    plan: Plan, tasks: tuple[Task, ...], iterations: int, largest_lag: int, pairs: Mapping[int, tuple[str, str]]
) -> list[list[tuple[Edge, ...]]]:
    carried = plan.carried
    accesses = [_accesses(plan, task, carried) for task in tasks]
    positions = {task.name: index for index, task in enumerate(tasks)}
    state: dict[tuple[str, int], _Access] = defaultdict(_Access)
    last_message: dict[tuple[str, str], _At] = {}
    made: dict[tuple[int, int, str], Edge] = {}  # edges of later periods are those of earlier ones
    result: list[list[tuple[Edge, ...]]] = [[()] * len(tasks) for _ in range(iterations + largest_lag)]
    for period, index, task in program(tasks, iterations):
        kinds: dict[_At, str] = {}
        execution = (period, index)
        iteration = period - task.lag
        touched = [state[access[0], -1 if access[5] else iteration] for access in accesses[index]]
        for access, (_, value, region, reads, writes, _) in zip(touched, accesses[index], strict=True):
            kind = "raw" if reads else "waw"
            for at, other, other_region in access.writers.values():
                if at not in kinds and (region is None or other != value or overlap(region, other_region)):
                    kinds[at] = kind
            if writes:
                for at, other, other_region in access.readers.values():
                    if at not in kinds and (region is None or other != value or overlap(region, other_region)):
                        kinds[at] = "war"
        for operand, (access, (_, value, region, reads, writes, _)) in enumerate(zip(touched, accesses[index], strict=True)):
            if writes:  # forget the accesses that this write covers: whatever conflicts with them later also conflicts with the write
                access.writers = _uncovered(access.writers, value, region)
                if access.readers:
                    access.readers = _uncovered(access.readers, value, region)
                access.writers[index, operand] = (execution, value, region)
            elif reads:
                access.readers[index, operand] = (execution, value, region)
        for name in task.after:
            earlier = positions[name]
            if 0 <= period - tasks[earlier].lag < iterations:  # a skipped task orders nothing
                kinds.setdefault((period, earlier), "after")
        if index in pairs:
            if pairs[index] in last_message:
                kinds.setdefault(last_message[pairs[index]], "message")
            last_message[pairs[index]] = execution
        kinds.pop(execution, None)
        edges = []
        for (before, i), kind in sorted(kinds.items()):
            key = (i, period - before, kind)
            edge = made.get(key)
            if edge is None:
                edge = made[key] = Edge(*key)
            edges.append(edge)
        result[period][index] = tuple(edges)
    return result


def _uncovered(entries: dict, value: str, region: Box | None) -> dict:
    """The entries that a write of `region` of `value` does not cover. A write of a whole value counts as one of the whole storage."""
    if region is None or not entries:
        return {}
    return {key: entry for key, entry in entries.items() if entry[1] != value or entry[2] is None or not covers(region, entry[2])}


def _accesses(plan: Plan, task: Task, carried: Set[str]) -> list[tuple[str, str, Box | None, bool, bool, bool]]:
    """(storage, value, box, reads, writes, whether the storage is carried) of each operand. Two values of one storage always conflict."""
    accesses = []
    for operands, reads, writes in ((task.reads, True, False), (task.mutates, True, True), (task.writes, False, True)):
        for operand in operands:
            value = plan.values[operand.value]
            region = box(operand, value.shape) if operand.views else None
            accesses.append((value.storage, operand.value, region, reads, writes, value.storage in carried))
    return accesses
