"""The costs of what a plan of shards does (`cost=exact`): the bytes that really move, over the machine's links.

- Transfer of an edge: every worker receives what its part needs of the parts of others: halos, all channels, other images, also between
  equal configurations. In backward, the gradient of what it received goes back. Both take the time of copies that start together
  (`copies`).
- Update of a layer: the holders of a piece of the parameters sum its gradient, all pieces at the same time (`Copies.reduction`); then
  every holder updates its piece.
Worker k of every layer runs on device k.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from math import prod

import numpy as np

from simulator.machine.machine import Machine
from simulator.strategies.sharding.boxes import shape_of
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.compute import Prices
from simulator.strategies.sharding.costs.copies import Copies
from simulator.strategies.sharding.costs.moved import Sides
from simulator.strategies.sharding.costs.tables import CostTables, transfers
from simulator.strategies.sharding.network import Edge, Network

_ELEMENT_BYTES = 4


class ExactCosts:
    """Transfers and updates of a network's layers on a machine. `server`: who sums gradients, as in image-parallel."""

    def __init__(
        self,
        network: Network,
        machine: Machine,
        configurations: Sequence[tuple[Configuration, ...]],
        prices: Prices,
        server: str = "all-reduce",
        optimizer: tuple[str, str] = ("momentum", "foreach"),
    ):
        """`optimizer`: its name and form."""
        self._network, self._configurations = network, tuple(configurations)
        self._server = server
        workers = max((c.workers for options in configurations for c in options), default=1)
        self._copies = Copies(machine, prices.copy_s, workers)
        self._sides = Sides(network, self._configurations, workers)
        #: The layers whose outputs have a gradient: those with parameters, and all that read them.
        self._trained = {layer for layer in range(len(network.layers)) if network.parameters(layer)}
        for edge in network.edges:  # in forward order
            if edge.source in self._trained:
                self._trained.add(edge.target)
        self._flow_s = cache(self._copies.flow_s)  # by flows, of which equal edges have one object
        self._update_s = cache(lambda held: prices.update_s(held, *optimizer))

    def tables(self, compute_s: Sequence[np.ndarray]) -> CostTables:
        """All costs. `compute_s`: by layer, the seconds of each configuration."""
        known: dict[tuple, np.ndarray] = {}
        updates = []
        for layer, options in enumerate(self._configurations):
            ops = [self._network.graph.ops[op] for op, _, _ in self._network.parameters(layer)]
            key = (*(op.body.key(op) for op in ops), options)
            if key not in known:
                known[key] = self.update(layer)
            updates.append(known[key])
        seconds, moved = zip(*updates, strict=True)
        between = transfers(self._network, self.transfer)
        return CostTables(self._network, self._configurations, tuple(compute_s), seconds, moved, between)

    def update(self, layer: int) -> np.ndarray:
        """[2, configurations], the seconds until all pieces of a layer are updated, and the bytes that move for it."""
        options, costs = self._configurations[layer], []
        held = {channels: self._held(layer, channels) for channels in {configuration.c for configuration in options}}
        for configuration in options:
            own = sum(map(prod, held[configuration.c])) * _ELEMENT_BYTES
            reduced_s, moved = self._copies.reduction(holders(configuration), own, self._server)
            costs.append((reduced_s + self._update_s(held[configuration.c]), moved))
        return np.array(costs).T

    def _held(self, layer: int, channels: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the pieces of parameters that the first worker holds if channels are divided by this degree."""
        box = self._network.boxes(layer, Configuration(c=channels))[0]
        pieces = (self._network.needed_or_all(op, position, box) for op, position, _ in self._network.parameters(layer))
        return tuple(map(shape_of, pieces))

    def transfer(self, edge: Edge) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and bytes of an edge between layers, forward and backward, [configurations of source, of target]."""
        flows, operand = self._sides.flows(edge), self._network.graph.ops[edge.reader].inputs[edge.position]
        if flows is None:
            nothing = np.zeros((len(self._configurations[edge.source]), len(self._configurations[edge.target])))
            return nothing, nothing
        return self._flow_s(flows, edge.source in self._trained and operand.dtype.startswith(("float", "bfloat")))


@lru_cache(maxsize=4096)
def holders(configuration: Configuration) -> tuple[tuple[int, ...], ...]:
    """The workers that hold each piece of a layer's parameters: those with the same channels."""
    workers = np.arange(configuration.workers).reshape(configuration.n, configuration.c, -1)
    return tuple(map(tuple, workers.swapaxes(0, 1).reshape(configuration.c, -1).tolist()))
