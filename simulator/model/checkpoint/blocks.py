"""The blocks of a model that are checkpointed one by one, from the layers of its forward ops.

A block is a member of a ModuleList or Sequential that has layers, at least two of which are products or convolutions, such as
`layers.0`, `h.3` or `layer2.1`. A member that is itself a Sequential, such as a stage of blocks, is searched for blocks. A model without at
least two such blocks is cut into about sqrt(n) segments between the n places at which all that follows depends on a single result (Chen et
al., "Training Deep Nets with Sublinear Memory Cost", 2016), or, if there are none, between the model's children.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import isqrt

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.bodies.op_class import op_class
from simulator.plan.task import ACTIVATION, FORWARD

#: Capture's name for the layer of the loss, which no block contains.
_LOSS = "loss"
_MULTIPLYING = frozenset({"conv", "matmul", "recurrent"})


@dataclass(frozen=True)
class Block:
    """Successive forward ops, as indices of the graph's ops."""

    name: str
    ops: tuple[int, ...]


def blocks(graph: TrainingGraph) -> tuple[str, list[Block]]:
    """What the blocks are called ("blocks" or "segments"), and the blocks in forward order."""
    forward = [index for index, op in enumerate(graph.ops) if op.phase == FORWARD and op.layer != _LOSS]
    names = {name for index in forward if (name := _member(graph.ops[index].layer))}
    runs = [(name, tuple(run)) for name, run in groupby(forward, key=lambda index: _enclosing(graph.ops[index].layer, names))]
    products = {index for index in forward if op_class(graph.ops[index].body.target) in _MULTIPLYING}
    repeated = [Block(name, ops) for name, ops in runs if name and len(products.intersection(ops)) > 1]
    return ("blocks", repeated) if len(repeated) > 1 else ("segments", _segments(graph, forward))


def _member(layer: str) -> str:
    """The block that a layer lies in: its path up to the first number that a name follows; empty if there is none."""
    parts = layer.split(".")
    for position, (part, following) in enumerate(pairwise(parts), 1):
        if part.isdigit() and not following.isdigit():
            return ".".join(parts[:position])
    return ""


def _enclosing(layer: str, names: set[str]) -> str:
    """The block of a layer: what a block computes outside its layers is its own too."""
    return _member(layer) or (layer if layer in names else "")


def _segments(graph: TrainingGraph, forward: Sequence[int]) -> list[Block]:
    """Segments that write about as many bytes each; not the last one, whose backward follows at once (`checkpoint_sequential`)."""
    places = _single(graph, forward) or _children(graph, forward)
    wanted = max(2, isqrt(len(places) + 1)) if places else 1
    written = [0, *accumulate(sum(o.bytes for o in graph.ops[index].writes) for index in forward)]
    cuts = {min(places, key=lambda place: abs(written[place] - written[-1] * n / wanted)) for n in range(1, wanted)}
    return [Block(graph.ops[forward[first]].layer or "model", tuple(forward[first:last])) for first, last in pairwise([0, *sorted(cuts)])]


def _single(graph: TrainingGraph, forward: Sequence[int]) -> list[int]:
    """The positions in `forward` before which everything that later ops read of earlier ones lies in one storage."""
    crossing = [0] * (len(forward) + 1)
    for first, last in lives(graph, [graph.ops[index] for index in forward]).values():
        crossing[first + 1] += 1
        crossing[last + 1] -= 1
    places, alive = [], 0
    for position, change in enumerate(crossing[: len(forward)]):
        alive += change
        if alive == 1:
            places.append(position)
    return places


def lives(graph: TrainingGraph, ops: Iterable[Op]) -> dict[str, tuple[int, int]]:
    """By storage of activations, the first and the last position among `ops` at which one uses it."""
    used: dict[str, tuple[int, int]] = {}
    for position, op in enumerate(ops):
        for operand in (*op.inputs, *op.writes):
            value = graph.values[operand.value]
            if value.kind == ACTIVATION:
                used[value.storage] = used.get(value.storage, (position, position))[0], position
    return used


def _children(graph: TrainingGraph, forward: Sequence[int]) -> list[int]:
    """The positions in `forward` at which another child of the model begins."""
    children = [graph.ops[index].layer.partition(".")[0] for index in forward]
    return [position for position, (before, here) in enumerate(pairwise(children), 1) if before != here]
