"""TurboDL (Jin et al., 2020): streams within a layer, asynchronous layers, and priorities by critical path, on a P100."""

from collections.abc import Iterator, Mapping

from simulator.reproduce.predicting import Steps
from simulator.reproduce.registry import Measurement
from simulator.reproduce.turbodl_cases import ASYNC, CALLED, DEPTHS, SPEEDUPS, TURBODL, VGG_BY_BATCH, Scope, StepsByStrategy, gain, job
from simulator.reproduce.turbodl_tables import Case, gains_table, machines_table, networks_table, streams_table
from simulator.reproduce.turbodl_trends import both_methods_gain, falls_with_batch, larger_card_gains_more, rises_with_depth
from traces.reproduction import Chart, Check, Panel, Paper, Series

NAME = "turbodl"
ABOUT = "TurboDL: streams, asynchronous layers and priorities by critical path, on a P100"
MACHINE = "p100"
TITLE = "TurboDL: Improving the CNN Training on GPU With Fine-Grained Multi-Streaming Scheduling"
REFERENCE = "Jin, Wu, Shi, He, Zhou 2021, IEEE Transactions on Computers, https://doi.org/10.1109/TC.2020.2990321"
NOTES = (
    "The paper's denominator is Caffe with cuDNN, which runs each layer on several streams with a barrier between layers. The other"
    " denominator is one stream, which is what PyTorch does by default.",
    "The host is one that issues eager PyTorch's ops (10 us each); Caffe's C++ issues faster, which matters most to small networks.",
    "Costs are from the card's data sheet and from how well ops use newer GPUs (V100 and later) and libraries; none of the paper's"
    " figures was used to choose one.",
)
SCOPE = Scope()
TEXTS = tuple(CALLED)


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    return 2 * len(SCOPE.networks) + len(SCOPE.by_batch[1]) + len(SCOPE.depths)


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that cannot be predicted keeps its row with that status."""
    other = steps.on(SCOPE.other_machine)
    networks = {case: steps.of(job(*case), TEXTS) for case in SCOPE.networks}
    model, batches = SCOPE.by_batch
    by_batch = {(model, batch): steps.of(job(model, batch), TEXTS) for batch in batches}
    depths = {case: steps.of(job(*case), TEXTS) for case in SCOPE.depths}
    others = {case: other.of(job(*case), TEXTS) for case in SCOPE.networks}
    return Paper(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        machine=steps.machine_name,
        setting="Stochastic gradient descent with momentum, as in Caffe, each parameter updated separately, fp32, eager.",
        shares=steps.shares,
        tables=(
            networks_table(networks),
            streams_table(networks),
            gains_table("batch", f"{model} by batch", "Published: section 4.2, at 100 and 400.", by_batch, _by_batch_published()),
            gains_table("depth", "ResNets by depth", "Published: section 4.2, figure 9.", depths, _depths_published()),
            machines_table(networks, others, steps.machine_name, other.machine_name),
        ),
        checks=tuple(_checks(networks, by_batch, depths, others)),
        charts=tuple(_charts(by_batch, depths, networks)),
        notes=NOTES,
    )


def _by_batch_published() -> dict[Case, float]:
    model, batches = SCOPE.by_batch
    return {(model, batch): VGG_BY_BATCH[batch] for batch in batches if batch in VGG_BY_BATCH}


def _depths_published() -> dict[Case, float]:
    return {(model, batch): DEPTHS[model] for model, batch in SCOPE.depths if model in DEPTHS}


def _checks(networks: Mapping[Case, StepsByStrategy], by_batch, depths, others) -> Iterator[Check]:
    yield both_methods_gain({m: (gain(f, ASYNC), g) for (m, _), f in networks.items() if (g := gain(f, TURBODL)) and gain(f, ASYNC)})
    yield falls_with_batch([(batch, g) for (_, batch), steps in by_batch.items() if (g := gain(steps, TURBODL))])
    yield rises_with_depth([(rank, g) for rank, steps in enumerate(depths.values()) if (g := gain(steps, TURBODL))])
    pairs = {case[0]: (gain(steps, TURBODL), gain(others[case], TURBODL)) for case, steps in networks.items()}
    yield larger_card_gains_more({network: pair for network, pair in pairs.items() if None not in pair})


def _charts(
    by_batch: Mapping[Case, StepsByStrategy], depths: Mapping[Case, StepsByStrategy], networks: Mapping[Case, StepsByStrategy]
) -> Iterator[Chart]:
    model = SCOPE.by_batch[0]
    printed = {case: SPEEDUPS[case[0]] for case in networks if case[0] in SPEEDUPS}
    yield _chart("networks", "Speed-up over Caffe+cuDNN, by network", "", networks, printed)
    yield _chart("depth", "Speed-up over Caffe+cuDNN, by depth", "", depths, _depths_published())
    yield _chart("batch", f"Speed-up over Caffe+cuDNN, {model} by batch", "batch", by_batch, _by_batch_published(), over_batch=True)


def _chart(
    name: str, title: str, x_label: str, cases: Mapping[Case, StepsByStrategy], published: Mapping[Case, float], over_batch: bool = False
) -> Chart:
    """Return a chart of predicted and published gains, over the batch or by model."""
    positions = {case: float(case[1] if over_batch else number) for number, case in enumerate(cases, start=1)}
    predicted = {case: value for case, steps in cases.items() if (value := gain(steps, TURBODL)) is not None}
    series = tuple(
        Series(name=name, x=tuple(positions[case] for case in values), y=tuple(values.values()), published=is_published)
        for name, is_published, values in (("predicted", False, predicted), ("published", True, published))
    )
    panels = (Panel(title="", series=series),)
    ticks = () if over_batch else tuple(case[0] for case in cases)
    return Chart(name=name, title=title, x_label=x_label, y_label="speed-up", panels=panels, level=1.0, joined=over_batch, ticks=ticks)


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's job on a GPU, and nothing on a CPU, which has no streams."""
    return [Measurement(job("resnet50", 32), TEXTS[1:], "the paper's job on another card")] if gpu else []
