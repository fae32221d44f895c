"""A waterfall as a chart: from one step time to another, part by part."""

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from ui.present import palette
from ui.present.charts import finished
from ui.present.waterfalls import Bar

#: Share of the bars' width that the numbers beside them need on a page of 900 pixels.
LABEL_ROOM = 0.18


def waterfall_figure(waterfall: Sequence[Bar], title: str) -> go.Figure:
    """Bars one below the other: steps from 0, each part from where the part above it ends. The numbers add up."""
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            measure=["absolute" if bar.is_step else "relative" for bar in waterfall],
            y=[escape(bar.label) for bar in waterfall],
            x=[(bar.end_s if bar.is_step else bar.change_s) * 1e3 for bar in waterfall],
            text=[f"{bar.ms} ms" for bar in waterfall],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="y+text",
            increasing={"marker": {"color": palette.LONGER}},
            decreasing={"marker": {"color": palette.SHORTER}},
            totals={"marker": {"color": palette.GREY}},
            connector={"line": {"color": palette.GREY, "width": 1}},
        )
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    ends_ms = [1e3 * end_s for bar in waterfall for end_s in (bar.start_s, bar.end_s)]
    room = LABEL_ROOM * (max(ends_ms) - min(0.0, *ends_ms))
    figure.update_xaxes(range=[min(0.0, *ends_ms), max(ends_ms) + room], zeroline=False, gridcolor=palette.GRID)
    figure.update_xaxes(title_text="step time, ms")
    return finished(figure, title, drawn_px=40 + 30 * len(waterfall), legend=False)
