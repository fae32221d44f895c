"""Pipelined training with stale weights (Zhang and Abdelrahman, 2021) on two GTX 1060: bounds, stale weights and memory."""

from collections.abc import Iterable, Iterator

from simulator.job import Job
from simulator.reproduce.pipeline_cases import BATCH, IMAGE_SIZE, MEMORY, Network, Scope
from simulator.reproduce.pipeline_layers import NumberedLayer, cuts, numbered_layers
from simulator.reproduce.pipeline_tables import (
    INCREASES,
    Layers,
    Pipelined,
    bounds_table,
    memory_table,
    sizes_table,
    speedups_table,
    stale_table,
)
from simulator.reproduce.pipeline_trends import modest_memory, more_by_stashing, more_with_depth
from simulator.reproduce.predicting import BASELINE, Missing, Steps
from simulator.reproduce.registry import Measurement
from traces.errors import StepcastError
from traces.reproduction import Chart, Panel, Paper, Series

NAME = "pipeline"
ABOUT = "Pipelined training with stale weights: bounds, speed-ups, stale weights and memory, on two GTX 1060"
MACHINE = "2xgtx1060"
TITLE = "Pipelined Training with Stale Weights in Deep Convolutional Neural Networks"
REFERENCE = "Zhang, Abdelrahman 2021, Applied Computational Intelligence and Soft Computing, https://doi.org/10.1155/2021/3839543"
STRATEGY = "stale-pipeline"
NOTES = (
    "The paper counts forward and backward stages: its 4 stages are one pair of pipeline registers, that is two stages, on two GPUs.",
    "The paper's AlexNet and VGG-16 are taken to be those that are usual for CIFAR: their weights are within 0.2 % of table 9's.",
    "Table 9 prints the placement (2) for VGG-16, but its 75 % is what a pair after the sixth convolution takes: both are shown.",
    "Predicted pipelines send over the host by streams of their own, so that transfers are hidden behind computation. The paper's processes"
    " copy to the host, send, and copy from it; `not hidden` is the prediction if both GPUs wait for every transfer.",
    "Accuracy is not computed here: `stepcast run` trains.",
)
SCOPE = Scope()


def predictions() -> int:
    """Return the number of networks that are captured, and of those that are predicted."""
    return len(_models()) + len(SCOPE.resnets)


def reproduce(steps: Steps) -> Paper:
    """Compute the paper's figures. A network that cannot be captured keeps its rows with that status."""
    layers = {model: _layers(model, steps) for model in _models()}
    pipelined = {network: _pipelined(network, layers[network.model], steps) for network in SCOPE.resnets}
    return Paper(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        machine=steps.machine_name,
        setting=f"Batch {BATCH}, images of {IMAGE_SIZE}x{IMAGE_SIZE}, fp32.",
        shares=steps.shares,
        tables=(
            bounds_table(SCOPE.pairs),
            speedups_table(SCOPE.resnets, pipelined),
            stale_table((*SCOPE.resnets, *SCOPE.memory, *SCOPE.stale), layers),
            sizes_table((*SCOPE.resnets, *SCOPE.memory), layers),
            memory_table((*SCOPE.resnets, *SCOPE.memory), layers),
        ),
        checks=(
            more_with_depth(pipelined),
            modest_memory(_captured(SCOPE.resnets, layers)),
            more_by_stashing(_captured(SCOPE.memory, layers)),
        ),
        charts=tuple(_charts(layers)),
        notes=NOTES,
    )


def _models() -> list[str]:
    """Return the models of all networks, each once."""
    return list(dict.fromkeys(network.model for network in (*SCOPE.resnets, *SCOPE.memory, *SCOPE.stale)))


def _layers(model: str, steps: Steps) -> tuple[NumberedLayer, ...] | Missing:
    job = Job(model, BATCH, IMAGE_SIZE)
    steps.report(model)
    try:
        return numbered_layers(job.graph())
    except StepcastError as error:
        return Missing.because(error)


def _pipelined(network: Network, layers: tuple[NumberedLayer, ...] | Missing, steps: Steps) -> Pipelined | Missing:
    """Predict a network on one GPU, and with stale weights on a GPU for each stage."""
    if isinstance(layers, Missing):
        steps.report(network.name)
        return layers
    job = Job(network.model, BATCH, IMAGE_SIZE)
    text = f"{STRATEGY}:placement={'-'.join(map(str, cuts(job.graph(), network.placement)))}"
    predicted = steps.of(job, [text])
    one, several = predicted[BASELINE], predicted[text]
    missing = next((step for step in (one, several) if isinstance(step, Missing)), None)
    if missing is not None:
        return missing
    return Pipelined(one.step_s / several.step_s, one.step_s / (several.step_s + several.transfer_s), several.status)


def _captured(networks: Iterable[Network], layers: Layers) -> dict[Network, tuple[NumberedLayer, ...]]:
    """Return the layers of those networks that could be captured."""
    return {network: own for network in networks if not isinstance(own := layers[network.model], Missing)}


def _charts(layers: Layers) -> Iterator[Chart]:
    """Yield figure 8: the increase of memory over the batch, with the figures of table 9."""
    panels = []
    for network, own in _captured(SCOPE.memory, layers).items():
        x = tuple(float(batch) for batch in SCOPE.batches)
        series = [
            Series(name=name, x=x, y=tuple(100 * increase(own, network.placement, batch) for batch in SCOPE.batches))
            for name, increase in INCREASES.items()
        ]
        if network in MEMORY:
            printed = zip(INCREASES, (MEMORY[network].stale, MEMORY[network].pipedream), strict=False)
            series += [Series(name=f"{name}, published", x=(float(BATCH),), y=(100 * value,), published=True) for name, value in printed]
        panels.append(Panel(title=f"{network.name} {network.placed}", series=tuple(series)))
    title = "Increase of memory over the batch"
    yield Chart(name="memory", title=title, x_label="batch", y_label="increase, %", panels=tuple(panels), log_x=True)


def measurements(gpu: bool) -> list[Measurement]:
    """Return nothing: these figures follow from the networks alone."""
    return []
