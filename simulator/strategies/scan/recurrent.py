"""The backward op of a recurrent layer as tasks of a scan: Jacobians of its steps, the scan, and the op's original results."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.model.ops.recurrent.scan_order import elements_per_worker
from simulator.plan.bodies.jacobian_rules import GruSteps, RnnSteps, Rule
from simulator.plan.bodies.jacobian_values import JacobianValues
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import BACKWARD, FORWARD, Body, Operand, Task
from simulator.plan.views import entry, part
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.scan.algorithm import full_level
from simulator.strategies.scan.batches import scan_tasks
from traces.errors import Code, SchedcastError


class _Cell(NamedTuple):
    """How a kind of recurrent layer is scanned.

    `rule`: makes the Jacobian rule from the backward op's arguments and whether the worker is the leftmost.
    `weight`, `saved`: positions, among the backward op's arguments, of W_hh and of what each step saved besides its states.
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
    "schedcast.rnn_backward.default": _Cell(lambda args, leftmost: RnnSteps(args[-1], leftmost), 3, (), True, BACKWARD, "rnn_gates", 5),
    "schedcast.gru_backward.default": _Cell(lambda args, leftmost: GruSteps(leftmost), 6, (3, 4, 5), False, FORWARD, "gru_gates", 15),
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
    """The scans of all recurrent layers in the backward tasks of one micro-batch. Other tasks stay unchanged."""

    def __init__(self, build: PlanBuilder, backward: Sequence[Task]):
        """Raises SchedcastError if a layer has no Jacobian rule, or if the loss reads a state other than its last."""
        self._backward = backward
        self._layers = {task.name: _Layer(build, task) for task in backward if is_recurrent(task)}

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
        backward = [new for task in self._backward for new in (scans[task.name][1] if task.name in scans else (task,))]
        return [task for jacobians, _ in scans.values() for task in jacobians], backward


def is_recurrent(task: Task) -> bool:
    """Whether a task is the backward op of a recurrent layer."""
    return getattr(task.body, "target", "") in _TARGETS


class _Layer:
    """The chain of steps of one backward op."""

    def __init__(self, build: PlanBuilder, task: Task):
        layer = f"recurrent layer {task.layer!r}"
        if task.body.target == _WITHOUT_RULE:
            raise SchedcastError(f"bppsa: {layer} is an LSTM, which has no Jacobian rule; expected nn.RNN or nn.GRU", Code.MODEL)
        self._args = json.loads(task.body.args)
        if self._args[0] is not None:
            raise SchedcastError(
                f"bppsa: the loss reads {layer} at several steps; expected only its last state, where the chain begins", Code.MODEL
            )
        self._task, self._cell = task, _CELLS[task.body.target]
        self._last, self._states = self._operand(1), self._operand(2)  # gradient by the last state [B, H]; all states [T + 1, B, H]
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
        scan, prefixes = scan_tasks(self._last, [task.writes[0] if task else None for task in jacobians], level, self._lanes)
        return [task for task in jacobians if task], [*scan, *self._results(prefixes)]

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
