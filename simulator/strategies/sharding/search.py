"""The best configuration of every layer of a network on a machine: node and edge elimination (DeePa, section 4).

Worker k of every layer runs on device k, so that a layer with fewer workers than devices uses the first ones.

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
from typing import Final, Literal

import numpy as np

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.compute import Prices, compute_tables
from simulator.strategies.sharding.costs.exact import CostTables, ExactCosts, paper_tables, repaired
from simulator.strategies.sharding.network import Network
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

#: The largest number of joint choices of the remaining nodes that is enumerated: 80 MB of costs.
MOST_JOINT_CHOICES = 10_000_000
#: Nodes that are left for the enumeration, as in the paper.
_LAST = 2
#: The edges of a graph: `tables[u][v]` is the one edge of u and v as costs [choices of u, choices of v], `tables[v][u]` its transpose.
_Tables = dict[int, dict[int, np.ndarray]]


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

    `nodes`: by node, the cost of each choice. `edges`: (u, v, costs [choices of u, choices of v]). Raises IrreducibleError, and ValueError
    for costs of an edge that do not fit its nodes.
    """
    costs = {number: np.asarray(own, float) for number, own in enumerate(nodes)}
    given = [(u, v, np.asarray(table, float)) for u, v, table in edges]
    tables: _Tables = {number: {} for number in costs}

    def join(u: int, v: int, table: np.ndarray) -> None:
        """Add an edge; if there is one between both nodes already, the two become their sum."""
        if u == v:
            costs[u] = costs[u] + np.diagonal(table)
            return
        tables[u][v] = tables[u][v] + table if v in tables[u] else table
        tables[v][u] = tables[u][v].T

    for u, v, table in given:
        if table.shape != (costs[u].size, costs[v].size):
            raise ValueError(f"edge {u} > {v} has costs {table.shape}, its nodes have {costs[u].size} and {costs[v].size}")
        join(u, v, table)
    eliminated: list[tuple[int, np.ndarray, dict[int, np.ndarray]]] = []
    waiting = list(costs)
    while waiting and len(costs) > _LAST:
        number = waiting.pop(0)
        if number not in costs or len(tables[number]) > 2:
            continue
        own, around = costs.pop(number), tables.pop(number)
        for other in around:
            del tables[other][number]
        match list(around.items()):
            case [(u, first), (v, second)]:
                join(u, v, min_plus(first.T + own, second))
            case [(u, only)]:
                costs[u] = costs[u] + (only.T + own).min(axis=1)
        eliminated.append((number, own, around))
        waiting += around  # they may have fewer neighbors now
    choices = _enumerated(costs, tables)
    enumerated = tuple(choices)
    for number, own, around in reversed(eliminated):
        choices[number] = int(np.argmin(sum((table[:, choices[other]] for other, table in around.items()), own)))
    cost = sum(float(own[choices[number]]) for number, own in enumerate(nodes))
    cost += sum(float(table[choices[u], choices[v]]) for u, v, table in given)
    return Cheapest(tuple(choices[number] for number in range(len(nodes))), cost, enumerated)


def _enumerated(costs: dict[int, np.ndarray], tables: _Tables) -> dict[int, int]:
    """The cheapest joint choice of all nodes."""
    numbers, sizes = list(costs), [own.size for own in costs.values()]
    if prod(sizes) > MOST_JOINT_CHOICES or len(numbers) > 32:  # 32: the most dimensions of an array
        raise IrreducibleError(numbers, prod(sizes))
    joint, axes = np.zeros(sizes), range(len(numbers))
    for axis, u in enumerate(numbers):
        joint += np.expand_dims(costs[u], [each for each in axes if each != axis])
        for other in axes[axis + 1 :]:
            if numbers[other] in tables[u]:
                joint += np.expand_dims(tables[u][numbers[other]], [each for each in axes if each not in (axis, other)])
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


EXACT: Final = "exact"
PAPER: Final = "paper"
#: Shares of the seconds of transfers and updates that count, one candidate each: with overlap, the rest is hidden behind computation.
_VISIBLE = ((1.0, 1.0), (1.0, 0.5), (1.0, 0.2), (1.0, 0.0), (0.5, 1.0), (0.5, 0.5), (0.5, 0.2), (0.2, 0.2), (0.2, 0.0))


def cost_tables(
    network: Network,
    machine: Machine,
    costs: PlanCosts | None,
    server: str = "all-reduce",
    cost: Literal["exact", "paper", "repaired"] = EXACT,
    optimizer: tuple[str, str] = ("momentum", "foreach"),
) -> CostTables:
    """What every configuration with at most as many workers as the machine has devices costs, and every pair of them along an edge.

    `costs`: as strategies get them; None: the cost model's estimates for the machine. `server`: who sums gradients, as in data-parallel.
    `cost`: the bytes that really move over the machine's links, or the paper's costs, as printed or `repaired`.
    """
    with gc_paused():
        configurations = [tuple(network.legal(layer, len(machine.devices))) for layer in range(len(network.layers))]
        prices = Prices(machine, costs)
        compute_s = compute_tables(network, configurations, prices)
        if cost == PAPER:
            return paper_tables(network, machine, configurations, compute_s)
        exact = ExactCosts(network, machine, configurations, prices, server, optimizer).tables(compute_s)
        return exact if cost == EXACT else repaired(paper_tables(network, machine, configurations, compute_s), exact)


def cheapest_of(tables: CostTables, update: float = 1.0, transfer: float = 1.0) -> list[Configuration]:
    """The configuration of each layer with the smallest sum of `tables`; `update`, `transfer`: the share of their seconds that counts."""
    result = reduced(tables, update, transfer)
    return [options[choice] for options, choice in zip(tables.configurations, result.choices, strict=True)]


def reduced(tables: CostTables, update: float = 1.0, transfer: float = 1.0) -> Cheapest:
    """The choices behind `cheapest_of`, and the layers that were enumerated. Raises SchedcastError for a network that does not reduce."""
    try:
        return cheapest(tables.nodes(update), tables.edges(transfer))
    except IrreducibleError as error:
        names = [tables.network.layers[layer].name for layer in error.nodes]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        raise SchedcastError(
            f"the network does not reduce: {len(names)} layers with more than two neighbors each remain ({shown}), and there are too many"
            " ways to configure them together; give configurations in a file with deepa:config=FILE.json, or use data-parallel or owt",
            Code.MODEL,
        ) from error


def candidates(tables: CostTables, count: int) -> list[list[Configuration]]:
    """Up to `count` different choices to be compared by simulation, which knows what overlaps; the cheapest sum of costs first.

    Each is the cheapest if only a share of the seconds of transfers and updates counts, because the rest is hidden.
    """
    different = dict.fromkeys(tuple(cheapest_of(tables, update, transfer)) for transfer, update in _VISIBLE)
    return sorted(map(list, different), key=lambda chosen: tables.total(chosen).step_s)[:count]
