"""Interactive charts of validations and predictions: step times, speed-ups, phases, and measured steps in their intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.predict.coverage import Judged, by_group, coverage
from traces import units
from traces.documents.comparison import Comparison, Prediction, Validation
from traces.documents.verdict import Gain
from ui.present import palette
from ui.present.labels import labelled_rows, plain_label
from ui.present.palette import finished, plotly_escaped

#: How much of a bar's color is seen.
_FAINT = 0.35
#: How measured steps are called and drawn, by whether they lie in their intervals.
_MEASURED = MappingProxyType({
    True: ("measured, inside", palette.MEASURED, "circle"),
    False: ("measured, outside", palette.CRITICAL, "x"),
})  # fmt: skip


def coverage_figure(steps: Sequence[Judged]) -> go.Figure:
    """One bar per step, its 90 % interval over its prediction, with the measured step over the prediction as a dot.

    Groups that share a discrepancy stand side by side, the fastest step of each first; a group of a few steps gets more room for each. The
    axis is logarithmic: a step that took twice as long is as far from 1 as one that took half as long. Raises ValueError without steps.
    """
    groups = by_group(steps)
    title = f"{_share(steps)} measured steps lie in their 90 % interval"
    widths = [sqrt(len(own)) for own in groups.values()]
    figure = make_subplots(1, len(groups), shared_yaxes=True, column_widths=widths, horizontal_spacing=0.02)
    for column, (name, own) in enumerate(groups.items(), start=1):
        for trace in _traces(sorted(own, key=lambda step: step.ratio)):
            figure.add_trace(trace.update(legendgroup=trace.name, showlegend=False), row=1, col=column)
        figure.update_xaxes(title_text=f"{name}<br>{_share(own)}", row=1, col=column)
    for place, (name, color, symbol) in enumerate((("90 % interval", palette.PREDICTED, "square"), *_MEASURED.values())):
        marker = {"color": color, "symbol": symbol, "size": 9, "opacity": 1 if place else _FAINT}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, legendgroup=name, marker=marker)
    figure.add_hline(y=1.0, line={"color": palette.GREY, "width": 1, "dash": "dash"})
    figure.update_yaxes(type="log", gridcolor=palette.GRID, zeroline=False)
    figure.update_yaxes(title_text="measured / predicted", col=1)
    figure.update_xaxes(showticklabels=False, showgrid=False, zeroline=False)
    return finished(figure, title, drawn_px=320, bargap=0)


def _traces(drawn: Sequence[Judged]) -> Iterator[go.Bar | go.Scatter]:
    """The bars of steps in the order in which they are drawn, and the dots inside and outside their intervals."""
    places = range(len(drawn))
    lows, highs = ([step.interval_s[end] / step.predicted_s for step in drawn] for end in (0, 1))
    yield go.Bar(
        x=list(places), y=[high - low for low, high in zip(lows, highs, strict=True)], base=lows, name="90 % interval", width=0.8,
        marker={"color": palette.PREDICTED, "opacity": _FAINT}, hoverinfo="skip",
    )  # fmt: skip
    for is_inside, (name, color, symbol) in _MEASURED.items():
        chosen = [place for place in places if drawn[place].inside == is_inside]
        yield go.Scatter(
            x=chosen, y=[drawn[place].ratio for place in chosen], mode="markers", name=name,
            marker={"color": color, "symbol": symbol, "size": 7}, hovertext=[_words(drawn[place]) for place in chosen],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip


def _share(steps: Sequence[Judged]) -> str:
    return f"{sum(step.inside for step in steps)} of {len(steps)} ({coverage(steps):.0%})"


def _words(step: Judged) -> str:
    return (
        f"<b>{plotly_escaped(step.strategy)}</b>, {plotly_escaped(step.model)}, batch {step.batch}<br>predicted"
        f" {units.duration(step.predicted_s)} ({units.interval(step.interval_s)}), measured {units.duration(step.measured_s)}"
    )


@dataclass(frozen=True)
class Row:
    """One row. In earlier documents plain PyTorch has no prediction.

    `gain`: over plain PyTorch, or over the baseline if plain PyTorch was not measured.
    """

    label: str
    predicted_s: float | None
    interval_s: tuple[float, float] | None
    measured_s: float
    runs_s: tuple[float, ...]
    gain: Gain | None
    predicted_speedup: float | None
    measured_speedup: float | None

    @property
    def seconds(self) -> tuple[float, ...]:
        """Every time that is drawn."""
        return (self.measured_s, *self.runs_s, *(self.interval_s or ()), *((self.predicted_s,) if self.predicted_s else ()))

    @property
    def factors(self) -> tuple[float, ...]:
        """Every speed-up that is drawn."""
        return () if self.gain is None else (self.gain.factor, *(self.gain.interval or ()))


def rows(validation: Validation) -> list[Row]:
    """The rows of a validation, plain PyTorch first."""
    gain_of = validation.gain_over_baseline if validation.reference_step_s is None else validation.gain_over_pytorch
    strategies = [
        Row(label, predicted_s=result.predicted_step_s, interval_s=result.predicted_interval_s, measured_s=result.measured_step_s,
            runs_s=result.measured_runs_s, gain=gain_of(result), predicted_speedup=result.predicted_speedup,
            measured_speedup=result.measured_speedup)
        for label, result in labelled_rows(validation) if result.ok
    ]  # fmt: skip
    if not strategies or validation.reference_step_s is None or validation.pytorch is not None:
        return strategies
    plain_s, gain = validation.reference_step_s, validation.plain_speedup
    return [
        Row(
            label=plain_label(validation),
            predicted_s=None,
            interval_s=None,
            measured_s=plain_s,
            runs_s=validation.reference_runs_s,
            gain=None,
            predicted_speedup=None,
            measured_speedup=gain,
        ),
        *strategies,
    ]


def rival_name(validation: Validation) -> str:
    """What the speed-ups of the rows are over."""
    return "the baseline" if validation.reference_step_s is None else "PyTorch"


def speedups_figure(validation: Validation, title: str = "") -> go.Figure:
    """Step times and speed-ups per strategy, plain PyTorch first. `title`: the result in a few words.

    Left: predicted step times with 90 % intervals, and measured ones with the range of all runs. Right: speed-ups over plain PyTorch (over
    the baseline, if plain PyTorch was not measured) with 90 % intervals.
    """
    drawn = rows(validation)
    figure = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.62, 0.38], horizontal_spacing=0.04)
    predicted = [row for row in drawn if row.predicted_s is not None]
    _add_points(
        figure, "predicted, 90 % interval", palette.PREDICTED, symbol="diamond", names=[row.label for row in predicted],
        values=[(row.predicted_s, *(row.interval_s or (row.predicted_s,) * 2)) for row in predicted],
        heights=[drawn.index(row) - 0.12 for row in predicted],
    )  # fmt: skip
    _add_points(
        figure, "measured, all runs", palette.MEASURED, symbol="circle", names=[row.label for row in drawn],
        values=[(row.measured_s, min((*row.runs_s, row.measured_s)), max((*row.runs_s, row.measured_s))) for row in drawn],
        heights=[number + (0.12 if row in predicted else 0.0) for number, row in enumerate(drawn)],
    )  # fmt: skip
    _add_gains(figure, drawn)
    notes = [row.gain.judged if row.gain is not None else "" for row in drawn]
    figure.update_xaxes(
        title_text=f"speed-up<br>over {rival_name(validation)}",
        automargin=True,
        showgrid=True,
        gridcolor=palette.GRID,
        zeroline=False,
        col=2,
    )
    return _strategy_axes(figure, title or "Step time per strategy", [row.label for row in drawn], notes, col=1)


def _add_gains(figure: go.Figure, drawn: Sequence[Row]) -> None:
    """Add speed-ups with whiskers to the right half."""
    for number, row in enumerate(drawn):
        if row.gain is None:
            continue
        gain, color = row.gain, palette.VERDICT[row.gain.verdict]
        low, high = gain.interval or (gain.factor, gain.factor)
        whiskers = {"type": "data", "symmetric": False, "array": [high - gain.factor], "arrayminus": [gain.factor - low]}
        figure.add_scatter(
            x=[gain.factor], y=[number], mode="markers", marker={"color": color, "size": 10}, error_x=whiskers | {"color": color},
            hovertext=[f"<b>{plotly_escaped(row.label)}</b><br>{gain.judged}"], hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False, row=1, col=2,
        )  # fmt: skip
    figure.add_vline(x=1.0, line={"color": palette.GREY, "width": 1.5, "dash": "dash"}, row=1, col=2)


def predictions_figure(predictions: Sequence[Prediction], names: Sequence[str]) -> go.Figure:
    """Predicted step time per strategy with its 90 % interval, and its speed-up over plain PyTorch. `names`: the strategies' labels."""
    figure = go.Figure()
    values = [(p.step_s, *(p.interval_s or (p.step_s,) * 2)) for p in predictions]
    _add_points(
        figure,
        "predicted, 90 % interval",
        palette.PREDICTED,
        symbol="diamond",
        names=names,
        values=values,
        heights=list(range(len(values))),
    )
    return _strategy_axes(
        figure, "Predicted step time per strategy (speed-up over plain PyTorch)", names, [_note(prediction) for prediction in predictions]
    )


