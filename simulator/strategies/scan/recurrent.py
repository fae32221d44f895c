"""The backward op of a recurrent layer as tasks of a scan: Jacobians of its steps, the scan, and the op's original results."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from simulator.model.ops.scan_order import elements_per_worker
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.bodies.scan import GruSteps, JacobianValues, RnnSteps, Rule, ScanLevel, Sweep
from simulator.plan.task import BACKWARD, FORWARD, Body, Operand, Task
from simulator.plan.tensors import contiguous, entry, part, transposed, with_dim, without_dim
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.scan.algorithm import exclusive_scan, full_level
from traces.errors import Code, SchedcastError

# A back-propagation scan over equal dense Jacobians as tasks of a plan. Each worker has one batch of successive elements.
# Each worker first sweeps up its batch to `level`. If every batch is then reduced to one element, the batches' products are scanned in
# turn, as a tree over the workers; otherwise the gradient passes through the batches one after another. Then each worker sweeps down
# independently: Theta(n/p + log p) steps.


class ScanBuilder(Protocol):
    """Creates the values and tasks of a scan."""

    def value(self, name: str, shape: tuple[int, ...]) -> Operand:
        """A new contiguous value."""

    def task(self, name: str, body: Body, worker: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Task:
        """A new task on a worker's lane."""


