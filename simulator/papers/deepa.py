"""DeePa (under review for ICLR 2018): per-layer parallelism on 16 K80, 4 P100 and four nodes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from simulator.model.job import Job
from simulator.papers import deepa_claims as claims
from simulator.papers import registry
from simulator.papers.deepa_claims import (
    ALL,
    DEEPA,
    DEEPA_EXPOSED,
    DEEPA_LATE,
    FRAMEWORKS,
    IMAGE,
    IMAGE_EXPOSED,
    OWT,
    Batches,
    Divided,
    Found,
    Networks,
)
from simulator.papers.predicting import Steps, StepsByStrategy, figure, first_refusal, ratio, speedup, status_of
from simulator.papers.registry import line
from simulator.predict.preset import preset_costs
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs.exact import LayerCost, layer_costs
from simulator.strategies.sharding.network import Network as LayerNetwork
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, DividedLayer, DividedNetwork, Panel, Paper
from traces.errors import Refusal

PAPER = registry.get("deepa")
#: Who sums gradients.
SERVER = "distributed"
#: Section 7.1: images per step on 16 K80; section 7.3: images of each P100.
BATCH, PER_GPU = 512, 32
#: Section 7.3: one node, and four.
NODE, NODES = "p100x4", "4xp100x4"
#: The configurations of fc6: those of table 2, the one that was chosen (section 7.1.2), and others between them.
FC6 = (Configuration(n=16), *(Configuration(c=c) for c in (16, 2, 4, 8)), Configuration())
MIB = 2**20


@dataclass(frozen=True)
class Network:
    """A network. `model`, `large`: the built-in models for 1,000 and for 21,841 classes. `most`: the largest batch that the paper ran."""

    name: str
    model: str
    large: str
    most: int = 1024


class DeepaScope(Data):
    """What is predicted. `batches`: the range of figure 13. `clusters`: also P100. `large`: also 21,841 classes."""

    networks: tuple[Network, ...]
    batches: tuple[int, ...]
    clusters: bool
    large: bool


SCOPE = PAPER.scope(DeepaScope)


def predictions() -> int:
    """Return the number of predicted jobs and searched networks."""
    return len(SCOPE.networks) * (2 + 2 * SCOPE.clusters + 2 * SCOPE.large) + len([batch for _, batch in _sweep() if batch != BATCH])


def _sweep() -> list[tuple[Network, int]]:
    """Return the networks and batches of figure 13."""
    return [(network, batch) for network in SCOPE.networks for batch in SCOPE.batches if batch <= network.most]


def reproduce(steps: Steps) -> Paper:
    """Compute the paper's figures. A network that cannot be captured keeps its rows with that status."""
    divided = {network.name: _divided(network.model, steps) for network in SCOPE.networks}
    predicted = {network.name: steps.predict(Job(network.model, BATCH), ALL) for network in SCOPE.networks}
    batches = {
        (network.name, batch): predicted[network.name] if batch == BATCH else steps.predict(Job(network.model, batch), [FRAMEWORKS, DEEPA])
        for network, batch in _sweep()
    }
    fc6 = _fc6()
    tables = [
        PAPER.table("fc6", _fc6_rows(fc6)),
        PAPER.table("configurations", _configurations(divided)),
        PAPER.table("bytes", _bytes(divided)),
        PAPER.table("speedups", _speedups(predicted)),
        PAPER.table("steps", _seconds(predicted)),
        PAPER.table("batches", _batches(batches)),
    ]
    checks = [claims.two_workers_cheapest(fc6), *claims.of_configurations(divided), *claims.of_steps(predicted, batches)]
    if SCOPE.clusters:
        node = _cluster(steps, NODE, 4, [FRAMEWORKS, DEEPA, DEEPA_LATE])
        nodes = _cluster(steps, NODES, 16, [IMAGE, DEEPA])
        tables.append(PAPER.table("clusters", _clusters(node, nodes)))
        checks += claims.of_clusters(node, nodes)
    if SCOPE.large:
        large = {network.name: _divided(network.large, steps) for network in SCOPE.networks}
        wide = {network.name: steps.predict(Job(network.large, BATCH), [FRAMEWORKS, DEEPA]) for network in SCOPE.networks}
        tables.append(PAPER.table("imagenet-22k", _large(divided, large, predicted, wide)))
        checks += claims.of_large_networks(divided, large, predicted, wide)
    return PAPER.paper(steps, tables, checks, [_chart(batches)], networks=tuple(_pictures(divided)))


