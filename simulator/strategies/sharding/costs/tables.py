"""What every choice of configurations costs: tables by layer and by edge, whose sum is the cost of a whole network (DeePa, equation 1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.network import Edge, Network


class Total(NamedTuple):
    """Seconds of one step, and bytes that move between devices, if nothing overlaps."""

    compute_s: float
    update_s: float
    transfer_s: float
    update_bytes: float
    transfer_bytes: float

    @property
    def step_s(self) -> float:
        """The sum: what the search minimizes."""
        return self.compute_s + self.update_s + self.transfer_s

    @property
    def moved_bytes(self) -> float:
        """All bytes that move."""
        return self.update_bytes + self.transfer_bytes


class Transfer(NamedTuple):
    """Costs of the edge from layer `source` to layer `target`, forward and backward, [configurations of source, of target]."""

    source: int
    target: int
    seconds: np.ndarray
    bytes: np.ndarray


def transfers(network: Network, cost: Callable[[Edge], tuple[np.ndarray, np.ndarray]]) -> tuple[Transfer, ...]:
    """Costs of all edges, of which `cost` gives seconds and bytes; those of parallel edges are added."""
    sums: dict[tuple[int, int], Transfer] = {}
    for edge in network.edges:
        ends, (seconds, moved) = (edge.source, edge.target), cost(edge)
        if ends in sums:
            seconds, moved = sums[ends].seconds + seconds, sums[ends].bytes + moved
        sums[ends] = Transfer(*ends, seconds, moved)
    return tuple(sums.values())


@dataclass(frozen=True)
class CostTables:
    """By layer, its configurations and what each of them costs; and the edges between layers.

    `compute_s`: forward and backward. `update_s`, `update_bytes`: reducing the gradients of its parameters, and updating them.
    """

    network: Network
    configurations: tuple[tuple[Configuration, ...], ...]
    compute_s: tuple[np.ndarray, ...]
    update_s: tuple[np.ndarray, ...]
    update_bytes: tuple[np.ndarray, ...]
    transfers: tuple[Transfer, ...]

    def nodes(self, update: float = 1.0) -> list[np.ndarray]:
        """By layer, the seconds of each configuration. `update`: the share of the update's seconds that counts."""
        return [compute_s + update * update_s for compute_s, update_s in zip(self.compute_s, self.update_s, strict=True)]

    def edges(self, transfer: float = 1.0) -> list[tuple[int, int, np.ndarray]]:
        """(source, target, seconds) of each edge. `transfer`: the share of the seconds that counts."""
        return [(edge.source, edge.target, transfer * edge.seconds) for edge in self.transfers]

    def place(self, layer: int, configuration: Configuration) -> int:
        """The number of a configuration of a layer. Raises SchedcastError, with those that are possible, for any other."""
        if configuration not in self.configurations[layer]:
            raise self.network.refusal(layer, configuration, self.configurations[layer])
        return self.configurations[layer].index(configuration)

    def total(self, chosen: Sequence[Configuration]) -> Total:
        """What a choice of one configuration for each layer costs."""
        places = [self.place(layer, configuration) for layer, configuration in enumerate(chosen)]
        compute_s, update_s, update_bytes = (
            float(sum(own[place] for own, place in zip(table, places, strict=True)))
            for table in (self.compute_s, self.update_s, self.update_bytes)
        )
        ends = [(edge, (places[edge.source], places[edge.target])) for edge in self.transfers]
        transfer_s = float(sum(edge.seconds[pair] for edge, pair in ends))
        return Total(compute_s, update_s, transfer_s, update_bytes, float(sum(edge.bytes[pair] for edge, pair in ends)))