@dataclass
class _Batch:
    """The elements of one worker, by level: their number, their matrices as one operand or none, and the first worker's gradient."""

    worker: int
    sizes: list[int]
    matrices: list[list[Operand]]
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
        return [part(each, 0, count) for each in matrices] if count else []

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
    batches = [_Batch(w, [(m.shape[0] if m else 0) + (w == 0)], [[m] if m else []], [gradient] * (w == 0)) for w, m in enumerate(jacobians)]
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
            written = self._level("up", batch, level, [*batch.matrices[-1], *batch.gradients[-1:]], shapes)
            batch.sizes.append(size // 2)
            batch.matrices.append(written[:1] if pairs else [])
            batch.gradients += written[-1:] if batch.leftmost else []

    def linear(self, batch: _Batch, before: Operand) -> Operand:
        """Every prefix of the highest level. `before`: the product of all elements before the batch."""
        if batch.leftmost and batch.sizes[-1] == 1:
            return with_dim(batch.gradients[-1], 0)
        reads = [*batch.matrices[-1], batch.gradients[-1] if batch.leftmost else before]
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
        tops = [batch.gradients[-1] if batch.leftmost else entry(batch.matrices[-1][0], 0) for batch in batches]
        totals = [(self.fold(top, batch), batch.worker) for top, batch in zip(tops, batches, strict=True)]
        return [operand for operand, _ in exclusive_scan(totals, full_level(len(totals)), self._product)]

    def fold(self, first: Operand, batch: _Batch) -> Operand:
        """The product of the whole batch, in one task: `first` times all elements without a partner.

        `first`: the product of all pairs, at the highest level.
        """
        left_over = batch.left_over()
        steps: list[ListedOp] = []
        product = first
        for number, matrix in enumerate(left_over, start=1):
            name = f"total[{batch.worker}]" + (f"/{number}" if number < len(left_over) else "")
            body, reads, shape = _multiplication(matrix, product)
            result = self._builder.value(name, shape) if number == len(left_over) else Operand(name, shape, contiguous(shape), first.dtype)
            steps.append(ListedOp(body, reads, (result,)))
            product = _shaped_like(result, first)
        if steps:
            products = OpList(tuple(steps), "products")
            self.tasks.append(self._builder.task(name, products, batch.worker, (first, *left_over), steps[-1].writes))
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

    def _level(self, direction: Sweep, batch: _Batch, level: int, reads: Sequence[Operand], shapes: Sequence[tuple[int, ...]]):
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


class _Cell(NamedTuple):
    """How a kind of recurrent layer is scanned.

    `rule`: makes the Jacobian rule from the backward op's arguments and whether the worker is the leftmost.
    `weight`, `saved`: positions, among the backward op's arguments, of W_hh and of what each step saved in addition to its states.
    `of_outputs`: whether Jacobians are computed from the states after the steps or from those before them.
    `phase`: the phase of the Jacobians' tasks (Wang et al., 4.1 and 4.2).
    `gates`, `gates_launches`: the op that computes the gradients of the gates, and its number of launches.
    """

    rule: Callable[[list, bool], Rule]
    weight: int
    saved: tuple[int, ...]
    of_outputs: bool
    phase: str
    gates: str
    gates_launches: int


_CELLS = {
    "schedcast.rnn_backward.default": _Cell(
        rule=lambda args, leftmost: RnnSteps(args[-1], leftmost),
        weight=3,
        saved=(),
        of_outputs=True,
        phase=BACKWARD,
        gates="rnn_gates",
        gates_launches=5,
    ),
    "schedcast.gru_backward.default": _Cell(
        rule=lambda args, leftmost: GruSteps(leftmost),
        weight=6,
        saved=(3, 4, 5),
        of_outputs=False,
        phase=FORWARD,
        gates="gru_gates",
        gates_launches=15,
    ),
}
_WITHOUT_RULE = "schedcast.lstm_backward.default"
_TARGETS = frozenset({*_CELLS, _WITHOUT_RULE})


@dataclass(frozen=True)
class _Lanes:
    """Creates the values and tasks of a scan; a worker is a stream. Tasks are named after the backward op `like`."""

    build: PlanBuilder
    like: Task
    dtype: str

    def value(self, name: str, shape: tuple[int, ...]) -> Operand:
        return self.build.scratch(f"{self.like.name}/{name}", shape, self.dtype)

    def task(self, name: str, body: Body, worker: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Task:
        return replace(self.like, name=f"{self.like.name}/{name}", body=body, stream=worker, reads=tuple(reads), writes=tuple(writes))


class RecurrentScan:
    """The scans of the recurrent layers in the backward tasks of one microbatch. Other tasks stay unchanged.

    `not_scanned`: the layers below another one, which reads their outputs of all steps: they are back-propagated step by step.
    """

    def __init__(self, build: PlanBuilder, backward: Sequence[Task]):
        """Raises SchedcastError if a layer has no Jacobian rule, or if gradients enter all of them at other steps than the last."""
        self._backward = backward
        written_by = {operand.value: task for task in backward for operand in task.writes}
        self._layers: dict[str, _Layer] = {}
        refusals: list[EveryStepError] = []
        for task in filter(is_recurrent, backward):
            try:
                self._layers[task.name] = _Layer(build, task, written_by)
            except EveryStepError as error:
                refusals.append(error)
        if not self._layers:
            raise refusals[0]
        self.not_scanned = tuple(error.layer for error in refusals)

    @property
    def full_level(self) -> int:
        """Level of Blelloch's scan of the longest chain."""
        return max(full_level(layer.elements) for layer in self._layers.values())

    @property
    def jacobian_bytes(self) -> int:
        """Bytes of all Jacobians, without their products."""
        return sum(layer.jacobian_bytes for layer in self._layers.values())

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(tasks of the Jacobians, backward tasks with each layer's op replaced by its scan), in issue order.

        A linear scan has one worker; in other scans each worker has at least two elements.
        """
        scans = {name: layer.tasks(level, workers) for name, layer in self._layers.items()}
        left_out = self._left_out()
        backward = [
            new for task in self._backward if task.name not in left_out for new in (scans[task.name][1] if task.name in scans else (task,))
        ]
        return [task for jacobians, _ in scans.values() for task in jacobians], backward

    def _left_out(self) -> set[str]:
        """The tasks that spread the gradient of the last step among zeros, which only scanned layers read."""
        spread = {layer.spread.name: layer.spread.writes[0].value for layer in self._layers.values() if layer.spread is not None}
        read = {operand.value for task in self._backward if task.name not in self._layers for operand in task.reads}
        return {name for name, value in spread.items() if value not in read}


class EveryStepError(SchedcastError):
    """Gradients enter a recurrent layer at several steps, and a scan has one gradient, at its beginning. `layer`: its path."""

    def __init__(self, layer: str):
        super().__init__(
            f"bppsa: recurrent layer {layer!r} has gradients at several steps, since the loss or a layer above reads its outputs there; a"
            " scan begins with one gradient, by the last state or the last output (out[:, -1])",
            Code.MODEL,
        )
        self.layer = layer


def is_recurrent(task: Task) -> bool:
    """Whether a task is the backward op of a recurrent layer."""
    return getattr(task.body, "target", "") in _TARGETS


def _of_last_step(gradients: Operand, written_by: Mapping[str, Task]) -> Task | None:
    """The task that writes `gradients` [T, B, H] by all outputs, if all but those by the last one are zero; None if they may differ.

    It is the backward op of `select`, along the dimension that views have made the first one.
    """
    task = written_by.get(gradients.value)
    if task is None or getattr(task.body, "target", "") != "aten.select_backward.default":
        return None
    time = 0
    for view in reversed(gradients.views):
        if view.target != "aten.transpose.int":
            return None
        one, other = (dim % len(gradients.shape) for dim in json.loads(view.args))
        time = {one: other, other: one}.get(time, time)
    _, extents, dim, index = json.loads(task.body.args)
    last = dim % len(extents) == time and index % extents[dim] == extents[dim] - 1
    return task if last else None


class _Layer:
    """The chain of steps of one backward op.

    `spread`: the task that spreads the gradient of the last output among zeros for all other steps, as `out[:, -1]` does; None if the loss
    reads the last state itself.
    """

    def __init__(self, build: PlanBuilder, task: Task, written_by: Mapping[str, Task]):
        """`written_by`: the backward tasks by what they write."""
        layer = f"recurrent layer {task.layer!r}"
        if task.body.target == _WITHOUT_RULE:
            raise SchedcastError(
                f"bppsa: {layer} is an LSTM, whose state is a pair (h, c): its Jacobians, twice as wide, have no rule yet; expected"
                " nn.RNN or nn.GRU",
                Code.MODEL,
            )
        self._args = json.loads(task.body.args)
        self._task, self._cell = task, _CELLS[task.body.target]
        outputs, last = (None if self._args[place] is None else self._operand(place) for place in (0, 1))
        self.spread = None if outputs is None else _of_last_step(outputs, written_by)
        if outputs is not None and self.spread is None:
            raise EveryStepError(task.layer)
        self._states = self._operand(2)  # all states [T + 1, B, H]
        #: The gradients by the last state [B, H], whose sum begins the chain.
        of_output = None if self.spread is None else self.spread.reads[0]
        self._ends = [operand for operand in (last, of_output) if operand is not None]
        self._last = self._ends[0]
        self._lanes = _Lanes(build, task, self._last.dtype)
        initial = task.writes[-1].value
        self._to_initial = any(operand.value == initial for op in build.graph.ops for operand in op.inputs)
        #: Number of elements of the scan: the gradient by the last state, then one Jacobian per earlier state whose gradient is read.
        self.elements = self._states.shape[0] - 1 + self._to_initial

    def _operand(self, place: int) -> Operand:
        return self._task.reads[self._args[place]["$"]]

    @property
    def jacobian_bytes(self) -> int:
        return (self.elements - 1) * self._last.bytes * self._last.shape[-1]

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(tasks of the Jacobians, tasks of the scan and of its results)."""
        sizes = elements_per_worker(self.elements, min(workers, self.elements // 2) if level else 1)
        jacobians = list(self._jacobians(sizes))
        first, sums = self._last, []
        if len(self._ends) > 1:
            first = self._lanes.value("last", self._last.shape)
            sums = [self._lanes.task("last", OpCall("aten.add.Tensor", '[{"$":0},{"$":1}]'), 0, self._ends, (first,))]
        scan, prefixes = scan_tasks(first, [task.writes[0] if task else None for task in jacobians], level, self._lanes)
        return [task for task in jacobians if task], [*sums, *scan, *self._results(prefixes)]

    def _jacobians(self, sizes: Sequence[int]) -> Iterator[Task | None]:
        """The Jacobian task of each worker; None if the worker's only element is the gradient."""
        end = 0
        for worker, size in enumerate(sizes):
            end += size
            leftmost = worker == 0
            count = size - leftmost
            if not count:
                yield None
                continue
            first = self._states.shape[0] - end  # first step of the worker, counted from 0; the scan runs backwards
            states, *saved = (self._operand(place) for place in (2, *self._cell.saved))
            after = int(self._cell.of_outputs)
            reads = (part(states, first + after, first + count + after), *(part(tensor, first, first + count) for tensor in saved))
            name = f"jacobians[{worker}]"
            jacobians = self._lanes.value(name, (count, *self._last.shape, self._last.shape[-1]))
            body = JacobianValues(self._cell.rule(self._args, leftmost))
            task = self._lanes.task(name, body, worker, (*reads, self._operand(self._cell.weight)), (jacobians,))
            yield replace(task, phase=self._cell.phase)

    def _results(self, prefixes: list[Operand]) -> Iterator[Task]:
        """Tasks that write the results of the original backward op. The last prefix of a batch equals the first one of the next batch."""
        *gates, initial = self._task.writes
        last = prefixes[-1]
        if self._to_initial:
            reads = (entry(last, last.shape[0] - 1),)
            yield self._lanes.task("initial", OpCall("aten.clone.default", '[{"$":0}]'), 0, reads, (initial,))
        distinct = [*(part(batch, 0, batch.shape[0] - 1) for batch in prefixes[:-1]), last]
        saved = [self._operand(place) for place in (2, *self._cell.saved)]
        places = [{"$": place} for place in range(len(distinct) + len(saved))]
        args = [places[: len(distinct)], *places[len(distinct) :], *(arg for arg in self._args[-1:] if isinstance(arg, str))]
        outputs, launches = tuple(range(len(gates))), self._cell.gates_launches
        body = OpCall(f"schedcast.{self._cell.gates}.default", json.dumps(args, separators=(",", ":")), outputs=outputs, launches=launches)
        yield self._lanes.task("gates", body, 0, (*distinct, *saved), tuple(gates))
