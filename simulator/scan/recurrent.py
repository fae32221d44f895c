"""A recurrent layer's backward op as tasks of a scan: Jacobians of its steps, the scan, and what the parameters' gradients need of it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.bodies.jacobian_rules import GruSteps, RnnSteps, Rule
from simulator.bodies.jacobian_values import JacobianValues
from simulator.bodies.opcall import OpCall
from simulator.build import PlanBuilder
from simulator.ops.recurrent.scan_order import blocks
from simulator.plan.task import BACKWARD, FORWARD, Body, Operand, Task
from simulator.plan.views import entry, part
from simulator.scan.algorithm import full_level
from simulator.scan.batches import scan_tasks
from traces.errors import StepcastError


class _Cell(NamedTuple):
    """How a kind of layer is scanned.

    `weight`, `saved`: positions among the backward op's arguments, of W_hh and of what a step has left beside its states. `of_outputs`:
    whether Jacobians come from the states behind the steps or before them. `phase`: what Jacobians count as (Wang et al., 4.1 and 4.2).
    """

    rule: Callable[[list, bool], Rule]
    weight: int
    saved: tuple[int, ...]
    of_outputs: bool
    phase: str
    gates: str
    gates_launches: int


_CELLS = {
    "stepcast.rnn_backward.default": _Cell(lambda args, left: RnnSteps(args[-1], left), 3, (), True, BACKWARD, "rnn_gates", 5),
    "stepcast.gru_backward.default": _Cell(lambda args, left: GruSteps(left), 6, (3, 4, 5), False, FORWARD, "gru_gates", 15),
}
_WITHOUT_RULE = "stepcast.lstm_backward.default"
_TARGETS = frozenset({*_CELLS, _WITHOUT_RULE})


@dataclass(frozen=True)
class _Lanes:
    """Where the scan's tasks and values go: a worker is a stream."""

    build: PlanBuilder
    like: Task
    dtype: str

    def value(self, name: str, shape: tuple[int, ...]) -> Operand:
        return self.build.scratch(f"{self.like.name}/{name}", shape, self.dtype)

    def task(self, name: str, body: Body, worker: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Task:
        return replace(self.like, name=f"{self.like.name}/{name}", body=body, stream=worker, reads=tuple(reads), writes=tuple(writes))


class RecurrentScan:
    """The chains of steps of all recurrent layers of one micro-batch's backward tasks; what lies between them stays as it is."""

    def __init__(self, build: PlanBuilder, backward: Sequence[Task]):
        """Raises StepcastError where a layer's chain is none of one Jacobian per step with a gradient at its end alone."""
        self._backward = backward
        self._layers = {task.name: _Layer(build, task) for task in backward if is_recurrent(task)}

    @property
    def full_level(self) -> int:
        """Of Blelloch's scan of the longest chain."""
        return max(full_level(layer.elements) for layer in self._layers.values())

    @property
    def jacobian_bytes(self) -> int:
        """Of all Jacobians, without their products."""
        return sum(layer.jacobian_bytes for layer in self._layers.values())

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(Jacobians, the backward tasks with each layer's op replaced by its scan), in issue order.

        A linear scan has one worker; of others each worker has at least two elements.
        """
        found = {name: layer.tasks(level, workers) for name, layer in self._layers.items()}
        done = [new for task in self._backward for new in (found[task.name][1] if task.name in found else (task,))]
        return [task for values, _ in found.values() for task in values], done


def is_recurrent(task: Task) -> bool:
    """Whether a task runs back through the steps of a recurrent layer."""
    return getattr(task.body, "target", "") in _TARGETS


class _Layer:
    """The chain of steps of one backward op."""

    def __init__(self, build: PlanBuilder, task: Task):
        layer = f"recurrent layer {task.layer!r}"
        if task.body.target == _WITHOUT_RULE:
            raise StepcastError(f"bppsa: {layer} is an LSTM, which has no Jacobian rule; expected nn.RNN or nn.GRU")
        self._args = json.loads(task.body.args)
        if self._args[0] is not None:
            raise StepcastError(f"bppsa: the loss reads {layer} at several steps; expected its last state only, where the chain begins")
        self._task, self._cell = task, _CELLS[task.body.target]
        self._last, self._states = self._operand(1), self._operand(2)  # gradient by the last state [B, H]; all states [T + 1, B, H]
        self._lanes = _Lanes(build, task, self._last.dtype)
        initial = task.writes[-1].value
        self._to_initial = any(operand.value == initial for op in build.graph.ops for operand in op.inputs)
        #: Of the scan: the gradient by the last state, then a Jacobian for each step whose gradient is asked for but the last.
        self.elements = self._states.shape[0] - 1 + self._to_initial

    def _operand(self, place: int) -> Operand:
        return self._task.reads[self._args[place]["$"]]

    @property
    def jacobian_bytes(self) -> int:
        return (self.elements - 1) * self._last.bytes * self._last.shape[-1]

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(Jacobians, scan and results)."""
        sizes = blocks(self.elements, min(workers, self.elements // 2) if level else 1)
        values = list(self._jacobians(sizes))
        found, prefixes = scan_tasks(self._last, [task.writes[0] if task else None for task in values], level, self._lanes)
        return [task for task in values if task], [*found, *self._results(prefixes)]

    def _jacobians(self, sizes: Sequence[int]) -> Iterator[Task | None]:
        """Of each worker's elements; None where its only one is the gradient."""
        end = 0
        for worker, size in enumerate(sizes):
            end += size
            leftmost = worker == 0
            count = size - leftmost
            if not count:
                yield None
                continue
            first = self._states.shape[0] - end  # step, counted from 0; the scan runs backwards
            states, *saved = (self._operand(place) for place in (2, *self._cell.saved))
            after = int(self._cell.of_outputs)
            reads = (part(states, first + after, first + count + after), *(part(tensor, first, first + count) for tensor in saved))
            name = f"jacobians[{worker}]"
            made = self._lanes.value(name, (count, *self._last.shape, self._last.shape[-1]))
            body = JacobianValues(self._cell.rule(self._args, leftmost))
            yield replace(self._lanes.task(name, body, worker, (*reads, self._operand(self._cell.weight)), (made,)), phase=self._cell.phase)

    def _results(self, prefixes: list[Operand]) -> Iterator[Task]:
        """What the op it stands for wrote: each batch's prefix behind its last element is the next one's first."""
        *gates, initial = self._task.writes
        last = prefixes[-1]
        if self._to_initial:
            reads = (entry(last, last.shape[0] - 1),)
            yield self._lanes.task("initial", OpCall("aten.clone.default", '[{"$":0}]'), 0, reads, (initial,))
        found = [*(part(each, 0, each.shape[0] - 1) for each in prefixes[:-1]), last]
        saved = [self._operand(place) for place in (2, *self._cell.saved)]
        places = [{"$": place} for place in range(len(found) + len(saved))]
        args = [places[: len(found)], *places[len(found) :], *(arg for arg in self._args[-1:] if isinstance(arg, str))]
        outputs, launches = tuple(range(len(gates))), self._cell.gates_launches
        body = OpCall(f"stepcast.{self._cell.gates}.default", json.dumps(args, separators=(",", ":")), outputs=outputs, launches=launches)
        yield self._lanes.task("gates", body, 0, (*found, *saved), tuple(gates))
