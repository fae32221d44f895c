"""Which forward ops can run again right before the backward that needs their results, and which of them have to.

The repeated ops write new values, which the backward reads instead of the first ones, so that those can be freed after the forward. Ops
that change, or read, tensors that are changed in place and cannot be restored are not repeated: their results are saved. Batch-norm is
repeated without its running statistics, which the first forward has updated. Ops whose results the backward does not need are not repeated.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.ops import row
from simulator.plan.task import CARRIED_KINDS, INPUT, Task

_Repeated = TypeVar("_Repeated", Op, Task)


class Repeats:
    """The storages that the ops of a graph change, and what follows for repeating them."""

    def __init__(self, graph: TrainingGraph):
        self._graph = graph
        self._changed = [self._storages(op.writes if row(op.body.target).running else (*op.writes, *op.mutates)) for op in graph.ops]
        self._changers: dict[str, list[int]] = {}  # by storage, the ops that write or change it
        for index, storages in enumerate(self._changed):
            for storage in storages:
                self._changers.setdefault(storage, []).append(index)
        self._lasting = {value.storage for value in graph.values.values() if value.kind in (CARRIED_KINDS | {INPUT})}

    def changers(self, storage: str) -> Sequence[int]:
        """The ops that write or change a storage, in order; running statistics count as unchanged."""
        return self._changers.get(storage, ())

    def needed(self, candidates: Iterable[int], readers: Iterable[int], kept: Collection[str] = frozenset()) -> list[int]:
        """Those of `candidates`, indices of forward ops, that are repeated for the ops `readers`, in order.

        `kept`: saved storages, whose first content the readers and the repeated ops read.
        """
        again = {index for index in candidates if self._mutated(index).isdisjoint(kept)}
        dropped = {-1}
        while dropped:
            fresh = {s for index in again for s in self._changed[index] if s not in self._lasting and again.issuperset(self._changers[s])}
            dropped = {index for index in again if not self._repeatable(index, fresh)}
            again -= dropped
        wanted = {s for index in readers for s in self._storages(self._graph.ops[index].inputs)} - set(kept)
        needed = []
        for index in sorted(again, reverse=True):
            if not wanted.isdisjoint(self._changed[index]):
                needed.append(index)
                wanted |= self._storages(self._graph.ops[index].inputs) - set(kept)
        return needed[::-1]

    def _repeatable(self, index: int, fresh: set[str]) -> bool:
        """Whether an op changes only storages that are made again, and reads no others that are changed later, or by the next forward."""
        reads = self._storages(self._graph.ops[index].reads) - fresh
        return self._changed[index] <= fresh and all(
            changer < index and s not in self._lasting for s in reads for changer in self._changers.get(s, ())
        )

    def _mutated(self, index: int) -> set[str]:
        op = self._graph.ops[index]
        return set() if row(op.body.target).running else self._storages(op.mutates)

    def _storages(self, operands: Iterable[Any]) -> set[str]:
        return {self._graph.values[operand.value].storage for operand in operands}


def without_statistics(op: _Repeated) -> _Repeated:
    """The op or task, but if it is a batch-norm that updates running statistics, without them."""
    if not row(op.body.op).running or not op.mutates:
        return op
    args = [_left_out(argument, len(op.reads)) for argument in json.loads(op.body.args)]
    return replace(op, body=replace(op.body, args=json.dumps(args, separators=(",", ":"))), mutates=())


def _left_out(argument: Any, reads: int) -> Any:
    """An argument, or None for an operand that comes after the reads."""
    return None if isinstance(argument, dict) and argument.get("$", -1) >= reads else argument
