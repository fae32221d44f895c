"""What configurations of one layer cost by the paper's model, next to the bytes that really move (`schedcast deepa-cost`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.compute import Prices
from simulator.strategies.sharding.costs.exact import ExactCosts
from simulator.strategies.sharding.costs.paper import paper_tables
from simulator.strategies.sharding.network import Network


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

    By default they divide their images among all devices, or as many of them as possible. Raises SchedcastError, with the possible ones,
    for a configuration that a layer cannot have.
    """
    sources = dict.fromkeys(edge.source for edge in network.edges if edge.target == layer)
    for number, configuration in [(layer, own) for own in configurations] + [(source, given) for source in sources if given]:
        network.check(number, configuration, len(machine.devices))
    options = [(Configuration(),)] * len(network.layers)
    for source in sources:
        by_image = (own for own in network.legal(source, len(machine.devices)) if own.workers == own.n)
        options[source] = (given or max(by_image, key=lambda own: own.n),)
    options[layer] = tuple(dict.fromkeys(configurations))
    prices = Prices(machine, costs)
    compute_s = [np.zeros(len(own)) for own in options]
    compute_s[layer] = prices.compute_s(network, layer, options[layer])
    exact = ExactCosts(network, machine, options, prices, server).tables(compute_s)
    by_paper = paper_tables(network, machine, options, compute_s)
    return [
        LayerCost(
            configuration,
            sum(float(edge.seconds[0, place]) for edge in by_paper.transfers if edge.target == layer),
            float(compute_s[layer][place]),
            float(by_paper.update_s[layer][place]),
            sum(float(edge.bytes[0, place]) for edge in exact.transfers if edge.target == layer),
            float(exact.update_bytes[layer][place]),
        )
        for configuration in configurations
        for place in (exact.place(layer, configuration),)
    ]
