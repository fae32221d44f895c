"""TurboDL (Jin et al., 2020): streams within a layer, asynchronous layers, and priorities by critical path, on a P100.

The paper's denominator is Caffe with cuDNN, which is not one stream: it runs the parts of a layer's backward on separate streams, with
a barrier between layers. Both sides are issued by Caffe's C++.
"""

from collections.abc import Callable, Iterator, Mapping

from simulator.machine.presets import CAFFE
from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.predicting import BASELINE, Steps, StepsByStrategy, figure, ratio, speedup, status_of
from simulator.papers.registry import Measurement, line
from simulator.strategies import registry as strategies
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, Check, Panel, Paper
from traces.errors import Refusal

PAPER = registry.get("turbodl")
_BARRIER, _ASYNC, _ALL = strategies.get("turbodl").steps
#: The paper's configurations as strategies; each adds one method to the one before. Callbacks of streams start the updates (section 3.1).
CUDNN, ASYNC, TURBODL = f"{_BARRIER},layers=caffe", f"{_ASYNC},update=callback", f"{_ALL},update=callback"
CALLED = {BASELINE: "one stream", CUDNN: "Caffe+cuDNN", ASYNC: "+ asynchronous", TURBODL: "+ priorities"}
TEXTS = tuple(CALLED)

#: Model and batch.
Case = tuple[str, int]
#: Predicted steps by case and strategy text.
Cases = Mapping[Case, StepsByStrategy]


class TurbodlScope(Data):
    """The scope of the predictions.

    `networks`: figure 7; AlexNet and CaffeNet are those with grouped convolutions. `by_batch`: model and batches of figure 8. `depths`:
    models from shallow to deep, figure 9. `other_machine`: the smaller card of figure 10, for the same networks.
    """

    networks: tuple[Case, ...]
    by_batch: tuple[str, tuple[int, ...]]
    depths: tuple[Case, ...]
    other_machine: str


SCOPE = PAPER.scope(TurbodlScope)


def predictions() -> int:
    """Return the number of jobs that `reproduce` predicts."""
    return 2 * len(SCOPE.networks) + len(SCOPE.by_batch[1]) + len(SCOPE.depths)


