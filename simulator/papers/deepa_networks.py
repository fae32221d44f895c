"""A network of the DeePa paper on its machine: the configuration that the search finds, and the bytes of it and its rivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.predict.preset import preset_costs
from simulator.strategies import owt
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import nearest
from simulator.strategies.sharding.costs import paper
from simulator.strategies.sharding.costs.tables import CostTables
from simulator.strategies.sharding.network import Network
from traces.errors import Refusal

LINEAR = frozenset({"aten.addmm.default", "aten.mm.default"})


@dataclass(frozen=True)
class Divided:
    """A network with what its configurations cost (`cost=exact`), and the best of them."""

    job: Job
    machine: Machine
    model: CostModel
    network: Network
    tables: CostTables
    best: tuple[Configuration, ...]

    @classmethod
    def of(cls, job: Job, machine_name: str, server: str) -> "Divided":
        """Search the best configuration of each layer. `server`: who sums gradients."""
        machine, model = preset_costs(job, machine_name)
        network = Network(job.graph())
        tables = search.cost_tables(network, machine, model, server)
        return cls(job, machine, model, network, tables, tuple(search.cheapest_of(tables)))

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
        return self.network.graph.ops[self.network.layers[layer].main].body.target in LINEAR

    def kind(self, layer: int) -> str:
        """The name of a layer's main op."""
        return self.network.graph.ops[self.network.layers[layer].main].body.target.split(".")[1]

    def paper_bytes(self, chosen: Sequence[Configuration]) -> float:
        """Bytes of a step by the paper's model."""
        network = self.network
        moved = sum(paper.update_bytes(network, layer, own) for layer, own in enumerate(chosen))
        return moved + sum(paper.transfer_bytes(network, edge, chosen[edge.source], chosen[edge.target]) for edge in network.edges)

    def exact_bytes(self, chosen: Sequence[Configuration]) -> float:
        """Bytes of a step that really move."""
        return self.tables.total(chosen).moved_bytes


#: Networks with the configurations found, or why there are none, by the paper's name.
Found = Mapping[str, Divided | Refusal]
