"""A chart of measured steps in their predicted intervals, over many validations."""

from collections.abc import Iterator, Sequence
from math import sqrt
from types import MappingProxyType

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.predict.coverage import Judged, by_group, coverage
from traces import units
from ui.present.figures import palette
from ui.present.figures.charts import finished
from ui.present.text.labels import plotly_escaped

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