def _divided(model: str, steps: Steps) -> Divided | Refusal:
    return steps.attempt(f"configurations of {model}", lambda: Divided.search(Job(model, BATCH), steps.machine_name, SERVER))


def _fc6() -> list[LayerCost]:
    """Return what the configurations of the first linear layer of AlexNet cost."""
    job = Job("alexnet", BATCH)
    machine, model = preset_costs(job, PAPER.machine)
    network = LayerNetwork(job.graph())
    return layer_costs(network, machine, model, layer_called(network, "fc6"), FC6)


def _cluster(steps: Steps, machine: str, devices: int, texts: Sequence[str]) -> Networks:
    """Return by network the steps on another machine, with 32 images a GPU."""
    own = steps.on(machine)
    return {network.name: own.predict(Job(network.model, PER_GPU * devices), texts) for network in SCOPE.networks}


def _fc6_rows(costs: Sequence[LayerCost]) -> Iterator[tuple]:
    """Yield table 2: the first linear layer of AlexNet."""
    for cost in costs:
        labels = {"configuration": cost.configuration, "workers": cost.configuration.workers}
        values = (cost.transfer_s, cost.compute_s, cost.update_s, cost.total_s)
        yield labels, values, PAPER.values("fc6").get(str(cost.configuration), ())


def _configurations(divided: Found) -> Iterator[tuple]:
    """Yield figures 9 to 12: the configuration of each layer."""
    for name, own in divided.items():
        if isinstance(own, Refusal):
            yield {"network": name, "layers": "", "configuration": ""}, (), (), status_of(own)
            continue
        for configuration, stretch in groupby(zip(own.best, own.network.layers, strict=True), key=lambda pair: pair[0]):
            names = [layer.name for _, layer in stretch]
            layers = " to ".join(dict.fromkeys((names[0], names[-1])))
            yield {"network": name, "layers": layers, "configuration": configuration}, [configuration.workers]


def _bytes(divided: Found) -> Iterator[tuple]:
    """Yield figure 8: bytes that move in a step."""
    for name, own in divided.items():
        if isinstance(own, Refusal):
            yield {"network": name}, (), (), status_of(own)
            continue
        image, uneven, even, best = (own.paper_bytes(chosen) for chosen in (own.image, own.uneven_owt, own.owt, own.best))
        exact = [own.exact_bytes(chosen) for chosen in (own.image, own.owt, own.best)]
        values = (image, uneven, best, image / uneven, image / even, uneven / best, *exact)
        yield {"network": name}, values, (None, None, None, PAPER.values("owt_bytes").get(name))


def _status(steps: StepsByStrategy, *texts: str) -> str:
    """ "ok", or what is wrong with the first of the steps that is missing or does not fit."""
    return next((status for text in texts if (status := status_of(steps[text])) != OK), OK)


def _speedups(steps: Networks) -> Iterator[tuple]:
    """Yield figure 7: on 16 K80."""
    pairs = ((DEEPA, FRAMEWORKS), (OWT, IMAGE), (DEEPA, OWT), (IMAGE, IMAGE_EXPOSED), (DEEPA, DEEPA_EXPOSED))
    for name, own in steps.items():
        printed = [PAPER.values(what).get(name) for what in ("speedup", "owt")]
        yield {"network": name}, [speedup(own, *pair) for pair in pairs], printed, _status(own, *ALL)


