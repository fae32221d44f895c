"""The graph of a model with many identical blocks, from the graph of the same model with four of them.

The first and the last block may differ, since their neighbors do. If the third block issues the ops of the second one, on values with
corresponding names, then so does each block up to the last one in the deeper model.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from simulator.model.factory import Stack
from simulator.model.graph import Op, TrainingGraph
from simulator.plan.task import FORWARD, Operand, Value


class _UnlikeError(Exception):
    """The blocks are not identical, or are not connected as a stack."""


def deepened(few: TrainingGraph, stack: Stack) -> TrainingGraph | None:
    """Return the graph of the model with all blocks; None if those in the middle of `few` are not identical."""
    try:
        return _Deeper(few, stack).graph()
    except _UnlikeError:
        return None


class _Deeper:
    """Copies of the third block behind it. A name is moved `by` blocks: that of a copy by its distance, that of the last block by all."""

    def __init__(self, few: TrainingGraph, stack: Stack):
        self._few, self._more = few, stack.more
        self._first, self._second, self._third, self._last = range(stack.first, stack.first + 4)
        self._block = re.compile(rf"^{re.escape(stack.name)}\.(\d+)(?=[./]|$)")
        self._names: dict[tuple[str, int], str] = {}

    def graph(self) -> TrainingGraph:
        """The deeper graph. Raises _UnlikeError if `few` does not say what it is."""
        few = self._few
        written = dict.fromkeys(operand.value for op in few.ops for operand in op.writes)
        leaves = [name for name in few.values if name not in written]
        if [*leaves, *written] != list(few.values) or self._index(few.loss) is not None:
            raise _UnlikeError
        self._check_values()
        ops = list(self._ops())
        values = [*self._spread(leaves), *((operand.value, by) for op, by in ops for operand in op.writes)]
        return replace(
            few,
            ops=tuple(self._op(op, by) for op, by in ops),
            values={self._name(name, by): self._value(few.values[name], by) for name, by in values},
            storage_bytes={self._name(name, by): few.storage_bytes[name] for name, by in values if name in few.storage_bytes},
            parameters=tuple(self._name(name, by) for name, by in self._spread(few.parameters)),
            layers={self._name(name, by): self._name(few.layers[name], by) for name, by in self._spread(few.layers)},
            gradients={self._name(name, by): self._gradient(name, by) for name, by in self._spread(few.gradients)},
        )

    def _index(self, name: str) -> int | None:
        """The number of the block that a name begins with."""
        match = self._block.match(name)
        return int(match[1]) if match else None

    def _name(self, name: str, by: int) -> str:
        if by and (name, by) not in self._names:
            self._names[name, by] = self._block.sub(lambda match: f"{match[0][: -len(match[1])]}{int(match[1]) + by}", name)
        return self._names[name, by] if by else name

    def _operand(self, operand: Operand, by: int) -> Operand:
        name = self._name(operand.value, by)
        return operand if name == operand.value else replace(operand, value=name)

    def _value(self, value: Value, by: int) -> Value:
        return replace(value, name=self._name(value.name, by), storage=self._name(value.storage, by)) if by else value

    def _op(self, op: Op, by: int) -> Op:
        if not by:
            return op
        reads, writes, mutates = (tuple(self._operand(each, by) for each in own) for own in (op.reads, op.writes, op.mutates))
        return replace(op, name=self._name(op.name, by), layer=self._name(op.layer, by), reads=reads, writes=writes, mutates=mutates)

    def _gradient(self, parameter: str, by: int) -> Operand:
        """The gradient of a parameter that is moved `by` blocks."""
        operand = self._few.gradients[parameter]
        if self._index(parameter) is None and (index := self._index(operand.value)) is not None:
            if index == self._third:
                raise _UnlikeError
            by = self._more if index == self._last else 0
        return self._operand(operand, by)

    def _spread(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Names in the order of blocks, with those of the copies: (name, by)."""
        for index, group in groupby(names, self._index):
            own = list(group)
            yield from ((name, self._more if index == self._last else 0) for name in own)
            if index == self._third:
                yield from ((name, by) for by in range(1, self._more + 1) for name in own)

    def _check_values(self) -> None:
        """Raise _UnlikeError unless the third block has the values of the second."""
        values, sizes = self._few.values, self._few.storage_bytes
        second, third = ([name for name in values if self._index(name) == block] for block in (self._second, self._third))
        moved = {self._name(name, 1): self._value(values[name], 1) for name in second}
        if moved != {name: values[name] for name in third}:
            raise _UnlikeError
        if any(sizes.get(name) != sizes.get(self._name(name, 1)) for name in second):
            raise _UnlikeError

    def _ops(self) -> Iterator[tuple[Op, int]]:
        """The ops of all blocks, each with how far it is moved."""
        forward = [op for op in self._few.ops if op.phase == FORWARD]
        backward = self._few.ops[len(forward) :]
        second, third, last = (self._begin(forward, block) for block in (self._second, self._third, self._last))
        self._check_alike(forward[second:third], forward[third:last])
        yield from self._still(forward[:last])
        yield from ((op, by) for by in range(1, self._more + 1) for op in forward[third:last])
        yield from self._moved(forward[last:])
        third, second, first = (self._begin(backward, block) for block in (self._third, self._second, self._first))
        self._check_alike(backward[second:first], backward[third:second])
        yield from self._moved(backward[:third])
        yield from ((op, by) for by in range(self._more, -1, -1) for op in backward[third:second])
        yield from self._still(backward[second:])

    def _begin(self, ops: Sequence[Op], block: int) -> int:
        """Where a block begins."""
        for number, op in enumerate(ops):
            if self._index(op.layer) == block:
                return number
        raise _UnlikeError

    def _check_alike(self, second: Sequence[Op], third: Sequence[Op]) -> None:
        if [self._op(op, 1) for op in second] != list(third):
            raise _UnlikeError

    def _still(self, ops: Sequence[Op]) -> Iterator[tuple[Op, int]]:
        """Ops of the blocks before the copies."""
        if any(index == self._last for index in self._indices(ops)):
            raise _UnlikeError
        yield from ((op, 0) for op in ops)

    def _moved(self, ops: Sequence[Op]) -> Iterator[tuple[Op, int]]:
        """Ops of what follows the copies."""
        if any(index is not None and index < self._third for index in self._indices(ops)):
            raise _UnlikeError
        yield from ((op, self._more) for op in ops)

    def _indices(self, ops: Sequence[Op]) -> Iterator[int | None]:
        return (self._index(operand.value) for op in ops for operand in (*op.inputs, *op.writes))
