"""DeePa (under review for ICLR 2018): per-layer parallelism on 16 K80, 4 P100 and four nodes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from simulator.model.job import Job
from simulator.papers import deepa_claims as claims
from simulator.papers import registry
from simulator.papers.deepa_claims import (
    ALL,
    DEEPA,
    DEEPA_CHOICE,
    DEEPA_EXPOSED,
    DEEPA_LATE,
    FRAMEWORKS,
    IMAGE,
    IMAGE_EXPOSED,
    OWT,
    PYTORCH,
    TENSORFLOW,
    TENSORFLOW_NODES,
    Batches,
    Divided,
    Found,
    Networks,
)
from simulator.papers.deepa_figures import Layers, pictures
from simulator.papers.predicting import Steps, StepsByStrategy, figure, first_refusal, ratio, speedup, status_of
from simulator.papers.registry import gain_words, line
from simulator.predict.target import preset_target
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs.exact import LayerCost, layer_costs
from simulator.strategies.sharding.network import Network as LayerNetwork
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, Panel, Paper
from traces.errors import Refusal

PAPER = registry.get("deepa")
#: Who sums gradients.
SERVER = "distributed"
#: Section 7.1: images per step on 16 K80; section 7.3: images of each P100.
BATCH, PER_GPU = 512, 32
#: Section 7.3: one node, and four.
NODE, NODES = "p100x4", "4xp100x4"
#: The job of table 2, which divides its layer fc6.
LAYER_JOB = "alexnet", BATCH
#: The configurations of fc6: those of table 2, the one that was chosen (section 7.1.2), and others between them.
FC6 = (Configuration(n=16), *(Configuration(c=c) for c in (16, 2, 4, 8)), Configuration())
MIB = 2**20
#: Shares of the links' rates at which P100, and AlexNet on 16 K80, are predicted again.
HALF, OTHERS = 1 / 2, (4.0, 2.0, 0.04)
SHARED = (*FRAMEWORKS, IMAGE, OWT, DEEPA, DEEPA_EXPOSED)


@dataclass(frozen=True)
class Network:
    """A network. `model`, `large`: the built-in models for 1,000 and for 21,841 classes. `most`: the largest batch that the paper ran."""

    name: str
    model: str
    large: str
    most: int = 1024


class DeepaScope(Data):
    """What is predicted. `batches`: the range of figure 13. `clusters`: also P100. `large`: also 21,841 classes.

    `slower`: also with slower links. `convolutions`: by name in table 1, the network and the layer. `layers`: those of figure 2, of
    Inception-v3.
    """

    networks: tuple[Network, ...]
    batches: tuple[int, ...]
    clusters: bool
    large: bool
    slower: bool
    convolutions: dict[str, tuple[str, str]]
    layers: tuple[str, ...]


SCOPE = PAPER.scope(DeepaScope)
#: Options of `schedcast predict`: `PaperCase.asks`.
Asks = Mapping[str, tuple[str, ...]]


def predictions() -> int:
    """Return the number of predicted jobs and searched networks."""
    machines = 1 + 2 * SCOPE.clusters
    each = 1 + machines * (1 + SCOPE.slower) + 2 * SCOPE.large
    each_machine = sum(network.name == "VGG-16" for network in SCOPE.networks) * SCOPE.clusters
    return len(SCOPE.networks) * each + each_machine + len(OTHERS) * SCOPE.slower + len([batch for _, batch in _sweep() if batch != BATCH])


def _sweep() -> list[tuple[Network, int]]:
    """Return the networks and batches of figure 13."""
    return [(network, batch) for network in SCOPE.networks for batch in SCOPE.batches if batch <= network.most]


def reproduce(steps: Steps) -> Paper:
    """Compute the paper's figures. A network that cannot be captured retains its rows with that status."""
    divided = {network.name: _divided(network.model, steps) for network in SCOPE.networks}
    predicted = {network.name: steps.predict(Job(network.model, BATCH), ALL) for network in SCOPE.networks}
    batches = {
        (network.name, batch): predicted[network.name] if batch == BATCH else steps.predict(Job(network.model, batch), [*FRAMEWORKS, DEEPA])
        for network, batch in _sweep()
    }
    slower = _networks(steps.under(links=claims.THIRD), BATCH, SHARED) if SCOPE.slower else {}
    first = SCOPE.networks[0]
    others = {share: steps.under(links=share).predict(Job(first.model, BATCH), SHARED) for share in OTHERS if SCOPE.slower}
    asked = {network.name: steps.asks(Job(network.model, BATCH), *FRAMEWORKS, IMAGE, OWT, DEEPA) for network in SCOPE.networks}
    fc6, layers = _fc6(), Layers(divided, SCOPE.convolutions, SCOPE.layers, SCOPE.batches[:2])
    tables = [
        PAPER.table("fc6", _fc6_rows(fc6)),
        *layers.tables(),
        PAPER.table("configurations", _configurations(divided)),
        PAPER.table("search", _searches(divided)),
        PAPER.table("bytes", _bytes(divided)),
        PAPER.table("speedups", _speedups(predicted, asked)),
        PAPER.table("steps", _seconds(predicted, asked)),
        PAPER.table("batches", _batches(batches, steps)),
    ]
    checks = [claims.two_workers_cheapest(fc6), claims.of_fc6(fc6), *claims.of_configurations(divided), *layers.checks()]
    checks += claims.of_steps(predicted, slower, batches, others)
    rates = [*(("16 K80", share, {first.name: own}) for share, own in others.items()), ("16 K80", claims.THIRD, slower)]
    if SCOPE.clusters:
        pair = [steps.on(NODE), steps.on(NODES)]
        forms = (4 * PER_GPU, (*FRAMEWORKS, IMAGE, DEEPA)), (16 * PER_GPU, (TENSORFLOW_NODES, IMAGE, DEEPA))
        more = (forms[0][0], (*forms[0][1], DEEPA_LATE, DEEPA_EXPOSED))
        node, nodes = (_networks(own, *form) for own, form in zip(pair, (more, forms[1]), strict=True))
        halves = [_networks(own.under(links=HALF), *form) if SCOPE.slower else {} for own, form in zip(pair, forms, strict=True)]
        rates += [(name, HALF, own) for name, own in zip((NODE, NODES), halves, strict=True)]
        tables.append(PAPER.table("clusters", _clusters(node, nodes)))
        checks += claims.of_clusters(node, nodes, halves)
        vgg = next((network for network in SCOPE.networks if network.name == "VGG-16"), None)
        checks.append(claims.on_four(_divided_on_node(vgg, pair[0]) if vgg else None))
    tables.append(PAPER.table("rates", _rates(rates)))
    if SCOPE.large:
        large = {network.name: _divided(network.large, steps) for network in SCOPE.networks}
        wide = {network.name: steps.predict(Job(network.large, BATCH), [*FRAMEWORKS, DEEPA]) for network in SCOPE.networks}
        tables.append(PAPER.table("imagenet-22k", _large(divided, large, predicted, wide)))
        checks += claims.of_large_networks(divided, large, predicted, wide)
    charts = [_chart(batches), *layers.charts()]
    known = {name: (gain, speedup(own, DEEPA, IMAGE)) for name, own in predicted.items() if (gain := claims.over_best(own))}
    finding = ("; ".join(f"{name} {gain_words(gains[place])}" for name, gains in known.items()) for place in (0, 1))
    return PAPER.paper(steps, tables, checks, charts, finding=finding, networks=tuple(pictures(divided, BATCH)))


