"""The best configuration of every layer of a network on a machine.

Worker k of every layer runs on device k, so that a layer with fewer workers than devices uses the first ones.
"""

from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.compute import Prices, compute_tables
from simulator.strategies.sharding.costs.exact import ExactCosts
from simulator.strategies.sharding.costs.paper import paper_tables
from simulator.strategies.sharding.costs.tables import CostTables
from simulator.strategies.sharding.elimination import Cheapest, IrreducibleError, cheapest
from simulator.strategies.sharding.network import Network
from traces.errors import SchedcastError
from traces.garbage import gc_paused

EXACT, PAPER = "exact", "paper"
#: Shares of the seconds of transfers and updates that count, one candidate each: with overlap, the rest is hidden behind computation.
_VISIBLE = ((1.0, 1.0), (1.0, 0.5), (1.0, 0.2), (1.0, 0.0), (0.5, 1.0), (0.5, 0.5), (0.5, 0.2), (0.2, 0.2), (0.2, 0.0))


def cost_tables(
    network: Network,
    machine: Machine,
    costs: PlanCosts | None,
    server: str = "all-reduce",
    cost: Literal["exact", "paper"] = EXACT,
    optimizer: tuple[str, str] = ("momentum", "foreach"),
) -> CostTables:
    """What every configuration with at most as many workers as the machine has devices costs, and every pair of them along an edge.

    `costs`: as strategies get them; None: the cost model's estimates for the machine. `server`: who sums gradients, as in image-parallel.
    """
    with gc_paused():
        configurations = [tuple(network.legal(layer, len(machine.devices))) for layer in range(len(network.layers))]
        prices = Prices(machine, costs)
        compute_s = compute_tables(network, configurations, prices)
        if cost == PAPER:
            return paper_tables(network, machine, configurations, compute_s)
        return ExactCosts(network, machine, configurations, prices, server, optimizer).tables(compute_s)


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
            " ways to configure them together; give configurations in a file with deepa:config=FILE.json, or use image-parallel or owt"
        ) from error


def candidates(tables: CostTables, count: int) -> list[list[Configuration]]:
    """Up to `count` different choices to be compared by simulation, which knows what overlaps; the cheapest sum of costs first.

    Each is the cheapest if only a share of the seconds of transfers and updates counts, because the rest is hidden.
    """
    different = dict.fromkeys(tuple(cheapest_of(tables, update, transfer)) for transfer, update in _VISIBLE)
    return sorted(map(list, different), key=lambda chosen: tables.total(chosen).step_s)[:count]
