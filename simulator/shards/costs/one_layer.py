"""What configurations of one layer cost by the paper's model, next to the bytes that really move (`stepcast deepa-cost`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.shards.configuration import Configuration
from simulator.shards.costs import paper
from simulator.shards.costs.compute import Prices, compute_s
from simulator.shards.costs.copies import Copies
from simulator.shards.costs.exact import ExactCosts
from simulator.shards.network import Network


@dataclass(frozen=True)
class LayerCost:
    """One configuration of a layer: the paper's seconds, and the bytes of a plan that move between devices for inputs and gradients.

    Transfers are those of the layer's inputs, forward and backward.
    """

    configuration: Configuration
    transfer_s: float
    compute_s: float
    update_s: float
    exact_transfer_bytes: float
    exact_update_bytes: float

    @property
    def total_s(self) -> float:
        """The sum of the three times."""
        return self.transfer_s + self.compute_s + self.update_s

    @property
    def exact_bytes(self) -> float:
        """All bytes that move."""
        return self.exact_transfer_bytes + self.exact_update_bytes


def layer_costs(
    network: Network,
    machine: Machine,
    costs: PlanCosts | None,
    layer: int,
    configurations: Sequence[Configuration],
    given: Configuration | None = None,
    server: str = "all-reduce",
) -> list[LayerCost]:
    """The costs of a layer in each of `configurations`. `given`: the configuration of the layers that it reads.

    By default they divide their images among all devices, or as many of them as possible. Raises StepcastError, with the possible ones, for
    a configuration that a layer cannot have.
    """
    edges = [edge for edge in network.edges if edge.target == layer and edge.source is not None]
    chosen = [(layer, configuration) for configuration in configurations] + [(edge.source, given) for edge in edges if given]
    for number, configuration in chosen:
        network.check(number, configuration, len(machine.devices))
    inputs = {edge.source: given or most_images(network, machine, edge.source) for edge in edges}
    options = [(Configuration(),)] * len(network.layers)
    for source, configuration in inputs.items():
        options[source] = (configuration,)
    options[layer] = tuple(dict.fromkeys(configurations))
    prices = Prices(machine, costs)
    exact, pipe = ExactCosts(network, machine, options, prices, server), Copies(machine).slowest_bytes_per_s
    moved = [exact.transfer(edge)[1] for edge in edges]
    seconds = compute_s(network, layer, options[layer], prices)
    return [
        LayerCost(
            configuration,
            sum(paper.transfer_bytes(network, edge, inputs[edge.source], configuration) for edge in edges) / pipe,
            float(seconds[place]),
            paper.update_bytes(network, layer, configuration) / pipe,
            float(sum(own[0, place] for own in moved)),
            exact.update(layer, configuration)[1],
        )
        for configuration in configurations
        for place in (options[layer].index(configuration),)
    ]


def most_images(network: Network, machine: Machine, layer: int) -> Configuration:
    """The configuration of a layer that divides images alone among the most devices."""
    legal = network.legal(layer, len(machine.devices))
    return max((c for c in legal if c.workers == c.n), key=lambda c: c.n)
