"""DeePa (under review for ICLR 2018): per-layer parallelism on 16 K80, 4 P100 and four nodes of them."""

from collections.abc import Iterator, Mapping, Sequence

from simulator.job import Job
from simulator.predict.preset import preset_costs
from simulator.reproduce import deepa_tables as tables
from simulator.reproduce import deepa_trends as trends
from simulator.reproduce.deepa_cases import BATCH, CHOSEN_FC6, FC6, NODE, NODES, PER_GPU, PUBLISHED, Network, Scope
from simulator.reproduce.deepa_networks import Divided
from simulator.reproduce.deepa_tables import Found, Names, Predicted
from simulator.reproduce.predicting import Missing, Steps
from simulator.reproduce.registry import Measurement
from simulator.shards.configuration import Configuration
from simulator.shards.costs.one_layer import LayerCost, layer_costs
from simulator.shards.naming import layer_called
from simulator.shards.network import Network as LayerNetwork
from traces.errors import StepcastError
from traces.reproduction import Chart, DividedLayer, DividedNetwork, Panel, Paper, Series

NAME = "deepa"
ABOUT = "DeePa: per-layer parallelism in image, channel, height and width, on 16 K80 and on P100"
MACHINE = "k80x16"
TITLE = "Exploring the Hidden Dimension in Accelerating Convolutional Neural Networks"
REFERENCE = "Exploring the Hidden Dimension in Accelerating Convolutional Neural Networks (DeePa), submitted to ICLR 2018"
SERVER = "distributed"
NOTES = (
    "Steps are predicted by simulating the plans of image-parallel, owt and deepa, as stepcast predict does. Configurations have the"
    " smallest sum of exact costs, which ignores overlap.",
    "The paper's own costs are not searched: they charge nothing between two layers of equal configuration, so that dividing every"
    " layer by channel would be free, which in truth moves all inputs.",
    "All 16 K80 share one pipe of 4.494 GB/s, fitted to one number of table 2. Figures 7, 13 and 14 print no numbers; the text has some.",
    "Inception-v3 has no auxiliary head here, like the 120 nodes that the paper counts. AlexNet is torchvision's.",
    "The paper's searches took 0.7, 1.1 and 4.8 s. Here the search itself takes under 0.1 s; the costs of all configurations take seconds.",
)
SCOPE = Scope()


def predictions() -> int:
    """Return the number of predicted jobs and searched networks."""
    return len(SCOPE.networks) * (2 + 2 * SCOPE.clusters + 2 * SCOPE.large) + len([batch for _, batch in _sweep() if batch != BATCH])


def _sweep() -> list[tuple[Network, int]]:
    """Return the networks and batches of figure 13."""
    return [(network, batch) for network in SCOPE.networks for batch in SCOPE.batches if batch <= network.most]


def reproduce(steps: Steps) -> Paper:
    """Compute the paper's figures. A network that cannot be captured keeps its rows with that status."""
    names = Names()
    divided = {network: _divided(Job(network.model, BATCH), steps) for network in SCOPE.networks}
    predicted = {network: steps.of(Job(network.model, BATCH), names.all) for network in SCOPE.networks}
    batches = {
        (network, batch): predicted[network] if batch == BATCH else steps.of(Job(network.model, batch), [names.frameworks, names.deepa])
        for network, batch in _sweep()
    }
    fc6 = _fc6()
    clusters = _clusters(steps, names) if SCOPE.clusters else {}
    large: Found = {}
    checks = [
        trends.two_workers_cheapest(fc6),
        trends.images_in_convolutions(divided),
        trends.few_for_linear(divided),
        trends.four_for_last_of_vgg(divided),
        trends.branches_differ(divided),
        trends.fewer_bytes_by_owt(divided),
        trends.fewer_bytes_further(divided),
        trends.order_of_gains(predicted, names),
        trends.owt_gains_little(predicted, names),
        trends.overlap_gains(predicted, names),
        trends.steady_by_batch(batches, names),
    ]
    shown = [
        tables.fc6_table(fc6),
        tables.configurations_table(SCOPE.networks, divided),
        tables.bytes_table(SCOPE.networks, divided),
        tables.speedups_table(SCOPE.networks, predicted, names),
        tables.steps_table(SCOPE.networks, predicted, names),
        tables.batches_table(batches, names),
    ]
    if SCOPE.clusters:
        shown.append(tables.clusters_table(SCOPE.networks, clusters[NODE], clusters[NODES], names))
        checks += [trends.more_with_nodes(clusters[NODE], clusters[NODES], names), trends.as_fast_as_asynchronous(clusters[NODE], names)]
    if SCOPE.large:
        large = {network: _divided(Job(network.large, BATCH), steps) for network in SCOPE.networks}
        wide = {network: steps.of(Job(network.large, BATCH), [names.frameworks, names.deepa]) for network in SCOPE.networks}
        shown.append(tables.large_table(SCOPE.networks, divided, large, predicted, wide, names))
        checks += [*trends.large_networks(divided, large), trends.slower_with_more_classes(predicted, wide, names)]
    return Paper(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        machine=steps.machine_name,
        setting=f"Batch {BATCH} on 16 K80; {PER_GPU} images a GPU on P100; momentum, fp32.",
        shares=steps.shares,
        fitted="the bandwidth of the pipe of all K80, by one number of table 2,",
        tables=tuple(shown),
        checks=tuple(checks),
        charts=tuple(_charts(batches, names)),
        networks=tuple(_pictures(divided)),
        notes=NOTES,
    )


