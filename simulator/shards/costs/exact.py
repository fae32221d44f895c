"""The costs of what a plan of shards does (`cost=exact`): the bytes that really move, over the machine's links.

- Transfer of an edge: every worker receives what its part needs of the parts of others: halos, all channels, other images, also between
  equal configurations. In backward, the gradient of what it received goes back. Both take the time of copies that start together
  (`copies`).
- Update of a layer: the holders of a piece of the parameters sum its gradient, all pieces at the same time (`Copies.reduction_s`); then
  every holder updates its piece.
Worker k of every layer runs on device k.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from simulator.machine.machine import Machine
from simulator.shards.boxes import shape_of
from simulator.shards.configuration import Configuration
from simulator.shards.costs.compute import Prices
from simulator.shards.costs.copies import Copies
from simulator.shards.costs.moved import Sides
from simulator.shards.costs.tables import CostTables, Transfer
from simulator.shards.costs.weights import parameters, pieces
from simulator.shards.network import Edge, Network

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
        self._network, self._configurations, self._prices = network, tuple(configurations), prices
        self._server, self._optimizer = server, optimizer
        workers = max((c.workers for options in configurations for c in options), default=1)
        self._copies = Copies(machine, prices.copy_s, workers)
        self._sides = Sides(network, self._configurations, workers)
        self._trained = _trained(network)
        self._updates: dict[tuple, tuple[float, float]] = {}
        self._update_s: dict[tuple[tuple[int, ...], ...], float] = {}
        self._pieces: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
        self._known: dict[tuple[int, bool], tuple[np.ndarray, np.ndarray]] = {}  # by flows, which `_sides` keeps

    def tables(self, compute_s: Sequence[np.ndarray]) -> CostTables:
        """All costs. `compute_s`: by layer, the seconds of each configuration."""
        known: dict[tuple, np.ndarray] = {}
        updates = []
        for layer, options in enumerate(self._configurations):
            ops = [self._network.graph.ops[op] for op, _, _ in parameters(self._network, layer)]
            key = (*(op.body.key(op) for op in ops), options)
            if key not in known:
                known[key] = np.array([self.update(layer, configuration) for configuration in options]).T
            updates.append(known[key])
        seconds, moved = zip(*updates, strict=True)
        return CostTables(self._network, self._configurations, tuple(compute_s), seconds, moved, tuple(self._transfers()))

    def update(self, layer: int, configuration: Configuration) -> tuple[float, float]:
        """Seconds until all pieces are updated, and the bytes that move for it."""
        held = self._held(layer, configuration)
        key = (configuration, *held)
        if key not in self._updates:
            own = sum(map(prod, held)) * _ELEMENT_BYTES
            reduced = self._copies.reduction_s(holders(configuration), own, self._server)
            moved = configuration.c * self._copies.reduction_bytes(configuration.replicas, own, self._server)
            if held not in self._update_s:
                self._update_s[held] = self._prices.update_s(held, *self._optimizer)
            self._updates[key] = reduced + self._update_s[held], moved
        return self._updates[key]

    def _held(self, layer: int, configuration: Configuration) -> tuple[tuple[int, ...], ...]:
        """The shapes of the pieces of parameters that the first worker holds. They depend on the channels alone."""
        key = layer, configuration.c
        if key not in self._pieces:
            box = self._network.boxes(layer, Configuration(c=configuration.c))[0]
            self._pieces[key] = tuple(shape_of(piece) for _, piece in pieces(self._network, layer, box))
        return self._pieces[key]

    def transfer(self, edge: Edge) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and bytes of an edge between layers, forward and backward, [configurations of source, of target]."""
        flows = self._sides.flows(edge)
        if flows is None:
            nothing = np.zeros((len(self._configurations[edge.source]), len(self._configurations[edge.target])))
            return nothing, nothing
        back = edge.source in self._trained and self._has_gradient(edge)
        if (id(flows), back) not in self._known:
            self._known[id(flows), back] = self._copies.flow_s(flows, back)
        return self._known[id(flows), back]

    def _transfers(self) -> list[Transfer]:
        """Transfers between layers; parallel edges are added."""
        sums: dict[tuple[int, int], Transfer] = {}
        for edge in self._network.edges:
            if edge.source is not None:
                seconds, moved = self.transfer(edge)
                ends = edge.source, edge.target
                known = sums.get(ends)
                sums[ends] = (
                    Transfer(*ends, seconds, moved) if known is None else Transfer(*ends, known.seconds + seconds, known.bytes + moved)
                )
        return list(sums.values())

    def _has_gradient(self, edge: Edge) -> bool:
        return self._network.graph.ops[edge.reader].inputs[edge.position].dtype.startswith(("float", "bfloat"))


@lru_cache(maxsize=4096)
def holders(configuration: Configuration) -> tuple[tuple[int, ...], ...]:
    """The workers that hold each piece of a layer's parameters: those with the same channels."""
    places = dict(enumerate(configuration.places()))
    return tuple(tuple(worker for worker, place in places.items() if place[1] == channel) for channel in range(configuration.c))


def _trained(network: Network) -> set[int]:
    """The layers whose outputs have a gradient: those with parameters, and all that read them."""
    trained = {layer for layer in range(len(network.layers)) if any(True for _ in parameters(network, layer))}
    for edge in network.edges:  # in forward order
        if edge.source in trained:
            trained.add(edge.target)
    return trained
