"""The layers of a captured step: the backward ops of each layer, its block, and its layer path (`paths`).

A layer is a run of successive forward ops of one module; a module that is called twice has two layers. Autograd goes through layers in the
reverse order of forward, so the first run of a module's backward ops belongs to the last run of its forward ops, and so on.

Blocks and layer paths of a network's graph (TurboDL, section 2.4 and algorithm 1), on any directed acyclic graph.

A network is a sequence of blocks, each from the layer where it forks to the layer where it merges again; a plain chain is one block. Within
a block every layer gets a path, and paths are ranked by the seconds of their layers, the longest first. A dense block has exponentially
many paths, so dynamic programming determines the longest one, removes its layers, and continues with the remaining layers.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.model.graph import TrainingGraph
from simulator.plan.task import BACKWARD, FORWARD, INPUT

Edges = Iterable[tuple[int, int]]


def blocks(count: int, edges: Edges) -> list[list[int]]:
    """Nodes 0 … `count` − 1, numbered in topological order, as blocks in that order.

    A separator is a node that no edge bypasses. Between two successive separators there is either nothing (a chain) or several branches (a
    block, with the two separators as its fork and merge). The first nodes count as having edges from a common source, and the last ones as
    having edges to a common sink.
    """
    separators = _separators(count, edges)
    result: list[list[int]] = []
    chain: list[int] = []
    previous = -1
    for node in [*separators, count]:
        inside = list(range(previous + 1, node))
        if inside:
            fork = [chain.pop()] if chain else []
            result += [chain] if chain else []
            result.append([*fork, *inside, *([node] if node < count else [])])
            chain = []
        elif node < count:
            chain.append(node)
        previous = node
    return result + ([chain] if chain else [])


def _separators(count: int, edges: Edges) -> list[int]:
    """Nodes on every path from the first nodes to the last ones."""
    furthest = [0] * count  # the last successor of each node
    has_predecessor = [False] * count
    for source, target in edges:
        furthest[source] = max(furthest[source], target)
        has_predecessor[target] = True
    last_source = max((node for node in range(count) if not has_predecessor[node]), default=0)
    separators, reach = [], last_source  # the edges from the common source
    for node in range(count):
        if reach <= node:
            separators.append(node)
        reach = max(reach, furthest[node] or count)  # a node without successor has an edge to the sink
    return separators


def ranked_paths(nodes: Sequence[int], edges: Edges, seconds: Sequence[float]) -> list[list[int]]:
    """The nodes of one block as disjoint paths, the longest by `seconds` (indexed by node) first; of equal ones, that with more nodes."""
    before: dict[int, list[int]] = {node: [] for node in nodes}
    for source, target in edges:
        if source in before and target in before:
            before[target].append(source)
    left = sorted(nodes)
    paths: list[list[int]] = []
    while left:
        paths.append(_longest(left, before, seconds))
        removed = set(paths[-1])
        left = [node for node in left if node not in removed]
    return paths


def _longest(nodes: list[int], before: dict[int, list[int]], seconds: Sequence[float]) -> list[int]:
    length: dict[int, tuple[float, int]] = {}
    came_from: dict[int, int | None] = {}
    for node in nodes:  # in topological order
        best = max((p for p in before[node] if p in length), key=lambda p: (length[p], -p), default=None)
        total, count = length[best] if best is not None else (0.0, 0)
        length[node], came_from[node] = (total + seconds[node], count + 1), best
    last: int | None = max(nodes, key=lambda n: (length[n], -n))
    path = []
    while last is not None:
        path.append(last)
        last = came_from[last]
    return path[::-1]


DX = "dX"


@dataclass(frozen=True)
class Layer:
    """One run of a module. `forward` and `backward` are indices of the graph's ops.

    `depth`: the fewest layers between the model's inputs and this one. `block` and `path` count from 0; path 0 is the longest of its block.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    depth: int
    block: int
    path: int

    def distance(self, role: str) -> int:
        """The dependency distance DD of the layer's dX, dW or dB: steps, one per layer and phase, until another task reads its result.

        The distance of dX is 1. The results of dW and dB, the layer's parameters, are read by the layer itself in the next forward:
        backward first goes down to the first layer, and then forward goes up again.
        """
        return 1 if role == DX else 2 * self.depth + 1


