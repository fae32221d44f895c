"""A back-propagation scan over equal dense Jacobians as tasks of a plan. Each worker has one batch of successive elements.

Each worker first sweeps up its batch to `level`. If every batch is then reduced to one element, the batches' products are scanned in turn,
as a tree over the workers; otherwise the gradient passes through the batches one after another. Then each worker sweeps down independently:
Theta(n/p + log p) steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.oplist import OpList, Step
from simulator.plan.bodies.scan_level import ScanLevel
from simulator.plan.task import Body, Operand, Task
from simulator.plan.views import contiguous, entry, part, transposed, with_dim, without_dim
from simulator.strategies.scan.algorithm import exclusive_scan, full_level


class ScanBuilder(Protocol):
    """Creates the values and tasks of a scan."""

    def value(self, name: str, shape: tuple[int, ...]) -> Operand:
        """A new contiguous value."""

    def task(self, name: str, body: Body, worker: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Task:
        """A new task on a worker's lane."""


@dataclass
class _Batch:
    """The elements of one worker, by level: their number, their matrices and, for the first worker, the gradient as first element."""

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
        """The matrices at even places of a level, as one operand; empty if the gradient is the only element there."""
        matrices, count = self.matrices[level], (self.sizes[level] + 1) // 2 - self.leftmost
        return [part(matrices, 0, count)] if count and matrices is not None else []

    def left_over(self) -> list[Operand]:
        """The last elements of levels with an odd number of elements, which have no partner, from the highest level to the lowest."""
        odd = [level for level in reversed(range(self.levels)) if self.sizes[level] % 2]
        return [entry(self.even(level)[0], (self.sizes[level] - 1) // 2 - self.leftmost) for level in odd]


def scan_tasks(
    gradient: Operand, jacobians: Sequence[Operand | None], level: int, builder: ScanBuilder
) -> tuple[list[Task], list[Operand]]:
    """Tasks of the scan, and each worker's prefixes in the order of `scan_order.prefix_order`.

    `gradient` [B, H] is the first element. `jacobians` are the others, one operand per worker in the order of `scan_order.order`:
    [m - 1, B, H, H] for the first worker (None if m = 1, which requires that there is no other worker) and [m, B, H, H] for the others.
    """
    planner = _Planner(builder, gradient.shape)
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
    """Makes the tasks of a scan. `vector`: shape [B, H] of a gradient; a matrix is [B, H, H]."""

    def __init__(self, builder: ScanBuilder, vector: tuple[int, ...]):
        self.tasks: list[Task] = []
        self._builder, self._vector, self._matrix = builder, vector, (*vector, vector[-1])

    def up(self, batch: _Batch, levels: int) -> None:
        """Multiply pairs of elements, level by level."""
        for level in range(levels):
            size = batch.sizes[-1]
            pairs = size // 2 - batch.leftmost
            shapes = [(pairs, *self._matrix)] * (pairs > 0) + [self._vector] * batch.leftmost
            written = self._level("up", batch, level, [batch.matrices[-1], *batch.gradients[-1:]], shapes)
            batch.sizes.append(size // 2)
            batch.matrices.append(written[0] if pairs else None)
            batch.gradients += written[-1:] if batch.leftmost else []

    def linear(self, batch: _Batch, before: Operand) -> Operand:
        """Every prefix of the highest level. `before`: the product of all elements before the batch."""
        if batch.leftmost and batch.sizes[-1] == 1:
            return with_dim(batch.gradients[-1], 0)
        reads = [batch.matrices[-1], batch.gradients[-1] if batch.leftmost else before]
        return self._level("linear", batch, batch.levels, reads, [self._prefixes(batch, batch.levels)])[0]

    def down(self, batch: _Batch, prefixes: Operand) -> Operand:
        """Every prefix of level 0. `prefixes`: those of the highest level."""
        for level in reversed(range(batch.levels)):
            reads = [*batch.even(level), prefixes, *batch.gradients[level : level + 1]]
            (prefixes,) = self._level("down", batch, level, reads, [self._prefixes(batch, level)])
        return prefixes

    def tree(self, batches: Sequence[_Batch]) -> list[Operand]:
        """Prefixes of the products of `batches`; each one enters the batch after it."""
        if not batches:
            return []
        tops = [batch.gradients[-1] if batch.leftmost else entry(batch.matrices[-1], 0) for batch in batches]
        totals = [(self.fold(top, batch), batch.worker) for top, batch in zip(tops, batches, strict=True)]
        return [operand for operand, _ in exclusive_scan(totals, full_level(len(totals)), self._product)]

    def fold(self, first: Operand, batch: _Batch) -> Operand:
        """The product of the whole batch, in one task: `first` times all elements without a partner.

        `first`: the product of all pairs, at the highest level.
        """
        left_over = batch.left_over()
        steps: list[Step] = []
        product = first
        for number, matrix in enumerate(left_over, start=1):
            name = f"total[{batch.worker}]" + (f"/{number}" if number < len(left_over) else "")
            body, reads, shape = _multiplication(matrix, product)
            result = self._builder.value(name, shape) if number == len(left_over) else Operand(name, shape, contiguous(shape), first.dtype)
            steps.append(Step(body, reads, (result,)))
            product = _shaped_like(result, first)
        if steps:
            body = OpList(tuple(steps), "products")
            self.tasks.append(self._builder.task(name, body, batch.worker, (first, *left_over), steps[-1].writes))
        return product

    def _product(self, later: tuple[Operand, int], earlier: tuple[Operand, int]) -> tuple[Operand, int]:
        """The product of two batches' products, each with its worker. The worker of the later one computes it."""
        body, reads, shape = _multiplication(later[0], earlier[0])
        name = f"product{len(self.tasks)}[{later[1]}]"
        result = self._builder.value(name, shape)
        self.tasks.append(self._builder.task(name, body, later[1], reads, (result,)))
        return _shaped_like(result, earlier[0]), later[1]

    def _prefixes(self, batch: _Batch, level: int) -> tuple[int, ...]:
        return (batch.sizes[level] + 1 - batch.leftmost, *self._vector)

    def _level(self, direction: str, batch: _Batch, level: int, reads: Sequence[Operand], shapes: Sequence[tuple[int, ...]]):
        name = f"{direction}{level}[{batch.worker}]"
        results = [self._builder.value(f"{name}{'.gradient' if len(shape) == 2 else ''}", shape) for shape in shapes]
        body = ScanLevel(direction, batch.sizes[level], batch.leftmost)
        self.tasks.append(self._builder.task(name, body, batch.worker, reads, results))
        return results


def _multiplication(matrix: Operand, other: Operand) -> tuple[OpCall, tuple[Operand, Operand], tuple[int, ...]]:
    """The op that multiplies two elements, its operands, and the shape of its result.

    A gradient is multiplied as a row by the transposed matrix, which gives [B, 1, H].
    """
    batch, width, _ = matrix.shape
    vector = len(other.shape) == 2
    body = OpCall("aten.bmm.default", '[{"$":0},{"$":1}]', flops=2.0 * batch * width * width * (1 if vector else width))
    if vector:
        return body, (with_dim(other, 1), transposed(matrix)), (batch, 1, width)
    return body, (matrix, other), matrix.shape


def _shaped_like(result: Operand, factor: Operand) -> Operand:
    """A result of `_multiplication` in the shape [B, H] of a gradient if `factor` is one."""
    return without_dim(result, 1) if len(factor.shape) == 2 else result
