"""The costs of what a plan of shards does (`cost=exact`): the bytes that really move, over the machine's links.

- Transfer of an edge: every worker receives what its part needs of the parts of others: halos, all channels, other images, also between
  equal configurations. In backward, the gradient of what it received goes back. Both take the time of copies that start together
  (`copies`).
- Update of a layer: the holders of a piece of the parameters sum its gradient, all pieces at the same time (`Copies.reduction`); then
  every holder updates its piece.
Worker k of every layer runs on device k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.strategies.sharding.boxes import shape_of
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.compute import Prices
from simulator.strategies.sharding.costs.copies import Copies
from simulator.strategies.sharding.costs.moved import Sides
from simulator.strategies.sharding.network import Edge, Network

# What every choice of configurations costs: tables by layer and by edge, whose sum is the cost of a whole network (DeePa, equation 1).


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
    `pipe_bytes_per_s`: of the one pipe on which all bytes move in the paper's model; 0: they move on the machine's links.
    """

    network: Network
    configurations: tuple[tuple[Configuration, ...], ...]
    compute_s: tuple[np.ndarray, ...]
    update_s: tuple[np.ndarray, ...]
    update_bytes: tuple[np.ndarray, ...]
    transfers: tuple[Transfer, ...]
    pipe_bytes_per_s: float = 0.0

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


_ELEMENT_BYTES = 4


class ExactCosts:
    """Transfers and updates of a network's layers on a machine. `server`: who sums gradients, as in data-parallel."""

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
        return tuple(shape_of(piece) for piece in pieces if piece is not None)

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


# The costs of the paper (`cost=paper`), as its table 2 implies them.
# - Transfer of an edge: nothing between equal configurations, else 2 c |input|: the whole input goes to each of the reader's c parts along
# the channels, and its gradient comes back. - Update of a layer: 2 (n h w) |W|: each of the n h w holders of a piece of the weights W sends
# its gradient and receives the new weights;   nothing if there is one holder. Biases and normalizations do not count. All bytes share one
# pipe (`Machine.pipe_bytes_per_s`).


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
    pipe = machine.pipe_bytes_per_s or Copies(machine).slowest_bytes_per_s
    updates = [np.array([update_bytes(network, layer, own) for own in options]) for layer, options in enumerate(configurations)]

    def transfer(edge: Edge) -> tuple[np.ndarray, np.ndarray]:
        targets = configurations[edge.target]
        moved = np.array([[transfer_bytes(network, edge, own, target) for target in targets] for own in configurations[edge.source]])
        return moved / pipe, moved

    seconds = tuple(moved / pipe for moved in updates)
    return CostTables(
        network,
        configurations=tuple(configurations),
        compute_s=tuple(compute_s),
        update_s=seconds,
        update_bytes=tuple(updates),
        transfers=transfers(network, transfer),
        pipe_bytes_per_s=pipe,
    )


def repaired(paper: CostTables, exact: CostTables) -> CostTables:
    """The paper's costs with one line of section 3 read by its reason (`cost=repaired`).

    "xfer is zero if u and v have the same configuration, in which case no data is transferred": as printed, a chain of layers that are
    divided by channel costs nothing, although each worker needs all channels. Here a transfer between equal configurations is charged
    the bytes that really move (`exact`: none by image, halos by height and width, all other channels by channel), on the same pipe.
    """

    def charged(printed: Transfer, real: Transfer) -> Transfer:
        ends = [paper.configurations[layer] for layer in (printed.source, printed.target)]
        equal = np.array([[own == other for other in ends[1]] for own in ends[0]])
        moved = np.where(equal, real.bytes, printed.bytes)
        return printed._replace(seconds=moved / paper.pipe_bytes_per_s, bytes=moved)

    return replace(paper, transfers=tuple(map(charged, paper.transfers, exact.transfers)))


# What configurations of one layer cost by the paper's model, next to the bytes that really move (`schedcast reproduce deepa --layer`).


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
) -> list[LayerCost]:
    """The costs of a layer in each of `configurations`. `given`: the configuration of the layers that it reads.

    By default they divide their images among all devices, or as many of them as possible. Raises SchedcastError, with the possible ones,
    for a configuration that a layer cannot have.
    """
    sources = dict.fromkeys(edge.source for edge in network.edges if edge.target == layer)
    for number, configuration in [(layer, own) for own in configurations] + [(source, given) for source in sources if given]:
        network.check(number, configuration, len(machine.devices))
    options: list[tuple[Configuration, ...]] = [(Configuration(),)] * len(network.layers)
    for source in sources:
        by_image = (own for own in network.legal(source, len(machine.devices)) if own.workers == own.n)
        options[source] = (given or max(by_image, key=lambda own: own.n),)
    options[layer] = tuple(dict.fromkeys(configurations))
    prices = Prices(machine, costs)
    compute_s = [np.zeros(len(own)) for own in options]
    compute_s[layer] = prices.compute_s(network, layer, options[layer])
    exact = ExactCosts(network, machine, options, prices, "all-reduce").tables(compute_s)
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