class LayerGraph:
    """The layers of a graph in forward order."""

    def __init__(self, graph: TrainingGraph, seconds: Sequence[float]):
        """`seconds`: time of each op of `graph`, by which paths are ranked."""
        forward = runs(graph, FORWARD)
        backward = partners(graph, forward)
        between_ends = _between_inputs_and_loss(graph)
        layer_of = {op: index for index, run in enumerate(forward) for op in run}
        nodes = sorted({layer_of[op] for op in between_ends})
        node_of = {layer: node for node, layer in enumerate(nodes)}
        edges = {
            (node_of[layer_of[a]], node_of[layer_of[b]])
            for a, b in graph.edges
            if a in between_ends and b in between_ends and layer_of[a] != layer_of[b]
        }
        dx_s = [sum(seconds[op] for op in backward[layer] if graph.ops[op].gradient == DX) for layer in nodes]
        self.blocks = blocks(len(nodes), edges)
        places = _places(self.blocks, edges, dx_s)
        depths = _depths(len(nodes), edges)
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

    def layer_of(self, op: int) -> Layer:
        """The layer of an op of the graph."""
        return self._of[op]


def runs(graph: TrainingGraph, phase: str) -> list[list[int]]:
    """Indices of the phase's ops, but for those that repeat forward ops, grouped into runs of successive ops of one module."""
    runs: list[list[int]] = []
    for index, op in enumerate(graph.ops):
        if op.phase != phase or index in graph.repeats:
            continue
        if runs and graph.ops[runs[-1][0]].layer == op.layer:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def partners(graph: TrainingGraph, forward: list[list[int]]) -> list[list[int]]:
    """The backward ops of each forward run, in order; an op that runs again belongs to the run of the first one."""
    backward: list[list[int]] = [[] for _ in forward]
    calls, backward_runs = defaultdict(list), defaultdict(list)
    for index, run in enumerate(forward):
        calls[graph.ops[run[0]].layer].append(index)
    for run in runs(graph, BACKWARD):
        backward_runs[graph.ops[run[0]].layer].append(run)
    for layer, of_layer in backward_runs.items():
        owners = calls.get(layer) or [len(forward) - 1]
        for k, run in enumerate(of_layer):
            backward[owners[-1 - k * len(owners) // len(of_layer)]] += run
    if graph.repeats:
        run_of = {op: index for index, run in enumerate(forward) for op in run}
        for again, first in graph.repeats.items():
            backward[run_of[first]].append(again)
        backward = [sorted(run) for run in backward]
    return backward


def _between_inputs_and_loss(graph: TrainingGraph) -> set[int]:
    """Forward ops on a path from the inputs to the loss. Ops that only count batches or make masks are on none."""
    forward = [index for index, op in enumerate(graph.ops) if op.phase == FORWARD]
    before, after = defaultdict(list), defaultdict(list)
    for a, b in graph.edges:
        before[b].append(a)
        after[a].append(b)
    from_input = {i for i in forward if any(graph.values[o.value].kind == INPUT for o in graph.ops[i].inputs)}
    result = graph.values[graph.loss].storage
    to_loss = {i for i in forward if any(graph.values[o.value].storage == result for o in (*graph.ops[i].writes, *graph.ops[i].mutates))}
    for i in forward:
        if any(p in from_input for p in before[i]):
            from_input.add(i)
    for i in reversed(forward):
        if any(n in to_loss for n in after[i]):
            to_loss.add(i)
    return from_input & to_loss


def _places(ordered_blocks: list[list[int]], edges: set[tuple[int, int]], dx_s: list[float]) -> dict[int, tuple[int, int]]:
    """(block, path) of every node. Paths without any dX share path 0."""
    places = {}
    for number, block in enumerate(ordered_blocks):
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
    """(block, path) of a layer that is not between inputs and loss: the block of the next layer that is, and path 0."""
    later = next((node for node, layer in enumerate(nodes) if layer > index), len(nodes) - 1)
    return places[later][0] if nodes else 0, 0