def _divided(job: Job, steps: Steps) -> Divided | Missing:
    steps.report(f"configurations of {job.model}")
    try:
        return Divided.of(job, steps.machine_name, SERVER)
    except StepcastError as error:
        return Missing.because(error)


def _fc6() -> list[LayerCost]:
    """Table 2, the chosen configuration, and others between them."""
    job = Job("alexnet", BATCH)
    machine, model = preset_costs(job, MACHINE)
    network = LayerNetwork(job.graph())
    configurations = [*FC6, CHOSEN_FC6, *(Configuration(c=c) for c in (4, 8)), Configuration()]
    return layer_costs(network, machine, model, layer_called(network, "fc6"), configurations)


def _clusters(steps: Steps, names: Names) -> dict[str, dict[Network, Predicted]]:
    """By machine and network, the steps of the frameworks and of DeePa with 32 images a GPU; on one node also of asynchronous training."""
    compared = {NODE: (4, [names.frameworks, names.deepa, names.deepa_late]), NODES: (16, [names.image, names.deepa])}
    result: dict[str, dict[Network, Predicted]] = {}
    for machine, (devices, texts) in compared.items():
        own = steps.on(machine)
        result[machine] = {network: own.of(Job(network.model, PER_GPU * devices), texts) for network in SCOPE.networks}
    return result


def _charts(batches: Mapping[tuple[Network, int], Predicted], names: Names) -> Iterator[Chart]:
    """Yield figure 13: the speed-up over the batch, with the published range."""
    panels = []
    for network in SCOPE.networks:
        points = [
            (float(batch), gain)
            for (other, batch), own in batches.items()
            if other == network and (gain := tables.speedup(own, names.frameworks, names.deepa)) is not None
        ]
        if not points:
            continue
        x, y = zip(*points, strict=True)
        series = [Series(name="predicted", x=x, y=y)]
        for name, value in zip(("least published", "largest published"), PUBLISHED[network].batches, strict=True):
            series.append(Series(name=name, x=x, y=(value,) * len(x), published=True))
        panels.append(Panel(title=network.name, series=tuple(series)))
    title = "DeePa over image parallelism of the frameworks, by batch, on 16 K80"
    yield Chart(name="batches", title=title, x_label="batch", y_label="speed-up", panels=tuple(panels), level=1.0, log_x=True)


def _pictures(divided: Found) -> Iterator[DividedNetwork]:
    """Yield figures 9 to 12: each network with its layers divided as divided."""
    for network, own in divided.items():
        if isinstance(own, Divided):
            yield DividedNetwork(
                name=network.model.replace("_", "-"),
                title=f"{network.name} on 16 K80, batch {BATCH}: how the search divides each layer",
                layers=tuple(_layers(own)),
            )


def _layers(own: Divided) -> Iterator[DividedLayer]:
    inputs: dict[int, Sequence[int]] = {}
    for edge in own.network.edges:
        if edge.source is not None:
            inputs[edge.target] = [*dict.fromkeys([*inputs.get(edge.target, ()), edge.source])]
    for number, (layer, configuration) in enumerate(zip(own.network.layers, own.best, strict=True)):
        yield DividedLayer(
            name=layer.name,
            kind=own.kind(number),
            shape=layer.shape,
            degrees=configuration.degrees,
            inputs=tuple(inputs.get(number, ())),
        )


def measurements(gpu: bool) -> list[Measurement]:
    """Return nothing: `stepcast validate` runs the strategies on any machine with several devices."""
    return []
