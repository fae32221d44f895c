"""The interactive charts of a sweep: curves over one parameter, a heat map over two, and step time against memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import plotly.graph_objects as go

from simulator.predict.sweep import Axis, Outcome, at_point, fastest, pareto
from traces import units
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.step import Step
from ui.present import palette
from ui.present.charts import finished
from ui.present.labels import PEAK, PLAIN, plotly_escaped, strategy_name
from ui.present.sweeps import value_text

#: What a sweep can show, with the label of its axis.
SPEEDUP, STEP, RATE, MEMORY = "speed-up over plain PyTorch", "step time", "samples per second", f"{PEAK} memory"
LABELS = {SPEEDUP: SPEEDUP, STEP: "step time, ms", RATE: RATE, MEMORY: f"{MEMORY}, GiB"}
#: The parameter that is the number of samples of a step.
BATCH = "batch"
#: An axis whose values span at least this factor is logarithmic.
WIDE = 8.0
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "hexagon", "pentagon", "bowtie")


@dataclass(frozen=True)
class Curve:
    """One strategy over one parameter: the points that fit, and in `beyond` those that do not fit, each with its measure."""

    strategy: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    beyond: tuple[tuple[float, float], ...]
    texts: tuple[str, ...]


def measured_as(each: Outcome, measure: str, axes: Sequence[Axis], batch: int) -> float | None:
    """An outcome in the unit of a measure; None if it has none. `batch`: the samples of a step, unless the sweep has that parameter."""
    if measure == SPEEDUP:
        return each.speedup
    if measure == MEMORY:
        return None if each.peak_bytes is None else each.peak_bytes / 2**30
    if each.step_s is None:
        return None
    names = [axis.name for axis in axes]
    samples = each.at[names.index(BATCH)] if BATCH in names else batch
    return samples / each.step_s if measure == RATE else each.step_s * 1e3


def curves(outcomes: Sequence[Outcome], axis: Axis, measure: str, batch: int) -> list[Curve]:
    """One curve per strategy, in the order of the outcomes."""
    result = []
    for name in dict.fromkeys(each.strategy for each in outcomes):
        known = sorted(
            ((each.at[0], value, each) for each in outcomes
             if each.strategy == name and (value := measured_as(each, measure, (axis,), batch)) is not None),
            key=lambda row: row[0],
        )  # fmt: skip
        inside = [row for row in known if row[2].fits]
        beyond = tuple((x, y) for x, y, each in known if not each.fits)
        texts = tuple(hover(each, (axis,)) for _, _, each in inside)
        result.append(Curve(name, tuple(x for x, _, _ in inside), tuple(y for _, y, _ in inside), beyond, texts))
    return result


def hover(each: Outcome, axes: Sequence[Axis]) -> str:
    """What a point's hover box says: strategy, place, step time with its interval, gain and memory."""
    where = ", ".join(f"{axis.name} {value_text(value)}" for axis, value in zip(axes, each.at, strict=True))
    lines = [f"<b>{plotly_escaped(strategy_name(each.strategy))}</b>", plotly_escaped(where)]
    if each.step_s is not None:
        lines.append(f"{units.duration(each.step_s)} ({units.interval(each.interval_s)})")
    if each.gain is not None:
        lines.append(f"{each.gain.text} against {PLAIN if PYTORCH in each.gains else BASELINE}: {each.gain.verdict}")
    if each.peak_bytes is not None:
        lines.append(f"{PEAK} {units.memory(each.peak_bytes)}{'' if each.fits else ', does not fit'}")
    return "<br>".join([*lines, *([plotly_escaped(each.refusal.words)] if each.refusal else [])])


def too_large(outcomes: Sequence[Outcome], axis: Axis) -> list[tuple[float, float]]:
    """By strategy that does not fit at some values: the stretches of the parameter's axis to shade, between its values' middles."""
    values, borders = axis.values, _borders(axis.values)
    bands = []
    for name in dict.fromkeys(each.strategy for each in outcomes):
        beyond = {each.at[0] for each in outcomes if each.strategy == name and not each.fits}
        bands += [(borders[number], borders[number + 1]) for number, value in enumerate(values) if value in beyond]
    return bands