def _divided(model: str, steps: Steps) -> Divided | Refusal:
    return steps.attempt(f"configurations of {model}", lambda: Divided.search(Job(model, BATCH), steps.machine_name, SERVER))


def _divided_on_node(network: Network, steps: Steps) -> Divided | None:
    own = steps.attempt(network.name, lambda: Divided.search(Job(network.model, 4 * PER_GPU), steps.machine_name, SERVER))
    return own if isinstance(own, Divided) else None


def _fc6() -> list[LayerCost]:
    """Return what the configurations of the first linear layer of AlexNet cost."""
    job = Job(*LAYER_JOB)
    target = preset_target(job, PAPER.machine)
    machine, model = target.machine, target.costs
    network = LayerNetwork(job.graph())
    return layer_costs(network, machine, model, layer_called(network, "fc6"), FC6)


def _networks(steps: Steps, batch: int, texts: Sequence[str]) -> Networks:
    """Return by network the steps of some strategies."""
    return {network.name: steps.predict(Job(network.model, batch), texts) for network in SCOPE.networks}


def _fc6_rows(costs: Sequence[LayerCost]) -> Iterator[tuple]:
    """Yield table 2: the first linear layer of AlexNet."""
    for cost in costs:
        labels = {"configuration": cost.configuration, "workers": cost.configuration.workers}
        values = (cost.transfer_s, cost.compute_s, cost.update_s, cost.total_s)
        yield labels, values, PAPER.values("fc6").get(str(cost.configuration), ())


