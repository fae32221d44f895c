"""A captured step seen as layers: which backward op serves which layer, in which block and on which layer path it lies (`layer_paths`).

A layer is a run of forward ops of one module; a module that is called twice makes two. Autograd visits layers in the reverse order of
forward, so the runs of a module's backward ops belong to those of its forward ops, the first to the last.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.graph import TrainingGraph
from simulator.layers.paths import blocks, ranked_paths
from simulator.plan.task import BACKWARD, FORWARD, INPUT

DX = "dX"


@dataclass(frozen=True)
class Layer:
    """Ops of one run: `forward` and `backward` are indices into the graph's ops.

    `depth`: the fewest layers between the model's inputs and this one. `block` and `path` count from 0; path 0 is the block's longest.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    depth: int
    block: int
    path: int

    def distance(self, role: str) -> int:
        """The dependency distance DD of the layer's dX, dW or dB: steps, one per layer and phase, to the first other reader of its result.

        1 for dX. What dW and dB lead to, the layer's parameters, is read by the layer itself in the next forward: backward has to go down
        to the first layer, and forward up again.
        """
        return 1 if role == DX else 2 * self.depth + 1


class LayerGraph:
    """The layers of a graph in forward order."""

    def __init__(self, graph: TrainingGraph, seconds: Sequence[float]):
        """`seconds`: of each op of `graph`."""
        forward = _runs(graph, FORWARD)
        backward = _partners(graph, forward)
        on_the_way = _on_the_way(graph)
        layer_of = {op: index for index, run in enumerate(forward) for op in run}
        nodes = sorted({layer_of[op] for op in on_the_way})
        node_of = {layer: node for node, layer in enumerate(nodes)}
        between = {
            (node_of[layer_of[a]], node_of[layer_of[b]])
            for a, b in graph.edges
            if a in on_the_way and b in on_the_way and layer_of[a] != layer_of[b]
        }
        dx_s = [sum(seconds[op] for op in backward[layer] if graph.ops[op].gradient == DX) for layer in nodes]
        self.blocks = blocks(len(nodes), between)
        places = _places(self.blocks, between, dx_s)
        depths = _depths(len(nodes), between)
        self.layers = tuple(
            Layer(
                tuple(run),
                tuple(backward[index]),
                *((depths[node_of[index]], *places[node_of[index]]) if index in node_of else (0, *_next_place(index, nodes, places))),
            )
            for index, run in enumerate(forward)
        )
        self._of = {op: layer for layer in self.layers for op in (*layer.forward, *layer.backward)}

    @property
    def most_paths(self) -> int:
        """The largest number of layer paths in a block."""
        return 1 + max((layer.path for layer in self.layers), default=0)

    def of(self, op: int) -> Layer:
        """The layer that an op belongs to."""
        return self._of[op]


def _runs(graph: TrainingGraph, phase: str) -> list[list[int]]:
    """Indices of the phase's ops, those of one module that follow each other together."""
    runs: list[list[int]] = []
    for index, op in enumerate(graph.ops):
        if op.phase != phase:
            continue
        if runs and graph.ops[runs[-1][0]].layer == op.layer:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _partners(graph: TrainingGraph, forward: list[list[int]]) -> list[list[int]]:
    """Of each forward run its backward ops."""
    found: list[list[int]] = [[] for _ in forward]
    calls, visits = defaultdict(list), defaultdict(list)
    for index, run in enumerate(forward):
        calls[graph.ops[run[0]].layer].append(index)
    for run in _runs(graph, BACKWARD):
        visits[graph.ops[run[0]].layer].append(run)
    for layer, runs in visits.items():
        owners = calls.get(layer) or [len(forward) - 1]
        for k, run in enumerate(runs):
            found[owners[-1 - k * len(owners) // len(runs)]] += run
    return found


def _on_the_way(graph: TrainingGraph) -> set[int]:
    """Forward ops between the inputs and the loss: not those that only count batches or make masks."""
    forward = [index for index, op in enumerate(graph.ops) if op.phase == FORWARD]
    before, after = defaultdict(list), defaultdict(list)
    for a, b in graph.edges:
        before[b].append(a)
        after[a].append(b)
    fed = {i for i in forward if any(graph.values[o.value].kind == INPUT for o in graph.ops[i].inputs)}
    lost = graph.values[graph.loss].storage
    ends = {i for i in forward if any(graph.values[o.value].storage == lost for o in (*graph.ops[i].writes, *graph.ops[i].mutates))}
    for i in forward:
        if any(p in fed for p in before[i]):
            fed.add(i)
    for i in reversed(forward):
        if any(n in ends for n in after[i]):
            ends.add(i)
    return fed & ends


def _places(found: list[list[int]], edges: set[tuple[int, int]], dx_s: list[float]) -> dict[int, tuple[int, int]]:
    """(block, path) of every node. Ways without any dX need no path of their own."""
    places = {}
    for number, block in enumerate(found):
        for rank, path in enumerate(ranked_paths(block, edges, dx_s)):
            used = rank if sum(dx_s[node] for node in path) > 0.0 else 0
            places.update(dict.fromkeys(path, (number, used)))
    return places


def _depths(count: int, edges: set[tuple[int, int]]) -> list[int]:
    before = defaultdict(list)
    for a, b in edges:
        before[b].append(a)
    depths: list[int] = []
    for node in range(count):
        depths.append(min((depths[p] + 1 for p in before[node]), default=0))
    return depths


def _next_place(index: int, nodes: list[int], places: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Of a layer beside the way: the block of the next layer on it, and its urgent path."""
    later = next((node for node, layer in enumerate(nodes) if layer > index), len(nodes) - 1)
    return places[later][0] if nodes else 0, 0
