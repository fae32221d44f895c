"""The hazards of a plan's sequential program: read-after-write, write-after-read and write-after-write per storage.

Two operands of one storage conflict only if their boxes overlap; a box is the slice/select prefix of an operand's view steps. This is the
one place where dependencies are derived; simulator, validator and executors all use it.
"""

import json
from collections import defaultdict
from dataclasses import dataclass

from .plan import Operand, Plan, Task, program

Box = tuple[tuple[int, int], ...]


def box(operand: Operand, shape: tuple[int, ...]) -> Box | None:
    """Half-open range per dimension of the value that the operand's slice/select prefix keeps; None means all of it."""
    ranges = [(0, extent) for extent in shape]
    dims = list(range(len(shape)))  # which dimension of the value each remaining dimension is
    narrowed = False
    for view in operand.views:
        args = json.loads(view.args)
        if view.target == "aten.slice.Tensor":
            dim, start, stop, step = (*args, *[None, None, None, None][len(args) :])
            dim = dims[dim or 0]
            low, high = ranges[dim]
            extent = high - low
            start, stop = _clamp(start, 0, extent), _clamp(stop, extent, extent)
            ranges[dim] = (low + start, low + max(start, stop))
            if step not in (None, 1):
                return tuple(ranges)  # a strided slice keeps its hull, and ends the prefix
        elif view.target == "aten.select.int":
            position = args[0] % len(dims)
            low, high = ranges[dims[position]]
            index = args[1] + (high - low if args[1] < 0 else 0)
            ranges[dims[position]] = (low + index, low + index + 1)
            dims.pop(position)
        else:
            break
        narrowed = True
    return tuple(ranges) if narrowed else None


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
    """Task `index` of the period `delta` periods earlier must end first. `kind`: raw, war, waw or after."""

    index: int
    delta: int
    kind: str


class _Access:
    """Who last wrote, and who has read since, parts of one storage instance."""

    __slots__ = ("readers", "writers")

    def __init__(self):
        self.writers: list[tuple[tuple[int, int], str, Box | None]] = []
        self.readers: list[tuple[tuple[int, int], str, Box | None]] = []


def _conflicts(entries, value: str, part: Box | None):
    return [at for at, other, other_part in entries if other != value or overlap(part, other_part)]


def _covers(outer: Box | None, inner: Box | None) -> bool:
    if outer is None:
        return True
    return inner is not None and all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


class Dependencies:
    """Edges of every task: exact in the prologue, periodic afterwards.

    `edges(period)` lists, per task index of that period, the edges to earlier tasks. From period `steady` on the lists repeat (all lags
    have begun and every access a task can conflict with lies in full periods).
    """

    def __init__(self, plan: Plan, tasks: tuple[Task, ...] | None = None):
        self.tasks = plan.tasks if tasks is None else tasks
        self.largest_lag = max((task.lag for task in self.tasks), default=0)
        self.steady = self.largest_lag + 1
        self._periods = _derive(plan, self.tasks, self.steady + 1)

    def edges(self, period: int) -> list[tuple[Edge, ...]]:
        """Edges by task index; skipped tasks have none."""
        return self._periods[min(period, self.steady)]


def _derive(plan: Plan, tasks: tuple[Task, ...], periods: int) -> list[list[tuple[Edge, ...]]]:
    accesses = [_accesses(plan, task) for task in tasks]
    positions = {task.name: index for index, task in enumerate(tasks)}
    carried = plan.carried
    state: dict[tuple[str, int], _Access] = defaultdict(_Access)
    result: list[list[tuple[Edge, ...]]] = [[()] * len(tasks) for _ in range(periods)]
    for period, index, task in program(tasks, iterations=periods, periods=periods):
        found: dict[tuple[int, int], str] = {}
        here = (period, index)
        for storage, value, part, reads, writes in accesses[index]:
            access = state[storage, -1 if storage in carried else period - task.lag]
            for at in _conflicts(access.writers, value, part):
                found.setdefault(at, "raw" if reads else "waw")
            if writes:
                for at in _conflicts(access.readers, value, part):
                    found.setdefault(at, "war")
        for storage, value, part, reads, writes in accesses[index]:
            access = state[storage, -1 if storage in carried else period - task.lag]
            if writes:  # what this write covers can conflict with nothing later: the write itself does
                access.writers = [w for w in access.writers if w[1] != value or not _covers(part, w[2])]
                access.readers = [r for r in access.readers if r[1] != value or not _covers(part, r[2])]
                access.writers.append((here, value, part))
            elif reads:
                access.readers.append((here, value, part))
        for name in task.after:
            found.setdefault((period, positions[name]), "after")
        found.pop(here, None)
        result[period][index] = tuple(Edge(i, period - p, kind) for (p, i), kind in sorted(found.items()))
    return result


def _accesses(plan: Plan, task: Task) -> list[tuple[str, str, Box | None, bool, bool]]:
    """(storage, value, box, reads, writes) of each operand."""
    found = []
    for operands, reads, writes in ((task.reads, True, False), (task.mutates, True, True), (task.writes, False, True)):
        for operand in operands:
            value = plan.values[operand.value]
            found.append((value.storage, operand.value, box(operand, value.shape), reads, writes))
    return found
