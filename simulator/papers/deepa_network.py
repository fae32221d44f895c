"""A network of the DeePa paper with what its configurations cost, by the paper's costs and by those of what really moves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.scaled import AS_IT_IS, Scale, scaled
from simulator.model.job import Job
from simulator.predict.target import preset_target
from simulator.strategies import owt
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import nearest
from simulator.strategies.sharding.costs import exact
from simulator.strategies.sharding.costs.compute import Prices
from simulator.strategies.sharding.costs.exact import CostTables
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.regions import is_linear_layer


@dataclass(frozen=True)
class Divided:
    """A network with what its configurations cost, and the best of them.

    `tables`: the bytes that really move, on the machine's links. `printed`, `repaired`: the paper's costs, on its one pipe. `best`: the
    paper's choice, the cheapest of `repaired`. `costs_s`, `search_s`: seconds that all costs and that search took here, by the clock.
    """

    job: Job
    machine: Machine
    server: str
    model: CostModel
    network: Network
    tables: CostTables
    printed: CostTables
    repaired: CostTables
    best: tuple[Configuration, ...]
    costs_s: float
    search_s: float

    @classmethod
    def search(cls, job: Job, machine_name: str, server: str) -> "Divided":
        """Search the best configuration of each layer. `server`: who sums gradients."""
        target = preset_target(job, machine_name)
        machine, model = target.machine, target.costs
        network = Network(job.graph())
        start = perf_counter()
        tables = search.cost_tables(network, machine, model, server)
        printed = exact.paper_tables(network, machine, list(tables.configurations), list(tables.compute_s))
        repaired = exact.repaired(printed, tables)
        known = perf_counter()
        best = tuple(search.cheapest_of(repaired))
        return cls(
            job,
            machine,
            server,
            model=model,
            network=network,
            tables=tables,
            printed=printed,
            repaired=repaired,
            best=best,
            costs_s=known - start,
            search_s=perf_counter() - known,
        )

    @cached_property
    def fastest(self) -> list[Configuration]:
        """The cheapest choice by what really moves over the machine's links."""
        return search.cheapest_of(self.tables)

    @cached_property
    def nodes_left(self) -> int:
        """The nodes that elimination leaves."""
        return len(search.reduced(self.repaired).enumerated)

    @cached_property
    def as_printed(self) -> list[Configuration]:
        """The cheapest choice by the paper's costs as printed."""
        return search.cheapest_of(self.printed)

    def at_links(self, share: float) -> CostTables:
        """The costs of what really moves if all links reach this share of their rates."""
        return search.cost_tables(self.network, scaled(self.machine, Scale(link=share)), self.model, self.server)

    def if_computing(self, share: float) -> list[Configuration]:
        """The paper's choice if all layers took this share of their time to compute."""
        return search.cheapest_of(replace(self.repaired, compute_s=tuple(share * own for own in self.repaired.compute_s)))

    def by_image_s(self, layer: int, workers: int, tables: CostTables | None = None) -> float:
        """Seconds of a layer on `workers` workers by image, with the sum of its gradients (figure 2). `tables`: others than `tables`."""
        tables = tables or self.tables
        place = tables.place(layer, Configuration(n=workers))
        return float(tables.compute_s[layer][place] + tables.update_s[layer][place])

    def throughputs(self, layer: int, scale: Scale = AS_IT_IS) -> dict[Configuration, float]:
        """Images per second that a layer computes in each configuration on all devices, forward and backward (figure 1).

        `scale`: factors of the machine's figures.
        """
        machine = scaled(self.machine, scale)
        prices = Prices(machine, CostModel(machine, self.model.profile, self.model.precision))
        options = [own for own in self.tables.configurations[layer] if own.workers == len(machine.devices)]
        times = prices.compute_s(self.network, layer, options)
        return {own: self.job.batch / float(seconds) for own, seconds in zip(options, times, strict=True)}

    @cached_property
    def image(self) -> list[Configuration]:
        """Image parallelism."""
        by_image = Configuration(n=len(self.machine.devices))
        return [nearest(self.network, layer, by_image) for layer in range(len(self.network.layers))]

    @cached_property
    def owt(self) -> list[Configuration]:
        """OWT with equal parts: linear layers whose channels do not divide are divided by image."""
        return owt.configurations(self.network, len(self.machine.devices))

    @cached_property
    def uneven_owt(self) -> list[Configuration]:
        """OWT with all linear layers divided by channel among all devices, into unequal parts if need be."""
        by_channel = Configuration(c=len(self.machine.devices))
        return [by_channel if self.is_linear(layer) else self.image[layer] for layer in range(len(self.network.layers))]

    def is_linear(self, layer: int) -> bool:
        """Whether a layer is fully connected."""
        return is_linear_layer(self.network.graph.ops[self.network.layers[layer].main])

    def kind(self, layer: int) -> str:
        """The name of a layer's main op."""
        return self.network.graph.ops[self.network.layers[layer].main].body.target.split(".")[1]

    def paper_bytes(self, chosen: Sequence[Configuration]) -> float:
        """Bytes of a step by the paper's model."""
        network = self.network
        moved = sum(exact.update_bytes(network, layer, own) for layer, own in enumerate(chosen))
        return moved + sum(exact.transfer_bytes(network, edge, chosen[edge.source], chosen[edge.target]) for edge in network.edges)

    def exact_bytes(self, chosen: Sequence[Configuration]) -> float:
        """Bytes of a step that really move."""
        return self.tables.total(chosen).moved_bytes
