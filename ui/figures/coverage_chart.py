"""A chart of measured steps in their predicted intervals, over many validations."""

from collections.abc import Sequence

import plotly.graph_objects as go

from simulator.predict.coverage import Judged, coverage
from traces import units
from ui.figures import palette
from ui.figures.charts import finished
from ui.text.labels import plotly_escaped


def coverage_figure(steps: Sequence[Judged]) -> go.Figure:
    """One bar per step, its 90 % interval over its prediction, with the measured step over the prediction as a dot; the fastest first.

    The axis is logarithmic: a step that took twice as long is as far from 1 as one that took half as long. Raises ValueError without steps.
    """
    drawn = sorted(steps, key=lambda step: step.ratio)
    figure = go.Figure()
    places = list(range(len(drawn)))
    lows, highs = ([step.interval_s[end] / step.predicted_s for step in drawn] for end in (0, 1))
    figure.add_bar(
        x=places, y=[high - low for low, high in zip(lows, highs, strict=True)], base=lows, name="90 % interval", width=0.8,
        marker={"color": palette.PREDICTED, "opacity": 0.35}, hoverinfo="skip",
    )  # fmt: skip
    for name, color, symbol, inside in (
        ("measured, inside", palette.MEASURED, "circle", True),
        ("measured, outside", palette.CRITICAL, "x", False),
    ):
        chosen = [place for place in places if drawn[place].inside == inside]
        figure.add_scatter(
            x=chosen, y=[drawn[place].ratio for place in chosen], mode="markers", name=name,
            marker={"color": color, "symbol": symbol, "size": 7}, hovertext=[_words(drawn[place]) for place in chosen],
            hovertemplate="%{hovertext}<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=1.0, line={"color": palette.GREY, "width": 1, "dash": "dash"})
    figure.update_yaxes(title_text="measured / predicted", type="log", gridcolor=palette.GRID, zeroline=False)
    figure.update_xaxes(title_text="validated steps", showticklabels=False, showgrid=False, zeroline=False)
    inside = sum(step.inside for step in drawn)
    title = f"{inside} of {len(drawn)} measured steps ({coverage(drawn):.0%}) lie in their 90 % interval"
    return finished(figure, title, drawn_px=320, bargap=0)


def _words(step: Judged) -> str:
    return (
        f"<b>{plotly_escaped(step.strategy)}</b>, {plotly_escaped(step.model)}, batch {step.batch}<br>predicted"
        f" {units.duration(step.predicted_s)} ({units.interval(step.interval_s)}), measured {units.duration(step.measured_s)}"
    )