def _searches(divided: Found) -> Iterator[tuple]:
    """Yield the seconds of the search."""
    for name, own in divided.items():
        figures = (own.search_s, own.costs_s, len(own.network.layers)) if isinstance(own, Divided) else ()
        printed = PAPER.values("search").get(name)
        yield {"network": name}, figures, (printed,), OK if isinstance(own, Divided) else status_of(own)


def _rates(rates: Sequence[tuple[str, float, Networks]]) -> Iterator[tuple]:
    """Yield the speed-ups with links at a share of their rates."""
    for machine, share, networks in rates:
        for name, own in networks.items():
            pairs = (
                (DEEPA, own_rival(own, TENSORFLOW)),
                (DEEPA, own_rival(own, PYTORCH)),
                (OWT, IMAGE),
                (DEEPA, OWT),
                (DEEPA, DEEPA_EXPOSED),
            )
            yield (
                {"network": name, "machine": machine, "links": f"{share:.2f}"},
                [speedup(own, *pair) for pair in pairs],
                (),
                _status(own, DEEPA),
            )


def own_rival(own: StepsByStrategy, framework: str) -> str:
    """The framework's strategy on this machine: on several nodes, TensorFlow's servers are spread, and PyTorch sums as DeePa does."""
    return framework if framework in own else {TENSORFLOW: TENSORFLOW_NODES, PYTORCH: IMAGE}[framework]


def _configurations(divided: Found) -> Iterator[tuple]:
    """Yield figures 9 to 12: the configuration of each layer, by the paper's costs, repaired and as printed, and by the bytes that really
    move."""
    for name, own in divided.items():
        if isinstance(own, Refusal):
            yield {"network": name, "costs": "", "layers": "", "configuration": ""}, (), (), status_of(own)
            continue
        for costs, chosen in (("paper, repaired", own.best), ("paper, printed", own.as_printed), ("exact", own.fastest)):
            for configuration, stretch in groupby(zip(chosen, own.network.layers, strict=True), key=lambda pair: pair[0]):
                names = [layer.name for _, layer in stretch]
                layers = " to ".join(dict.fromkeys((names[0], names[-1])))
                yield {"network": name, "costs": costs, "layers": layers, "configuration": configuration}, [configuration.workers]


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


def _if_predicted(steps: StepsByStrategy, asked: Asks) -> Asks:
    """What asks for the steps, nothing if there are none."""
    return asked if figure(steps[DEEPA]) else {}


def _status(steps: StepsByStrategy, *texts: str) -> str:
    """ "ok", or what is wrong with the first of the steps that is missing or does not fit."""
    return next((status for text in texts if (status := status_of(steps[text])) != OK), OK)


