"""The tables of the TurboDL paper: published beside predicted."""

from collections.abc import Callable, Iterator, Mapping

from simulator.reproduce.predicting import BASELINE, Missing, Step
from simulator.reproduce.turbodl_cases import ASYNC, ASYNC_SPEEDUPS, CALLED, CUDNN, SPEEDUPS, STREAMS, TURBODL, Found, gain
from traces.reproduction import OK, Figure, Row, Table

#: Model and batch.
Case = tuple[str, int]
_OVER_CUDNN = "over cuDNN"


def networks_table(networks: Mapping[Case, Found]) -> Table:
    """Figures 7 and 11."""
    rows = [row for (model, batch), found in networks.items() for row in _rows(model, batch, found, _speed)]
    about = "Published: section 4.2 and figure 11b, over Caffe+cuDNN. It is no single stream: that is the other denominator."
    return Table(name="networks", title="Each method on top of the one before", about=about, rows=tuple(rows))


def streams_table(networks: Mapping[Case, Found]) -> Table:
    """Section 4.3, and how much of a step runs beside something else."""
    rows = [row for (model, batch), found in networks.items() for row in _rows(model, batch, found, _concurrency)]
    about = "Published: section 4.3. Overlapped: the part of a step in which at least two kernels run at once."
    return Table(name="streams", title="Streams, and kernels that run at once", about=about, rows=tuple(rows))


def _rows(model: str, batch: int, found: Found, figures: Callable[[str, str, Found], tuple[Figure, ...]]) -> Iterator[Row]:
    """One row per configuration; of a network that is not there at all, only the last."""
    absent = all(isinstance(step, Missing) for step in found.values())
    for text in (TURBODL,) if absent else CALLED:
        labels = {"network": model, "batch": str(batch), "configuration": CALLED[text]}
        yield Row(labels=labels, figures=figures(model, text, found), status=found[text].status)


def _speed(model: str, text: str, found: Found) -> tuple[Figure, ...]:
    published = {CUDNN: 1.0, ASYNC: ASYNC_SPEEDUPS.get(model), TURBODL: SPEEDUPS.get(model)}.get(text)
    return (
        Figure(name="step", unit="s", predicted=_of(found[text], "step_s")),
        Figure(name="over one stream", unit="x", predicted=gain(found, text, BASELINE)),
        Figure(name=_OVER_CUDNN, unit="x", predicted=gain(found, text), published=published),
    )


def _concurrency(model: str, text: str, found: Found) -> tuple[Figure, ...]:
    step, published = found[text], STREAMS.get(model, {}).get(text)
    share = None if isinstance(step, Missing) else step.overlapped_s / step.step_s
    return (
        Figure(name="streams", unit="count", predicted=_of(step, "streams"), published=published),
        Figure(name="overlapped", unit="s", predicted=_of(step, "overlapped_s")),
        Figure(name="overlapped share", unit="share", predicted=share),
    )


def _of(step: Step | Missing, field: str):
    """A field of a predicted step; None of a missing one."""
    return getattr(step, field, None)


def gains_table(name: str, title: str, about: str, cases: Mapping[Case, Found], published: Mapping[Case, float]) -> Table:
    """TurboDL over Caffe+cuDNN, case by case."""
    rows = []
    for (model, batch), found in cases.items():
        base, step = found[CUDNN], found[TURBODL]
        figures = (
            Figure(name="Caffe+cuDNN", unit="s", predicted=_of(base, "step_s")),
            Figure(name="TurboDL", unit="s", predicted=_of(step, "step_s"), interval=_of(step, "interval_s")),
            Figure(name=_OVER_CUDNN, unit="x", predicted=gain(found, TURBODL), published=published.get((model, batch))),
        )
        rows.append(Row(labels={"network": model, "batch": str(batch)}, figures=figures, status=step.status))
    return Table(name=name, title=title, about=about, rows=tuple(rows))


def machines_table(networks: Mapping[Case, Found], others: Mapping[Case, Found], machine: str, other: str) -> Table:
    """Figure 10: the same networks on a smaller card."""
    rows = []
    for (model, batch), found in networks.items():
        both = {machine: found, other: others[model, batch]}
        figures = tuple(
            Figure(name=f"{name} {what}", unit=unit, predicted=value)
            for name, each in both.items()
            for what, unit, value in (("TurboDL", "s", _of(each[TURBODL], "step_s")), ("gain", "x", gain(each, TURBODL)))
        )
        wrong = {name: each[TURBODL].status for name, each in both.items() if each[TURBODL].status != OK}
        alike = len(wrong) == 2 and len(set(wrong.values())) == 1
        status = found[TURBODL].status if alike else "; ".join(f"{name} {why}" for name, why in wrong.items()) or OK
        rows.append(Row(labels={"network": model, "batch": str(batch)}, figures=figures, status=status))
    about = "Figure 10 has bars without numbers. Gain: TurboDL over Caffe+cuDNN on the same card."
    return Table(name="machines", title=f"{other} beside {machine}", about=about, rows=tuple(rows))
