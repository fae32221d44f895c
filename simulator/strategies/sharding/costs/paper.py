"""The costs of the paper (`cost=paper`), as its table 2 implies them.

- Transfer of an edge: nothing between equal configurations, else 2 c |input|: the whole input goes to each of the reader's c parts along
  the channels, and its gradient comes back.
- Update of a layer: 2 (n h w) |W|: each of the n h w holders of a piece of the weights W sends its gradient and receives the new weights;
  nothing if there is one holder. Biases and normalizations do not count.
All bytes share one pipe.
"""

import numpy as np

from simulator.machine.machine import Machine
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.copies import Copies
from simulator.strategies.sharding.costs.tables import CostTables, transfers
from simulator.strategies.sharding.network import Edge, Network


def transfer_bytes(network: Network, edge: Edge, source: Configuration, target: Configuration) -> float:
    """Bytes of an edge between layers of these configurations, forward and backward."""
    return 0.0 if source == target else 2.0 * target.c * network.graph.ops[edge.reader].inputs[edge.position].bytes


def update_bytes(network: Network, layer: int, configuration: Configuration) -> float:
    """Bytes of the gradients and new weights of a layer: of its parameters with at least two dimensions."""
    weights = sum(operand.bytes for _, _, operand in network.parameters(layer) if len(operand.shape) > 1)
    return 0.0 if configuration.replicas == 1 else 2.0 * configuration.replicas * weights


def paper_tables(
    network: Network, machine: Machine, configurations: list[tuple[Configuration, ...]], compute_s: list[np.ndarray]
) -> CostTables:
    """The paper's costs on a machine. `compute_s`: by layer, the seconds of each configuration."""
    pipe = Copies(machine).slowest_bytes_per_s
    updates = [np.array([update_bytes(network, layer, own) for own in options]) for layer, options in enumerate(configurations)]

    def transfer(edge: Edge) -> tuple[np.ndarray, np.ndarray]:
        targets = configurations[edge.target]
        moved = np.array([[transfer_bytes(network, edge, own, target) for target in targets] for own in configurations[edge.source]])
        return moved / pipe, moved

    seconds = tuple(moved / pipe for moved in updates)
    return CostTables(network, tuple(configurations), tuple(compute_s), seconds, tuple(updates), transfers(network, transfer))