def _borders(values: Sequence[float]) -> list[float]:
    """Where the stretch of each value begins, and where the last one ends; the middle of two is geometric on a logarithmic axis."""
    inner = [(a * b) ** 0.5 if _logarithmic(values) else (a + b) / 2 for a, b in pairwise(values)]
    return [values[0], *inner, values[-1]] if inner else [values[0] * 0.9, values[0] * 1.1]


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= WIDE


def curves_figure(outcomes: Sequence[Outcome], axis: Axis, measure: str, batch: int) -> go.Figure:
    """A measure of every strategy over one parameter.

    Where a strategy does not fit its marks are hollow, and the ground is shaded, the darker the more strategies do not fit.
    """
    figure = go.Figure()
    for left, right in too_large(outcomes, axis):
        figure.add_vrect(left, right, fillcolor=palette.LIMIT, opacity=0.10, line_width=0, layer="below")
    for number, curve in enumerate(curves(outcomes, axis, measure, batch)):
        name, look = plotly_escaped(strategy_name(curve.strategy)), palette.line_color(number)
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        common = {"legendgroup": name, "name": name}
        figure.add_scatter(
            x=curve.x, y=curve.y, mode="lines+markers", line={"color": look, "width": 2}, marker={"size": 8, "symbol": symbol},
            hovertext=curve.texts, hovertemplate="%{hovertext}<extra></extra>", showlegend=bool(curve.x), **common,
        )  # fmt: skip
        if curve.beyond:
            x, y = zip(*curve.beyond, strict=True)
            figure.add_scatter(
                x=x, y=y, mode="markers", marker={"size": 8, "symbol": f"{symbol}-open", "color": look}, showlegend=not curve.x,
                hovertemplate="does not fit<extra>%{fullData.name}</extra>", **common,
            )  # fmt: skip
    ticks = {"tickvals": list(axis.values), "ticktext": [value_text(value) for value in axis.values]}
    kind = "log" if _logarithmic(axis.values) else "linear"
    figure.update_xaxes(title_text=plotly_escaped(axis.name), type=kind, gridcolor=palette.GRID, zeroline=False, **ticks)
    figure.update_yaxes(title_text=LABELS[measure], rangemode="tozero", gridcolor=palette.GRID, zeroline=False)
    if measure == SPEEDUP:
        figure.add_hline(1.0, line={"color": palette.GREY, "width": 1.5, "dash": "dash"})
    return finished(figure, f"{measure[0].upper()}{measure[1:]} over {axis.name}", drawn_px=340)


@dataclass(frozen=True)
class Heat:
    """A heat map: a value and a text for each (row of the second axis, column of the first axis); None where nothing can be run."""

    values: list[list[float | None]]
    texts: list[list[str]]
    hovers: list[list[str]]


def heat(outcomes: Sequence[Outcome], axes: tuple[Axis, Axis], strategy: str | None, measure: str, batch: int) -> Heat:
    """A strategy's measure at every point of two parameters; of the fastest one at each point, by name, if `strategy` is None."""
    result = Heat([], [], [])
    for second in axes[1].values:
        row: list[tuple[float | None, str, str]] = []
        for first in axes[0].values:
            here = at_point(outcomes, (first, second))
            each = fastest(here.values()) if strategy is None else here.get(strategy)
            row.append(_cell(each, axes, measure, batch, named=strategy is None))
        result.values.append([value for value, _, _ in row])
        result.texts.append([text for _, text, _ in row])
        result.hovers.append([said for _, _, said in row])
    return result


def _cell(each: Outcome | None, axes: Sequence[Axis], measure: str, batch: int, named: bool) -> tuple[float | None, str, str]:
    if each is None:
        return None, "nothing fits" if named else "", ""
    if not each.usable:
        return None, "does not fit" if each.step_s is not None else "refused", hover(each, axes)
    value = measured_as(each, measure, axes, batch)
    shown = "" if value is None else f"{units.digits(value)}{'x' if measure == SPEEDUP else ''}"
    return value, f"{plotly_escaped(strategy_name(each.strategy))}<br>{shown}" if named else shown, hover(each, axes)


