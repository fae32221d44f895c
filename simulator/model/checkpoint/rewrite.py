"""Repeat forward ops of blocks right before their backward, as `torch.utils.checkpoint` does for a module."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from simulator.model.checkpoint.blocks import Block
from simulator.model.checkpoint.repeats import Repeats, without_statistics
from simulator.model.graph import Op, TrainingGraph
from simulator.plan.ops import EVERY_SECOND, SAVED, row
from simulator.plan.task import AGAIN, BACKWARD, FORWARD, Operand


def kept_by_selective(graph: TrainingGraph, block: Block) -> set[int]:
    """The ops of a block whose results are saved, as in the per-op policy of torchtitan.

    It saves attention and every second product by weights, the first one included (`activation_checkpoint.py`: "save all compute ops,
    except every second mm"); a product with a bias counts as one. Convolutions and recurrent layers, which torchtitan does not have, are
    saved, and batched products of activations, which are attention in its math form, are repeated, as in Megatron-LM's selective
    recomputation.
    """
    keeps = keeping()
    return {index for index in block.ops if keeps(graph.ops[index].body.target)}


def keeping() -> Callable[[str], bool]:
    """A function that says of each op of a block, in order of their calls, whether its result is saved."""
    products = count()

    def keeps(target: str) -> bool:
        policy = row(target).selective
        return policy == SAVED or (policy == EVERY_SECOND and next(products) % 2 == 0)

    return keeps


@dataclass(frozen=True)
class Repeated:
    """The ops of a block that are repeated before op `before` of the graph, and the values that the backward reads as they are repeated."""

    ops: tuple[int, ...]
    before: int
    values: frozenset[str]


class Rewriting:
    """What of a graph's blocks can be repeated."""

    def __init__(self, graph: TrainingGraph, blocks: Sequence[Block]):
        self._graph, self.blocks = graph, blocks
        self._repeats = Repeats(graph)
        self._block_of = {index: number for number, block in enumerate(blocks) for index in block.ops}
        leaving = self._leaving()
        self._kept = [leaving.get(number, set()) for number in range(len(blocks))]
        self._readers = self._backward_readers()

    def repeated(self, number: int, kept: Iterable[int] = ()) -> Repeated | None:
        """What is repeated of a block whose ops `kept` are not; None if there is nothing to repeat."""
        readers = self._readers[number]
        leaving = self._kept[number]
        candidates = set(self.blocks[number].ops).difference(kept, self._graph.repeats.values())  # but for what the model repeats itself
        needed = self._repeats.needed(candidates, readers, leaving)
        written = {o.value for index in needed for o in self._graph.ops[index].writes}
        values = frozenset(value for value in written if self._storage(value) not in leaving)
        before = next((index for index in readers if any(o.value in values for o in self._graph.ops[index].inputs)), None)
        return None if before is None else Repeated(tuple(needed), before, values)

    def with_repeated(self, repeated: Iterable[Repeated]) -> TrainingGraph:
        """The graph in which these ops are repeated. The repeated ops and values have the names of the first ones with the suffix AGAIN."""
        graph = self._graph
        values, sizes = dict(graph.values), dict(graph.storage_bytes)
        ops: list[Op] = []
        instead: set[str] = set()
        due: dict[int, list[Op]] = {}  # by op before which they are repeated
        for each in repeated:
            instead |= each.values
            for index in each.ops:
                op = graph.ops[index]
                own = each.values | {o.value for o in op.writes}  # what leaves the block is read as the first forward has made it
                writes = tuple(_again(o) for o in op.writes)
                again = replace(
                    op,
                    name=f"{op.name}{AGAIN}",
                    phase=BACKWARD,
                    gradient="dX",
                    reads=tuple(_mapped(op.reads, each.values)),
                    writes=writes,
                    mutates=tuple(_mapped(op.mutates, own)),
                )
                due.setdefault(each.before, []).append(without_statistics(again))
                for operand in op.writes:
                    first = values[operand.value]
                    second = replace(first, name=f"{first.name}{AGAIN}", storage=f"{first.storage}{AGAIN}")
                    values[second.name], sizes[second.storage] = second, sizes[first.storage]
        for index, op in enumerate(graph.ops):
            ops += due.get(index, ())
            if op.phase == BACKWARD and any(o.value in instead for o in op.inputs):
                op = replace(op, reads=tuple(_mapped(op.reads, instead)), mutates=tuple(_mapped(op.mutates, instead)))
            ops.append(op)
        return replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes)

    def _storage(self, value: str) -> str:
        return self._graph.values[value].storage

    def _leaving(self) -> dict[int, set[str]]:
        """By block, the storages that it changes and that forward ops outside of it change or read, or that the step returns."""
        leaving: dict[int, set[str]] = {}
        users: dict[str, set[int]] = {self._storage(self._graph.loss): {-1}}
        for index, op in enumerate(self._graph.ops):
            if op.phase == FORWARD:
                for operand in (*op.inputs, *op.writes):
                    users.setdefault(self._storage(operand.value), set()).add(self._block_of.get(index, -1))
        for storage, own in users.items():
            for number in own if len(own) > 1 else ():
                leaving.setdefault(number, set()).add(storage)
        return leaving

    def _backward_readers(self) -> list[list[int]]:
        """By block, the backward ops that read what only it has made, in order."""
        readers: list[list[int]] = [[] for _ in self.blocks]
        for index, op in enumerate(self._graph.ops):
            if op.phase == BACKWARD:
                changers = (self._repeats.changers(self._storage(o.value)) for o in op.inputs)
                for number in {self._block_of.get(changed[0], -1) for changed in changers if changed} - {-1}:
                    readers[number].append(index)
        return readers


def _again(operand: Operand) -> Operand:
    return Operand(f"{operand.value}{AGAIN}", operand.shape, operand.strides, operand.dtype, operand.views)


def _mapped(operands: Iterable[Operand], values: Mapping[str, object] | set[str] | frozenset[str]) -> Iterator[Operand]:
    return (_again(operand) if operand.value in values else operand for operand in operands)
