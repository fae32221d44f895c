"""The cheapest choices of a graph's nodes as an integer program: an oracle that knows nothing of eliminations."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


def by_integer_program(nodes: Sequence[np.ndarray], edges: Sequence[tuple[int, int, np.ndarray]]) -> tuple[tuple[int, ...], float]:
    """The choice of every node and the smallest sum of costs.

    A variable for each choice of a node, one of which is 1. Edges are linearized: a variable for each pair of choices at the ends of an
    edge; the variables of one choice of an end add up to that choice.
    """
    starts = np.cumsum([0, *(node.size for node in nodes)])
    costs = [np.asarray(node, float) for node in nodes]
    rows, columns, values, sums = [], [], [], []
    for node, start in zip(nodes, starts, strict=False):
        _add(rows, columns, values, sums, [(start + choice, 1.0) for choice in range(node.size)], 1.0)
    first = int(starts[-1])
    for u, v, table in edges:
        pairs = first + np.arange(table.size).reshape(table.shape)
        for place, own in enumerate(pairs):
            _add(rows, columns, values, sums, [(starts[u] + place, -1.0), *((pair, 1.0) for pair in own)], 0.0)
        for place, own in enumerate(pairs.T):
            _add(rows, columns, values, sums, [(starts[v] + place, -1.0), *((pair, 1.0) for pair in own)], 0.0)
        costs.append(table.ravel())
        first += table.size
    objective = np.concatenate(costs)
    whole = np.concatenate([np.ones(starts[-1]), np.zeros(first - starts[-1])])
    matrix = coo_array((values, (rows, columns)), shape=(len(sums), first)).tocsr()
    result = milp(objective, integrality=whole, bounds=Bounds(0, 1), constraints=LinearConstraint(matrix, sums, sums))
    assert result.status == 0, result.message
    choices = tuple(int(np.argmax(result.x[start : start + node.size])) for node, start in zip(nodes, starts, strict=False))
    return choices, float(result.fun)


def _add(rows: list, columns: list, values: list, sums: list, terms: list[tuple[int, float]], equals: float) -> None:
    for column, value in terms:
        rows.append(len(sums))
        columns.append(int(column))
        values.append(value)
    sums.append(equals)
