"""The DeePa paper's claims, judged from predicted steps and the networks' best configurations. Networks go by the paper's names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.predicting import StepsByStrategy, figure, ratio, speedup
from simulator.predict.preset import preset_costs
from simulator.strategies import owt
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import nearest
from simulator.strategies.sharding.costs import exact
from simulator.strategies.sharding.costs.exact import CostTables, LayerCost
from simulator.strategies.sharding.network import Network
from traces.documents.reproduction import Check
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
    def search(cls, job: Job, machine_name: str, server: str) -> "Divided":
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
        moved = sum(exact.update_bytes(network, layer, own) for layer, own in enumerate(chosen))
        return moved + sum(exact.transfer_bytes(network, edge, chosen[edge.source], chosen[edge.target]) for edge in network.edges)

    def exact_bytes(self, chosen: Sequence[Configuration]) -> float:
        """Bytes of a step that really move."""
        return self.tables.total(chosen).moved_bytes


#: Networks with the configurations found, or why there are none, by the paper's name.
Found = Mapping[str, Divided | Refusal]


#: The paper's systems as strategies. The frameworks are TensorFlow and PyTorch.
FRAMEWORKS = "data-parallel:server=host"
IMAGE = "data-parallel:server=distributed"
OWT = "owt:server=distributed"
DEEPA = "deepa:server=distributed"
IMAGE_EXPOSED, DEEPA_EXPOSED, DEEPA_LATE = f"{IMAGE},overlap=off", f"{DEEPA},overlap=off", f"{DEEPA},update=asynchronous"
ALL = (FRAMEWORKS, IMAGE, OWT, DEEPA, IMAGE_EXPOSED, DEEPA_EXPOSED)
#: A layer on at most this share of the devices is on few of them.
_FEW = 0.5

#: Predicted steps by network, and by network and batch.
Networks = Mapping[str, StepsByStrategy]
Batches = Mapping[tuple[str, int], StepsByStrategy]

claim = registry.get("deepa").claim
published = registry.get("deepa").values


def two_workers_cheapest(costs: Sequence[LayerCost]) -> Check:
    """Judge: two workers by channel are the cheapest for fc6."""
    ordered = sorted(costs, key=lambda cost: cost.total_s)
    said = "; ".join(f"{cost.configuration} {1e3 * cost.total_s:.1f} ms" for cost in ordered[:4])
    figures = {f"total_s of {cost.configuration}": cost.total_s for cost in costs}
    return claim("fc6").judged(ordered[0].configuration == Configuration(c=2), said, figures)


def of_configurations(divided: Found) -> Iterator[Check]:
    """Judge what the search finds, and the bytes that it moves."""
    known = {name: own for name, own in divided.items() if isinstance(own, Divided)}
    yield _images_in_convolutions(known.get("AlexNet"))
    yield _few_for_linear(known)
    yield _four_for_last_of_vgg(known.get("VGG-16"))
    yield _branches_differ(known.get("Inception-v3"))
    printed, owt = published("owt_bytes"), {name: own.paper_bytes(own.uneven_owt) for name, own in known.items()}
    ratios = {name: (own.paper_bytes(own.image) / owt[name], printed[name]) for name, own in known.items() if name in printed}
    yield claim("bytes of OWT").each(ratios, _around(printed))
    yield claim("bytes of DeePa").each({name: (owt[name] / own.paper_bytes(own.best),) for name, own in known.items()})


def _around(printed: Mapping[str, float]) -> dict[str, tuple[tuple[float, float]]]:
    return {name: ((value, value),) for name, value in printed.items()}


def _images_in_convolutions(own: Divided | None) -> Check:
    """Judge: AlexNet's convolutions and poolings divide images among all GPUs."""
    if own is None:
        return claim("AlexNet's convolutions").unjudged()
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) in ("convolution", "max_pool2d_with_indices")]
    same = sum(own.best[layer] == own.image[layer] for layer in layers)
    figures = {"layers": len(layers), "as published": same}
    return claim("AlexNet's convolutions").judged(same == len(layers), f"{same} of {len(layers)} layers", figures)


def _few_for_linear(known: Mapping[str, Divided]) -> Check:
    """Judge: linear layers use model parallelism on few GPUs."""
    chosen = {
        f"{name} {own.network.layers[layer].name}": own.best[layer]
        for name, own in known.items()
        for layer in range(len(own.best))
        if own.is_linear(layer)
    }
    if not chosen:
        return claim("linear layers").unjudged()
    most = _FEW * max(len(own.machine.devices) for own in known.values())
    holds = all(c.replicas == 1 and c.workers <= most for c in chosen.values())
    said = "; ".join(f"{name} {configuration}" for name, configuration in chosen.items())
    return claim("linear layers").judged(holds, said, {name: c.workers for name, c in chosen.items()})