def job(model: str, batch: int) -> Job:
    """Return a job as Caffe trains it: stochastic gradient descent with momentum, with separate kernels for each parameter."""
    return Job(model, batch, form="for")


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures. A step that cannot be predicted keeps its row with that status."""
    steps = steps.issued_by(CAFFE)
    other = steps.on(SCOPE.other_machine)
    networks = {case: steps.predict(job(*case), TEXTS) for case in SCOPE.networks}
    model, batches = SCOPE.by_batch
    by_batch = {(model, batch): steps.predict(job(model, batch), TEXTS) for batch in batches}
    depths = {case: steps.predict(job(*case), TEXTS) for case in SCOPE.depths}
    others = {case: other.predict(job(*case), TEXTS) for case in SCOPE.networks}
    machines = {steps.machine_name: networks, other.machine_name: others}
    tables = (
        PAPER.table("networks", _configurations(networks, _speed)),
        PAPER.table("streams", _configurations(networks, _concurrency)),
        PAPER.table("batch", _gains(by_batch, _published(by_batch, "batches", 1)), model=model),
        PAPER.table("depth", _gains(depths, _published(depths, "depths"))),
        PAPER.table("machines", _on_both(machines), machine=steps.machine_name, other=other.machine_name),
    )
    return PAPER.paper(steps, tables, _checks(networks, by_batch, depths, others), _charts(by_batch, depths, networks))


def gain(steps: StepsByStrategy) -> float | None:
    """Return the speed-up of TurboDL over Caffe+cuDNN; None if either could not be predicted."""
    return speedup(steps, TURBODL, CUDNN)


def _published(cases: Cases, name: str, key: int = 0) -> dict[Case, float]:
    """Return the published gains of cases; `key`: what of a case they are printed by, 0: the model, 1: the batch."""
    values = PAPER.values(name)
    return {case: values[str(case[key])] for case in cases if str(case[key]) in values}


def _configurations(networks: Cases, figures: Callable) -> Iterator[tuple]:
    """Yield one row per configuration; only the last one for a network of which nothing could be predicted."""
    for (model, batch), steps in networks.items():
        absent = all(isinstance(step, Refusal) for step in steps.values())
        for text in (TURBODL,) if absent else CALLED:
            labels = {"network": model, "batch": batch, "configuration": CALLED[text]}
            yield labels, *figures(model, text, steps), status_of(steps[text])


def _speed(model: str, text: str, steps: StepsByStrategy) -> tuple[tuple, tuple]:
    """Return figures 7 and 11: predicted and published."""
    printed = {CUDNN: 1.0, ASYNC: PAPER.values("asynchronous").get(model), TURBODL: PAPER.values("networks").get(model)}
    return (figure(steps[text]), speedup(steps, text), speedup(steps, text, CUDNN)), (None, None, printed.get(text))


def _concurrency(model: str, text: str, steps: StepsByStrategy) -> tuple[tuple, tuple]:
    """Return section 4.3, and how much of a step two kernels or more run at once."""
    step, printed = steps[text], PAPER.values("streams").get(model, {})
    streams, overlapped_s = figure(step, "streams"), figure(step, "overlapped_s")
    if text == CUDNN and streams:
        streams -= 1  # Caffe does not create the default stream
    return (streams, overlapped_s, ratio(overlapped_s, figure(step))), (printed.get(CALLED[text]),)


def _gains(cases: Cases, published: Mapping[Case, float]) -> Iterator[tuple]:
    """Yield TurboDL over Caffe+cuDNN, case by case."""
    for case, steps in cases.items():
        step = steps[TURBODL]
        labels, values = {"network": case[0], "batch": case[1]}, (figure(steps[CUDNN]), figure(step), gain(steps))
        yield labels, values, (None, None, published.get(case)), status_of(step), (None, figure(step, "interval_s"))


def _on_both(machines: Mapping[str, Cases]) -> Iterator[tuple]:
    """Yield figure 10: a network on the card, and on a smaller one."""
    for case in SCOPE.networks:
        both = {name: cases[case] for name, cases in machines.items()}
        failures = {name: status for name, steps in both.items() if (status := status_of(steps[TURBODL])) != OK}
        same = len(failures) == 2 and len(set(failures.values())) == 1
        status = next(iter(failures.values())) if same else "; ".join(f"{name} {why}" for name, why in failures.items()) or OK
        values = [value for steps in both.values() for value in (figure(steps[TURBODL]), gain(steps))]
        yield {"network": case[0], "batch": case[1]}, values, (), status


def _checks(networks: Cases, by_batch: Cases, depths: Cases, others: Cases) -> Iterator[Check]:
    yield PAPER.claim("methods").each({case[0]: (speedup(steps, ASYNC, CUDNN), gain(steps)) for case, steps in networks.items()})
    yield PAPER.claim("batch").trend([(case[1], g) for case, steps in by_batch.items() if (g := gain(steps))])
    yield PAPER.claim("depth").trend([(rank, g) for rank, steps in enumerate(depths.values()) if (g := gain(steps))])
    yield PAPER.claim("card").each({case[0]: (gain(steps), gain(others[case])) for case, steps in networks.items()})


def _charts(by_batch: Cases, depths: Cases, networks: Cases) -> Iterator[Chart]:
    yield _chart("networks", networks, _published(networks, "networks"))
    yield _chart("depth", depths, _published(depths, "depths"))
    yield _chart("batch", by_batch, _published(by_batch, "batches", 1), over_batch=True)


def _chart(name: str, cases: Cases, published: Mapping[Case, float], over_batch: bool = False) -> Chart:
    """Return a chart of predicted and published gains, over the batch or by model."""
    positions = {case: case[1] if over_batch else number for number, case in enumerate(cases, start=1)}
    predicted = {case: value for case, steps in cases.items() if (value := gain(steps)) is not None}
    series = (
        line(what, ((positions[case], value) for case, value in values.items()), published=what == "published")
        for what, values in (("predicted", predicted), ("published", published))
    )
    ticks = () if over_batch else tuple(case[0] for case in cases)
    return PAPER.chart(name, [Panel(title="", series=tuple(series))], ticks, model=SCOPE.by_batch[0])


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's job on a GPU, and nothing on a CPU, which has no streams."""
    return [Measurement(job("resnet50", 32), TEXTS[1:], "the paper's job on another card")] if gpu else []