def _note(prediction: Prediction) -> str:
    return units.speedup(prediction.against_pytorch, prediction.against_pytorch_interval) if prediction.fits else "does not fit"


def _add_points(
    figure: go.Figure,
    name: str,
    color: str,
    symbol: str,
    names: Sequence[str],
    values: Sequence[tuple[float, float, float]],
    heights: Sequence[float],
) -> None:
    """Add one point with whiskers per strategy. `values`: (value, low, high) in seconds. `heights`: its place on the y axis."""
    whiskers = {"type": "data", "symmetric": False, "thickness": 1.5, "color": color}
    whiskers["array"] = [(high - value) * 1e3 for value, _, high in values]
    whiskers["arrayminus"] = [(value - low) * 1e3 for value, low, _ in values]
    texts = [
        f"<b>{plotly_escaped(label)}</b><br>{name}: {units.duration(value)} ({units.interval((low, high))})"
        for label, (value, low, high) in zip(names, values, strict=True)
    ]
    figure.add_scatter(
        x=[value * 1e3 for value, _, _ in values],
        y=list(heights),
        mode="markers",
        name=name,
        marker={"color": color, "symbol": symbol, "size": 10},
        error_x=whiskers,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _strategy_axes(figure: go.Figure, title: str, names: Sequence[str], notes: Sequence[str], col: int | None = None) -> go.Figure:
    labels = [f"{plotly_escaped(name)}<br>{note}" for name, note in zip(names, notes, strict=True)]
    count = len(labels)
    figure.update_yaxes(range=[count - 0.5, -0.5], zeroline=False, showgrid=False, ticksuffix=" ")
    figure.update_yaxes(tickvals=list(range(count)), ticktext=labels, col=col)
    figure.update_xaxes(title_text="step time, ms", rangemode="tozero", zeroline=False, showgrid=True, gridcolor=palette.GRID, col=col)
    return finished(figure, title, drawn_px=20 + 55 * count)


def phases_figure(comparison: Comparison) -> go.Figure:
    """Task time per phase within one training step, predicted and measured."""
    seconds = comparison.phases()
    phases = palette.phases_in_order(set(seconds))
    labels = [plotly_escaped(phase) for phase in phases]
    figure = go.Figure()
    for name, color, pick in (("predicted", palette.PREDICTED, "predicted_s"), ("measured", palette.MEASURED, "measured_s")):
        values = [getattr(seconds[phase], pick) for phase in phases]
        figure.add_bar(
            x=labels,
            y=[v * 1e3 for v in values],
            name=name,
            marker_color=color,
            text=[units.ms(v) for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_yaxes(title_text="task time per step, ms", gridcolor=palette.GRID)
    return finished(figure, "Task time per phase", drawn_px=240, barmode="group")
