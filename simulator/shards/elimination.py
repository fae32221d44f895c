"""The cheapest choice of a configuration for every layer: node and edge elimination (DeePa, section 4).

In: the cost of each choice of a node, and of each pair of choices at the ends of an edge. Out: the choices with the smallest sum.
- Edge elimination: two edges between the same nodes become one, the sum of both.
- Node elimination: a node with two neighbors becomes an edge between them, which has the cheapest choice of the node for every pair of
  choices of theirs. A node with one neighbor is added to that one. Directions do not matter to a sum, so that this also reduces nodes
  with two edges in or two edges out.
- What remains is enumerated. Then the eliminated nodes choose, the last one first.
The result is the exact minimum. Costs are float64 arrays, in any unit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

#: The largest number of joint choices of the remaining nodes that is enumerated: 80 MB of costs.
MOST_JOINT_CHOICES = 10_000_000
#: Nodes that are left for the enumeration, as in the paper.
_LAST = 2


class IrreducibleError(ValueError):
    """The graph does not reduce to so few nodes that their joint choices can be enumerated. `nodes`: those that remain."""

    def __init__(self, nodes: Sequence[int], joint: int):
        super().__init__(f"{len(nodes)} nodes with {joint:.1e} joint choices remain, more than {MOST_JOINT_CHOICES:.0e}")
        self.nodes = tuple(nodes)


@dataclass(frozen=True)
class Cheapest:
    """The choice of every node, the sum of the costs, and the nodes whose choices were enumerated."""

    choices: tuple[int, ...]
    cost: float
    enumerated: tuple[int, ...]


def cheapest(nodes: Sequence[np.ndarray], edges: Iterable[tuple[int, int, np.ndarray]]) -> Cheapest:
    """The choices with the smallest sum of costs.

    `nodes`: by node, the cost of each choice. `edges`: (u, v, costs [choices of u, choices of v]). Raises IrreducibleError.
    """
    graph = _Graph(nodes, edges)
    eliminated = graph.reduce()
    choices = graph.enumerated()
    kept = tuple(choices)
    for node in reversed(eliminated):
        choices[node.number] = node.choice(choices)
    cost = _total(nodes, graph.given, choices)
    return Cheapest(tuple(choices[number] for number in range(len(nodes))), cost, kept)


@dataclass(frozen=True)
class _Eliminated:
    """A node with its costs, and its edges at the time: (neighbor, costs [choices of the neighbor, own choices])."""

    number: int
    costs: np.ndarray
    edges: tuple[tuple[int, np.ndarray], ...]

    def choice(self, choices: dict[int, int]) -> int:
        """The cheapest choice, if the neighbors have chosen."""
        return int(np.argmin(sum((table[choices[neighbor]] for neighbor, table in self.edges), self.costs)))


class _Graph:
    """What is left of the graph. `tables[u][v]`: the one edge of u and v as costs [choices of u, choices of v], and `tables[v][u]`."""

    def __init__(self, nodes: Sequence[np.ndarray], edges: Iterable[tuple[int, int, np.ndarray]]):
        self.costs = {number: np.asarray(costs, float) for number, costs in enumerate(nodes)}
        self.tables: dict[int, dict[int, np.ndarray]] = {number: {} for number in self.costs}
        self.given = [(u, v, np.asarray(table, float)) for u, v, table in edges]
        for u, v, table in self.given:
            if table.shape != (self.costs[u].size, self.costs[v].size):
                raise ValueError(f"edge {u} > {v} has costs {table.shape}, its nodes have {self.costs[u].size} and {self.costs[v].size}")
            self._join(u, v, table)

    def _join(self, u: int, v: int, table: np.ndarray) -> None:
        """Add an edge; if there is one between both nodes already, the two become their sum."""
        if u == v:
            self.costs[u] = self.costs[u] + np.diagonal(table)
            return
        known = self.tables[u].get(v)
        self.tables[u][v] = table if known is None else known + table
        self.tables[v][u] = self.tables[u][v].T

    def reduce(self) -> list[_Eliminated]:
        """Eliminate nodes with at most two neighbors, until two nodes are left or all have more. Returns them in that order."""
        eliminated: list[_Eliminated] = []
        waiting = list(self.costs)
        while waiting and len(self.costs) > _LAST:
            number = waiting.pop(0)
            if number not in self.costs or len(self.tables[number]) > 2:
                continue
            node = _Eliminated(number, self.costs[number], tuple((other, self.tables[other][number]) for other in self.tables[number]))
            neighbors = [other for other, _ in node.edges]
            self._remove(number)
            self._replace(node)
            eliminated.append(node)
            waiting += neighbors  # they may have fewer neighbors now
        return eliminated

    def _remove(self, number: int) -> None:
        for other in self.tables.pop(number):
            del self.tables[other][number]
        del self.costs[number]

    def _replace(self, node: _Eliminated) -> None:
        """What a node leaves behind: an edge between its two neighbors, or a cost of its only one."""
        match node.edges:
            case ((u, first), (v, second)):
                self._join(u, v, min_plus(first + node.costs, second.T))
            case ((u, only),):
                self.costs[u] = self.costs[u] + (only + node.costs).min(axis=1)
            case ():
                pass  # it chooses alone, when the eliminations are undone

    def enumerated(self) -> dict[int, int]:
        """The cheapest joint choice of the nodes that are left."""
        numbers = list(self.costs)
        sizes = [self.costs[number].size for number in numbers]
        if prod(sizes) > MOST_JOINT_CHOICES or len(numbers) > 32:  # 32: the most dimensions of an array
            raise IrreducibleError(numbers, prod(sizes))
        joint = np.zeros(sizes)
        for axis, u in enumerate(numbers):
            joint += self.costs[u].reshape([size if place == axis else 1 for place, size in enumerate(sizes)])
            for other in range(axis + 1, len(numbers)):
                if numbers[other] in self.tables[u]:
                    shape = [size if place in (axis, other) else 1 for place, size in enumerate(sizes)]
                    joint += self.tables[u][numbers[other]].reshape(shape)
        best = np.unravel_index(int(np.argmin(joint)), sizes) if numbers else ()
        return {number: int(choice) for number, choice in zip(numbers, best, strict=True)}


def min_plus(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """By row of `first` and column of `second`, the smallest sum of an entry of the row and the entry of the column below it."""
    columns, rows = np.ascontiguousarray(first.T)[:, :, None], np.ascontiguousarray(second)
    smallest = columns[0] + rows[0]
    total = np.empty_like(smallest)
    for column, row in zip(columns[1:], rows[1:], strict=True):
        np.add(column, row, out=total)
        np.minimum(smallest, total, out=smallest)
    return smallest


def _total(nodes: Sequence[np.ndarray], edges: Sequence[tuple[int, int, np.ndarray]], choices: dict[int, int]) -> float:
    own = sum(float(costs[choices[number]]) for number, costs in enumerate(nodes))
    return own + sum(float(table[choices[u], choices[v]]) for u, v, table in edges)