def _speedups(steps: Networks, asked: Mapping[str, Asks]) -> Iterator[tuple]:
    """Yield figure 7: on 16 K80."""
    pairs = ((DEEPA, TENSORFLOW), (DEEPA, PYTORCH), (OWT, IMAGE), (DEEPA, OWT), (IMAGE, IMAGE_EXPOSED), (DEEPA, DEEPA_EXPOSED))
    for name, own in steps.items():
        printed = [PAPER.values(what).get(name) for what in ("speedup", "speedup", "owt", "further")]
        yield {"network": name}, [speedup(own, *pair) for pair in pairs], printed, _status(own, *ALL), (), _if_predicted(own, asked[name])


def _seconds(steps: Networks, asked: Mapping[str, Asks]) -> Iterator[tuple]:
    """Yield the steps behind figure 7."""
    for name, own in steps.items():
        values = [figure(own[text]) for text in (*FRAMEWORKS, IMAGE, OWT, DEEPA, DEEPA_CHOICE)]
        yield {"network": name}, values, (), _status(own, *ALL), (), _if_predicted(own, asked[name])


def _batches(batches: Batches, steps: Steps) -> Iterator[tuple]:
    """Yield figure 13: other batches on 16 K80."""
    models = {network.name: network.model for network in SCOPE.networks}
    for (name, batch), own in batches.items():
        printed = " to ".join(f"{end}x" for end in PAPER.values("batches").get(name, ()))
        labels = {"network": name, "batch": batch, "published": printed}
        asks = _if_predicted(own, steps.asks(Job(models[name], batch), *FRAMEWORKS, DEEPA))
        yield labels, [speedup(own, DEEPA, rival) for rival in FRAMEWORKS], (), _status(own, *FRAMEWORKS, DEEPA), (), asks


def _clusters(node: Networks, nodes: Networks) -> Iterator[tuple]:
    """Yield figure 14: 4 P100, and 4 nodes of them."""
    for name in node:
        for machine, own in ((NODE, node[name]), (NODES, nodes[name])):
            rivals = [own_rival(own, framework) for framework in FRAMEWORKS]
            seconds = [figure(own[text]) for text in (*rivals, DEEPA)]
            values = [*(speedup(own, DEEPA, rival) for rival in rivals), *seconds, speedup(own, DEEPA_LATE, DEEPA)]
            yield {"network": name, "machine": machine}, values, [PAPER.values(machine).get(name)] * 2, _status(own, *rivals, DEEPA)


def _large(divided: Found, large: Found, steps: Networks, more: Networks) -> Iterator[tuple]:
    """Yield figure 16: ImageNet-22K."""
    printed = (None, PAPER.values("large, MiB")["DeePa"] * MIB, None, None, None, 1 / PAPER.values("large, throughput")["DeePa"])
    for name, small in divided.items():
        wide = large[name]
        if isinstance(small, Refusal) or isinstance(wide, Refusal):
            yield {"network": name}, (), (), status_of(first_refusal(small, wide))
            continue
        image, best = wide.paper_bytes(wide.image), wide.paper_bytes(wide.best)
        longer = [ratio(figure(more[name][text]), figure(steps[name][text])) for text in (*FRAMEWORKS, DEEPA)]
        values = (image - small.paper_bytes(small.image), best - small.paper_bytes(small.best), image / best, *longer)
        yield {"network": name}, values, printed, _status(more[name], *FRAMEWORKS, DEEPA)


def _chart(batches: Batches) -> Chart:
    """Figure 13: the speed-up over the batch, with the published range."""
    panels = []
    for name in dict.fromkeys(name for name, _ in batches):
        lines = []
        for rival, text in (("over TensorFlow", TENSORFLOW), ("over PyTorch", PYTORCH)):
            gains = {batch: speedup(own, DEEPA, text) for (other, batch), own in batches.items() if other == name}
            lines.append(line(rival, [(batch, gain) for batch, gain in gains.items() if gain is not None]))
        if not lines[0].x:
            continue
        ends = zip(("least published", "largest published"), PAPER.values("batches").get(name, ()), strict=False)
        printed = (line(end, ((batch, value) for batch in lines[0].x), published=True) for end, value in ends)
        panels.append(Panel(title=name, series=(*lines, *printed)))
    return PAPER.chart("batches", panels)
