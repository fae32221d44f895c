"""The units of a captured graph: the smallest pieces that can be a stage of their own, in forward order.

A unit begins with a layer that multiplies by weights (convolution, linear, recurrent, embedding) and holds what follows until the next one:
batch-norm, activation, pooling, the loss. This is how papers count layers: ResNet-20 has 20.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.model.graph import TrainingGraph
from simulator.model.layers.graph import partners, runs
from simulator.plan.bodies.op_class import op_class
from simulator.plan.task import FORWARD

_WEIGHTED = frozenset({"conv", "matmul", "recurrent"})
_LOOKUP = "aten.embedding.default"


@dataclass(frozen=True)
class Unit:
    """Successive forward ops and their backward ops, as indices of the graph's ops. `layer` is the module path of the first one."""

    layer: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def units(graph: TrainingGraph) -> list[Unit]:
    """Return the units of a graph in forward order. Together they hold all of its ops."""
    forward = runs(graph, FORWARD)
    backward = partners(graph, forward)
    groups: list[tuple[list[int], list[int]]] = []
    for own_forward, own_backward in zip(forward, backward, strict=True):
        if groups and not (_weighted(graph, own_forward) and any(_weighted(graph, ops) for ops, _ in groups[-1:])):
            groups[-1][0].extend(own_forward)
            groups[-1][1].extend(own_backward)
        else:
            groups.append((list(own_forward), list(own_backward)))
    return [Unit(_layer(graph, ops), tuple(ops), tuple(sorted(of_backward))) for ops, of_backward in groups]


def _weighted(graph: TrainingGraph, ops: Sequence[int]) -> bool:
    """Whether one of the ops multiplies by, or looks up, a parameter."""
    return any(
        (op_class(graph.ops[index].body.target) in _WEIGHTED or graph.ops[index].body.target == _LOOKUP)
        and any(operand.value in graph.weights for operand in graph.ops[index].inputs)
        for index in ops
    )


def _layer(graph: TrainingGraph, ops: Sequence[int]) -> str:
    return next((graph.ops[index].layer for index in ops if _weighted(graph, [index])), graph.ops[ops[0]].layer)