def _seconds(steps: Networks) -> Iterator[tuple]:
    """Yield the steps behind figure 7."""
    for name, own in steps.items():
        yield {"network": name}, [figure(own[text]) for text in (FRAMEWORKS, IMAGE, OWT, DEEPA)], (), _status(own, *ALL)


def _batches(batches: Batches) -> Iterator[tuple]:
    """Yield figure 13: other batches on 16 K80."""
    for (name, batch), own in batches.items():
        printed = " to ".join(f"{end}x" for end in PAPER.values("batches").get(name, ()))
        labels = {"network": name, "batch": batch, "published": printed}
        yield labels, [speedup(own, DEEPA, FRAMEWORKS)], (), _status(own, FRAMEWORKS, DEEPA)


def _clusters(node: Networks, nodes: Networks) -> Iterator[tuple]:
    """Yield figure 14: 4 P100, and 4 nodes of them."""
    for name in node:
        for machine, own, rival in ((NODE, node[name], FRAMEWORKS), (NODES, nodes[name], IMAGE)):
            values = (speedup(own, DEEPA, rival), figure(own[rival]), figure(own[DEEPA]), speedup(own, DEEPA_LATE, DEEPA))
            yield {"network": name, "machine": machine}, values, [PAPER.values(machine).get(name)], _status(own, rival, DEEPA)


def _large(divided: Found, large: Found, steps: Networks, more: Networks) -> Iterator[tuple]:
    """Yield figure 16: ImageNet-22K."""
    printed = (None, PAPER.values("large, MiB")["DeePa"] * MIB, None, None, 1 / PAPER.values("large, throughput")["DeePa"])
    for name, small in divided.items():
        wide = large[name]
        if isinstance(small, Refusal) or isinstance(wide, Refusal):
            yield {"network": name}, (), (), status_of(first_refusal(small, wide))
            continue
        image, best = wide.paper_bytes(wide.image), wide.paper_bytes(wide.best)
        longer = [ratio(figure(more[name][text]), figure(steps[name][text])) for text in (FRAMEWORKS, DEEPA)]
        values = (image - small.paper_bytes(small.image), best - small.paper_bytes(small.best), image / best, *longer)
        yield {"network": name}, values, printed, _status(more[name], FRAMEWORKS, DEEPA)


def _chart(batches: Batches) -> Chart:
    """Figure 13: the speed-up over the batch, with the published range."""
    panels = []
    for name in dict.fromkeys(name for name, _ in batches):
        gains = {batch: speedup(own, DEEPA, FRAMEWORKS) for (other, batch), own in batches.items() if other == name}
        points = [(batch, gain) for batch, gain in gains.items() if gain is not None]
        if not points:
            continue
        ends = zip(("least published", "largest published"), PAPER.values("batches").get(name, ()), strict=False)
        printed = (line(end, ((batch, value) for batch, _ in points), published=True) for end, value in ends)
        panels.append(Panel(title=name, series=(line("predicted", points), *printed)))
    return PAPER.chart("batches", panels)


def _pictures(divided: Found) -> Iterator[DividedNetwork]:
    """Yield figures 9 to 12: each network with its layers as the search divides them."""
    for name, own in divided.items():
        if isinstance(own, Divided):
            title = f"{name} on 16 K80, batch {BATCH}: how the search divides each layer"
            yield DividedNetwork(name=own.job.model.replace("_", "-"), title=title, layers=tuple(_layers(own)))


def _layers(own: Divided) -> Iterator[DividedLayer]:
    inputs: dict[int, dict[int, None]] = {}
    for edge in own.network.edges:
        inputs.setdefault(edge.target, {})[edge.source] = None
    for number, (layer, configuration) in enumerate(zip(own.network.layers, own.best, strict=True)):
        read, degrees = tuple(inputs.get(number, ())), configuration.degrees
        yield DividedLayer(name=layer.name, kind=own.kind(number), shape=layer.shape, degrees=degrees, inputs=read)
