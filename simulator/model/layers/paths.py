"""Blocks and layer paths of a network's graph (TurboDL, section 2.4 and algorithm 1), on any directed acyclic graph.

A network is a sequence of blocks, each from the layer where it forks to the layer where it merges again; a plain chain is one block. Within
a block every layer gets a path, and paths are ranked by the seconds of their layers, the longest first. A dense block has exponentially
many paths, so dynamic programming determines the longest one, removes its layers, and continues with the remaining layers.
"""

from collections.abc import Iterable, Sequence

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
    node: int | None = max(nodes, key=lambda n: (length[n], -n))
    path = []
    while node is not None:
        path.append(node)
        node = came_from[node]
    return path[::-1]
