"""A back-propagation scan over batches of equal dense Jacobians, one batch of successive elements a worker, as tasks of a plan.

Each worker sweeps its batch up to `level`. Where every batch is then one element, the batches' products are scanned in turn, as a tree over
the workers; else the gradient passes through them one after another. Then each worker sweeps down by itself: Theta(n/p + log p) steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.bodies.opcall import OpCall
from simulator.bodies.oplist import OpList, Step
from simulator.bodies.scan_level import ScanLevel
from simulator.plan.task import Body, Operand, Task
from simulator.plan.views import contiguous, entry, part, transposed, with_dim, without_dim
from simulator.scan.algorithm import exclusive_scan, full_level


class Place(Protocol):
    """Where the tasks of a scan and their values go."""

    def value(self, name: str, shape: tuple[int, ...]) -> Operand:
        """A new contiguous value."""

    def task(self, name: str, body: Body, worker: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Task:
        """A task on a worker's lane."""


@dataclass
class _Batch:
    """One worker's elements: by level, how many there are, their matrices and, of the first worker, the gradient that is the first."""

    worker: int
    sizes: list[int]
    matrices: list[Operand | None]
    gradients: list[Operand]

    @property
    def leftmost(self) -> bool:
        return self.worker == 0

    @property
    def levels(self) -> int:
        return len(self.sizes) - 1

    def even(self, level: int) -> list[Operand]:
        """The matrices of even place and, of an odd number, the last; none where the gradient is the only such element."""
        matrices, count = self.matrices[level], (self.sizes[level] + 1) // 2 - self.leftmost
        return [part(matrices, 0, count)] if count and matrices is not None else []

    def left_over(self) -> list[Operand]:
        """The last elements of levels of an odd number, which are in no pair, from the highest level to the lowest."""
        odd = [level for level in reversed(range(self.levels)) if self.sizes[level] % 2]
        return [entry(self.even(level)[0], (self.sizes[level] - 1) // 2 - self.leftmost) for level in odd]


def scan_tasks(gradient: Operand, jacobians: Sequence[Operand | None], level: int, place: Place) -> tuple[list[Task], list[Operand]]:
    """Tasks of the scan, and each worker's prefixes in the order of `scan.prefix_order`.

    `gradient` [B, H] is the first element; the others are `jacobians`, in the order of `scan.order`: [m - 1, B, H, H] of the first worker
    (None for m = 1, which has to be the only one) and [m, B, H, H] of the others.
    """
    planner = _Planner(place, gradient.shape)
    batches = [_Batch(w, [(m.shape[0] if m else 0) + (w == 0)], [m], [gradient] * (w == 0)) for w, m in enumerate(jacobians)]
    for batch in batches:
        planner.up(batch, min(level, full_level(batch.sizes[0])))
    reduced = all(batch.sizes[-1] == 1 for batch in batches)
    incoming = [gradient, *(planner.tree(batches[:-1]) if reduced else ())]
    prefixes = []
    for batch in batches:
        top = planner.linear(batch, incoming[batch.worker])
        if not reduced and batch is not batches[-1]:
            incoming.append(planner.fold(entry(top, top.shape[0] - 1), batch))
        prefixes.append(planner.down(batch, top))
    return planner.tasks, prefixes


class _Planner:
    def __init__(self, place: Place, vector: tuple[int, ...]):
        self.tasks: list[Task] = []
        self._place, self._vector, self._matrix = place, vector, (*vector, vector[-1])

    def up(self, batch: _Batch, levels: int) -> None:
        """Pair elements level by level."""
        for level in range(levels):
            size = batch.sizes[-1]
            pairs = size // 2 - batch.leftmost
            shapes = [(pairs, *self._matrix)] * (pairs > 0) + [self._vector] * batch.leftmost
            written = self._level("up", batch, level, [batch.matrices[-1], *batch.gradients[-1:]], shapes)
            batch.sizes.append(size // 2)
            batch.matrices.append(written[0] if pairs else None)
            batch.gradients += written[-1:] if batch.leftmost else []

    def linear(self, batch: _Batch, before: Operand) -> Operand:
        """Every prefix of the highest level, given what comes into the batch."""
        if batch.leftmost and batch.sizes[-1] == 1:
            return with_dim(batch.gradients[-1], 0)
        reads = [batch.matrices[-1], batch.gradients[-1] if batch.leftmost else before]
        return self._level("linear", batch, batch.levels, reads, [self._prefixes(batch, batch.levels)])[0]

    def down(self, batch: _Batch, prefixes: Operand) -> Operand:
        """Every prefix of level 0, given those of the highest."""
        for level in reversed(range(batch.levels)):
            reads = [*batch.even(level), prefixes, *batch.gradients[level : level + 1]]
            (prefixes,) = self._level("down", batch, level, reads, [self._prefixes(batch, level)])
        return prefixes

    def tree(self, batches: Sequence[_Batch]) -> list[Operand]:
        """What comes into every worker behind `batches`: the prefixes of the batches' products."""
        if not batches:
            return []
        tops = [batch.gradients[-1] if batch.leftmost else entry(batch.matrices[-1], 0) for batch in batches]
        totals = [(self.fold(top, batch), batch.worker) for top, batch in zip(tops, batches, strict=True)]
        return [operand for operand, _ in exclusive_scan(totals, full_level(len(totals)), self._product)]

    def fold(self, first: Operand, batch: _Batch) -> Operand:
        """The batch's product, given that of its pairs at the highest level: `first` times all that is in no pair, as one task."""
        left_over = batch.left_over()
        steps: list[Step] = []
        found = first
        for number, matrix in enumerate(left_over, start=1):
            name = f"total[{batch.worker}]" + (f"/{number}" if number < len(left_over) else "")
            body, reads, shape = _times(matrix, found)
            made = self._place.value(name, shape) if number == len(left_over) else Operand(name, shape, contiguous(shape), first.dtype)
            steps.append(Step(body, reads, (made,)))
            found = _like(made, first)
        if steps:
            body = OpList(tuple(steps), "products")
            self.tasks.append(self._place.task(name, body, batch.worker, (first, *left_over), steps[-1].writes))
        return found

    def _product(self, later: tuple[Operand, int], earlier: tuple[Operand, int]) -> tuple[Operand, int]:
        """Of two batches' products, each with the worker that has it; made by the later's."""
        body, reads, shape = _times(later[0], earlier[0])
        name = f"product{len(self.tasks)}[{later[1]}]"
        made = self._place.value(name, shape)
        self.tasks.append(self._place.task(name, body, later[1], reads, (made,)))
        return _like(made, earlier[0]), later[1]

    def _prefixes(self, batch: _Batch, level: int) -> tuple[int, ...]:
        return (batch.sizes[level] + 1 - batch.leftmost, *self._vector)

    def _level(self, direction: str, batch: _Batch, level: int, reads: Sequence[Operand], shapes: Sequence[tuple[int, ...]]):
        name = f"{direction}{level}[{batch.worker}]"
        made = [self._place.value(f"{name}{'.gradient' if len(shape) == 2 else ''}", shape) for shape in shapes]
        body = ScanLevel(direction, batch.sizes[level], batch.leftmost)
        self.tasks.append(self._place.task(name, body, batch.worker, reads, made))
        return made


def _times(matrix: Operand, other: Operand) -> tuple[OpCall, tuple[Operand, Operand], tuple[int, ...]]:
    """The op that multiplies, its operands and the shape it gives: of a gradient [B, 1, H], as a row times the transpose."""
    batch, width, _ = matrix.shape
    vector = len(other.shape) == 2
    body = OpCall("aten.bmm.default", '[{"$":0},{"$":1}]', flops=2.0 * batch * width * width * (1 if vector else width))
    if vector:
        return body, (with_dim(other, 1), transposed(matrix)), (batch, 1, width)
    return body, (matrix, other), matrix.shape


def _like(made: Operand, factor: Operand) -> Operand:
    """What `_times` made of a gradient, as a gradient."""
    return without_dim(made, 1) if len(factor.shape) == 2 else made