def _four_for_last_of_vgg(own: Divided | None) -> Check:
    """Judge: VGG-16's last three convolutions use four GPUs, with height and width."""
    own_claim = claim("VGG-16's last convolutions")
    if own is None:
        return own_claim.unjudged()
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) == "convolution"][-3:]
    holds = all(own.best[layer].workers == 4 and own.best[layer].h * own.best[layer].w > 1 for layer in layers)
    said = "; ".join(f"{own.network.layers[layer].name} {own.best[layer]}" for layer in layers)
    changed = [Configuration(h=2, w=2) if layer in layers else best for layer, best in enumerate(own.best)]
    slower = own.tables.total(changed).step_s / own.tables.total(own.best).step_s
    return own_claim.judged(holds, said, {"cost of h=2,w=2": slower}, own_claim.reason.format(slower=slower))


def _branches_differ(own: Divided | None) -> Check:
    """Judge: the branches of InceptionE1 have different configurations."""
    if own is None:
        return claim("InceptionE1").unjudged()
    branches = {
        layer.name: own.best[number]
        for number, layer in enumerate(own.network.layers)
        if layer.name.startswith("Mixed_7b.") and own.kind(number) == "convolution"
    }
    kinds = sorted({str(configuration) for configuration in branches.values()})
    figures = {name: configuration.workers for name, configuration in branches.items()}
    return claim("InceptionE1").judged(len(kinds) > 1, f"its convolutions have {' and '.join(kinds)}", figures)


def of_steps(steps: Networks, batches: Batches) -> Iterator[Check]:
    """Judge the speed-ups on 16 K80."""
    yield _order_of_gains(steps)
    yield claim("OWT over image parallelism").each(_gains(steps, OWT, IMAGE), _around(published("owt")))
    yield claim("overlap").each(_gains(steps, DEEPA, DEEPA_EXPOSED))
    by_batch = _gains({f"{name} {batch}": own for (name, batch), own in batches.items()}, DEEPA, FRAMEWORKS)
    ranges = {f"{name} {batch}": (published("batches")[name],) for name, batch in batches if name in published("batches")}
    yield claim("speed-ups by batch").each(by_batch, ranges)


def _gains(steps: Networks, text: str, over: str) -> dict[str, tuple[float | None]]:
    return {name: (speedup(own, text, over),) for name, own in steps.items()}


def _order_of_gains(steps: Networks) -> Check:
    """Judge: AlexNet gains most and Inception-v3 least, and DeePa is faster than OWT, which is faster than image parallelism."""
    gains = {name: speedup(own, DEEPA, FRAMEWORKS) for name, own in steps.items()}
    factors = [speedup(own, *pair) for own in steps.values() for pair in ((DEEPA, OWT), (OWT, IMAGE))]
    if None in (*gains.values(), *factors) or len(gains) < 2:
        return claim("order of gains").unjudged()
    holds = list(gains.values()) == sorted(gains.values(), reverse=True) and min(factors) > 1
    return claim("order of gains").judged(holds, "; ".join(f"{name} {gain:.2f}x" for name, gain in gains.items()), gains)


def of_clusters(node: Networks, nodes: Networks) -> Iterator[Check]:
    """Judge: DeePa gains more on four nodes than on one, where synchronous training is as fast as asynchronous training."""
    gains = {name: (speedup(node[name], DEEPA, FRAMEWORKS), speedup(nodes[name], DEEPA, IMAGE)) for name in node}
    yield claim("gain by nodes").each(gains)
    yield as_fast_as_asynchronous(node)


def as_fast_as_asynchronous(node: Networks) -> Check:
    """Judge: with overlap, synchronous training is as fast as asynchronous training on one node."""
    return claim("asynchronous").each(_gains(node, DEEPA_LATE, DEEPA))


def of_large_networks(divided: Found, large: Found, steps: Networks, more: Networks) -> Iterator[Check]:
    """Judge what ImageNet-22K adds to the bytes and steps of image parallelism and of DeePa, and how many times less DeePa moves."""
    pairs = {n: (own, wide) for n, own in divided.items() if isinstance(own, Divided) and isinstance(wide := large.get(n), Divided)}
    for rival, chosen in (("image", attrgetter("image")), ("DeePa", attrgetter("best"))):
        added = {n: wide.paper_bytes(chosen(wide)) - own.paper_bytes(chosen(own)) for n, (own, wide) in pairs.items()}
        yield claim(f"ImageNet-22K, {rival}").each({name: (value, value / 1e6) for name, value in added.items()})
    ratios = {name: (wide.paper_bytes(wide.image) / wide.paper_bytes(wide.best),) for name, (_, wide) in pairs.items()}
    yield claim("ImageNet-22K, ratio").each(ratios)
    slower = {n: tuple(ratio(figure(more[n][text]), figure(own[text])) for text in (FRAMEWORKS, DEEPA)) for n, own in steps.items()}
    left = published("large, throughput")
    least, most = left["frameworks"]
    yield claim("ImageNet-22K, steps").each(slower, dict.fromkeys(slower, ((1 / most, 1 / least), (None, 1 / left["DeePa"]))))
