"""The costs of the paper (`cost=paper`), as its table 2 implies them.

- Transfer of an edge: nothing between equal configurations, else 2 c |input|: the whole input goes to each of the reader's c parts along
  the channels, and its gradient comes back.
- Update of a layer: 2 (n h w) |W|: each of the n h w holders of a piece of the weights W sends its gradient and receives the new weights;
  nothing if there is one holder. Biases do not count.
All bytes share one pipe.
"""

from itertools import groupby

import numpy as np

from simulator.machine.machine import Machine
from simulator.shards.configuration import Configuration
from simulator.shards.costs.copies import Copies
from simulator.shards.costs.tables import CostTables, Transfer
from simulator.shards.costs.weights import weight_bytes
from simulator.shards.network import Edge, Network


def transfer_bytes(network: Network, edge: Edge, source: Configuration, target: Configuration) -> float:
    """Bytes of an edge between layers of these configurations, forward and backward."""
    return 0.0 if source == target else 2.0 * target.c * network.graph.ops[edge.reader].inputs[edge.position].bytes


def update_bytes(network: Network, layer: int, configuration: Configuration) -> float:
    """Bytes of the gradients and new weights of a layer."""
    return 0.0 if configuration.replicas == 1 else 2.0 * configuration.replicas * weight_bytes(network, layer)


def paper_tables(
    network: Network, machine: Machine, configurations: list[tuple[Configuration, ...]], compute_s: list[np.ndarray]
) -> CostTables:
    """The paper's costs on a machine. `compute_s`: by layer, the seconds of each configuration."""
    pipe = Copies(machine).slowest_bytes_per_s
    updates = [np.array([update_bytes(network, layer, own) for own in options]) for layer, options in enumerate(configurations)]
    transfers = []
    edges = sorted((edge for edge in network.edges if edge.source is not None), key=lambda edge: (edge.source, edge.target))
    for (source, target), parallel in groupby(edges, key=lambda edge: (edge.source, edge.target)):
        ends = [(a, b) for a in configurations[source] for b in configurations[target]]
        moved = np.zeros(len(ends))
        for edge in parallel:
            moved += [transfer_bytes(network, edge, *pair) for pair in ends]
        moved = moved.reshape(len(configurations[source]), -1)
        transfers.append(Transfer(source, target, moved / pipe, moved))
    seconds = tuple(moved / pipe for moved in updates)
    return CostTables(network, tuple(configurations), tuple(compute_s), seconds, tuple(updates), tuple(transfers))