def heat_figure(outcomes: Sequence[Outcome], axes: tuple[Axis, Axis], strategy: str | None, measure: str, batch: int) -> go.Figure:
    """A heat map over two parameters. Points at which nothing can be run have a gray ground and say why."""
    cells = heat(outcomes, axes, strategy, measure, batch)
    x, y = ([value_text(value) for value in axis.values] for axis in axes)
    figure = go.Figure(
        go.Heatmap(
            z=cells.values, x=x, y=y, text=cells.texts, texttemplate="%{text}", hovertext=cells.hovers, hoverinfo="text", xgap=2, ygap=2,
            colorscale="Cividis", reversescale=measure in (STEP, MEMORY), colorbar={"title": {"text": LABELS[measure], "side": "right"}},
        )
    )  # fmt: skip
    for row, values in enumerate(cells.values):
        for column, value in enumerate(values):
            if value is None:
                figure.add_shape(
                    type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5, fillcolor=palette.LIMIT, opacity=0.15,
                    line_width=0, layer="below",
                )  # fmt: skip
                figure.add_annotation(x=column, y=row, text=cells.texts[row][column], showarrow=False)
    figure.update_xaxes(title_text=plotly_escaped(axes[0].name), type="category", showgrid=False)
    figure.update_yaxes(title_text=plotly_escaped(axes[1].name), type="category", showgrid=False)
    whose = "the fastest strategy" if strategy is None else strategy_name(strategy)
    return finished(figure, f"{measure[0].upper()}{measure[1:]} of {whose}", drawn_px=max(200, 56 * len(y)))


def pareto_figure(outcomes: Sequence[Outcome], axes: Sequence[Axis] = ()) -> go.Figure:
    """Step time against allocated memory, one mark per outcome. A line joins those that no other beats in both; hollow ones do not fit.

    Over several batches, the time is that of a sample.
    """
    figure, names = go.Figure(), [axis.name for axis in axes]
    per_sample = BATCH in names
    texts = {(each.strategy, each.at): hover(each, axes) for each in outcomes}
    if per_sample:
        outcomes = [_per_sample(each, names.index(BATCH)) for each in outcomes]
    front = pareto(outcomes)
    if front:
        figure.add_scatter(
            x=[each.step_s * 1e3 for each in front], y=[each.peak_bytes / 2**30 for each in front], mode="lines", name="not beaten in both",
            line={"color": palette.GREY, "width": 1.5, "dash": "dot", "shape": "hv"}, hoverinfo="skip",
        )  # fmt: skip
    for number, name in enumerate(dict.fromkeys(each.strategy for each in outcomes)):
        own = [each for each in outcomes if each.strategy == name and each.step_s is not None and each.peak_bytes is not None]
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        figure.add_scatter(
            x=[each.step_s * 1e3 for each in own], y=[each.peak_bytes / 2**30 for each in own], mode="markers",
            name=plotly_escaped(strategy_name(name)), showlegend=bool(own),
            marker={"size": 10, "color": palette.line_color(number), "symbol": [symbol if each.fits else f"{symbol}-open" for each in own]},
            hovertext=[texts[each.strategy, each.at] for each in own], hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    what = "time per sample" if per_sample else "step time"
    figure.update_xaxes(title_text=f"{what}, ms", rangemode="tozero", gridcolor=palette.GRID, zeroline=False)
    figure.update_yaxes(title_text=LABELS[MEMORY], rangemode="tozero", gridcolor=palette.GRID, zeroline=False)
    return finished(figure, f"{what.capitalize()} against {MEMORY}", drawn_px=320)


def _per_sample(each: Outcome, place: int) -> Outcome:
    """An outcome with the times of one sample. `place`: of the batch among the axes."""
    batch = each.at[place]
    if each.step is None:
        return each
    interval = each.interval_s and (each.interval_s[0] / batch, each.interval_s[1] / batch)
    return replace(each, step=Step(step_s=each.step.step_s / batch, interval_s=interval))
