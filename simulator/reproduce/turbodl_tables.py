"""The tables of the TurboDL paper, with published and predicted figures."""

from collections.abc import Callable, Iterator, Mapping

from simulator.reproduce.predicting import BASELINE, Missing, Step
from simulator.reproduce.turbodl_cases import ASYNC, ASYNC_SPEEDUPS, CALLED, CUDNN, SPEEDUPS, STREAMS, TURBODL, StepsByStrategy, gain
from traces.reproduction import OK, Figure, Row, Table

#: Model and batch.
Case = tuple[str, int]
_OVER_CUDNN = "over cuDNN"


def networks_table(networks: Mapping[Case, StepsByStrategy]) -> Table:
    """Figures 7 and 11."""
    rows = [row for (model, batch), steps in networks.items() for row in _rows(model, batch, steps, _speed)]
    about = "Published: section 4.2 and figure 11b, over Caffe+cuDNN. Caffe+cuDNN has several streams; one stream is the other denominator."
    return Table(name="networks", title="Each method on top of the one before", about=about, rows=tuple(rows))


def streams_table(networks: Mapping[Case, StepsByStrategy]) -> Table:
    """Section 4.3, and how much of a step two kernels or more run at once."""
    rows = [row for (model, batch), steps in networks.items() for row in _rows(model, batch, steps, _concurrency)]
    about = "Published: section 4.3. Overlapped: the part of a step in which at least two kernels run at once."
    return Table(name="streams", title="Streams, and kernels that run at once", about=about, rows=tuple(rows))


def _rows(
    model: str, batch: int, steps: StepsByStrategy, figures: Callable[[str, str, StepsByStrategy], tuple[Figure, ...]]
) -> Iterator[Row]:
    """Yield one row per configuration; only the last one for a network of which nothing could be predicted."""
    absent = all(isinstance(step, Missing) for step in steps.values())
    for text in (TURBODL,) if absent else CALLED:
        labels = {"network": model, "batch": str(batch), "configuration": CALLED[text]}
        yield Row(labels=labels, figures=figures(model, text, steps), status=steps[text].status)


def _speed(model: str, text: str, steps: StepsByStrategy) -> tuple[Figure, ...]:
    published = {CUDNN: 1.0, ASYNC: ASYNC_SPEEDUPS.get(model), TURBODL: SPEEDUPS.get(model)}.get(text)
    return (
        Figure(name="step", unit="s", predicted=_of(steps[text], "step_s")),
        Figure(name="over one stream", unit="x", predicted=gain(steps, text, BASELINE)),
        Figure(name=_OVER_CUDNN, unit="x", predicted=gain(steps, text), published=published),
    )


def _concurrency(model: str, text: str, steps: StepsByStrategy) -> tuple[Figure, ...]:
    step, published = steps[text], STREAMS.get(model, {}).get(text)
    share = None if isinstance(step, Missing) else step.overlapped_s / step.step_s
    return (
        Figure(name="streams", unit="count", predicted=_of(step, "streams"), published=published),
        Figure(name="overlapped", unit="s", predicted=_of(step, "overlapped_s")),
        Figure(name="overlapped share", unit="share", predicted=share),
    )


def _of(step: Step | Missing, field: str):
    """Return a field of a predicted step; None for a missing step."""
    return getattr(step, field, None)


def gains_table(name: str, title: str, about: str, cases: Mapping[Case, StepsByStrategy], published: Mapping[Case, float]) -> Table:
    """TurboDL over Caffe+cuDNN, case by case."""
    rows = []
    for (model, batch), steps in cases.items():
        base, step = steps[CUDNN], steps[TURBODL]
        figures = (
            Figure(name="Caffe+cuDNN", unit="s", predicted=_of(base, "step_s")),
            Figure(name="TurboDL", unit="s", predicted=_of(step, "step_s"), interval=_of(step, "interval_s")),
            Figure(name=_OVER_CUDNN, unit="x", predicted=gain(steps, TURBODL), published=published.get((model, batch))),
        )
        rows.append(Row(labels={"network": model, "batch": str(batch)}, figures=figures, status=step.status))
    return Table(name=name, title=title, about=about, rows=tuple(rows))


def machines_table(networks: Mapping[Case, StepsByStrategy], others: Mapping[Case, StepsByStrategy], machine: str, other: str) -> Table:
    """Figure 10: the same networks on a smaller card."""
    rows = []
    for (model, batch), steps in networks.items():
        both = {machine: steps, other: others[model, batch]}
        figures = tuple(
            Figure(name=f"{name} {what}", unit=unit, predicted=value)
            for name, each in both.items()
            for what, unit, value in (("TurboDL", "s", _of(each[TURBODL], "step_s")), ("gain", "x", gain(each, TURBODL)))
        )
        failures = {name: each[TURBODL].status for name, each in both.items() if each[TURBODL].status != OK}
        same = len(failures) == 2 and len(set(failures.values())) == 1
        status = steps[TURBODL].status if same else "; ".join(f"{name} {why}" for name, why in failures.items()) or OK
        rows.append(Row(labels={"network": model, "batch": str(batch)}, figures=figures, status=status))
    about = "Figure 10 has bars without numbers. Gain: TurboDL over Caffe+cuDNN on the same card."
    return Table(name="machines", title=f"{other} compared with {machine}", about=about, rows=tuple(rows))
