"""A waterfall as a static picture and as an interactive chart: from one step time to another, part by part."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from ui.present import palette
from ui.present.canvas import INK, hide_frame, new_figure, save
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


#: Inches above and below the bars, and per bar.
TOP_IN, BOTTOM_IN, BAR_IN = 0.55, 0.62, 0.36


def waterfall_picture(path: Path | str, waterfall: Sequence[Bar], title: str) -> Path:
    """Draw the bars one below the other into `path` (.png or .svg): steps from 0, each part from where the part above it ends."""
    height_in = TOP_IN + BAR_IN * len(waterfall) + BOTTOM_IN
    figure = new_figure(height_in, title)
    axes = figure.add_axes((0.23, BOTTOM_IN / height_in, 0.66, 1 - (TOP_IN + BOTTOM_IN) / height_in))
    longest_ms = max(max(bar.start_s, bar.end_s) for bar in waterfall) * 1e3
    for row, bar in enumerate(waterfall):
        left, right = sorted((bar.start_s * 1e3, bar.end_s * 1e3))
        axes.barh(row, max(right - left, longest_ms * 0.002), left=left, height=0.62, color=color(bar))
        weight = "bold" if bar.is_step else "normal"
        axes.text(right + longest_ms * 0.008, row, f"{bar.ms} ms", va="center", fontsize=11, color=INK, weight=weight)
    for row, bar in enumerate(waterfall[:-1]):
        axes.plot([bar.end_s * 1e3] * 2, [row - 0.31, row + 1.31], color=palette.GREY, linewidth=0.8, zorder=1)
    axes.set_xlim(0, longest_ms * 1.02 or 1)
    axes.set_ylim(len(waterfall) - 0.5, -0.5)
    axes.set_yticks(range(len(waterfall)), [bar.label for bar in waterfall], fontsize=11, color=INK)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    axes.set_xlabel("step time, ms", fontsize=11, color=INK)
    hide_frame(axes, "x")
    return save(figure, path)


def color(bar: Bar) -> str:
    """The color of a bar: steps are grey, parts that shorten the step green, and parts that lengthen it red."""
    return palette.GREY if bar.is_step else palette.SHORTER if bar.change_s < 0 else palette.LONGER
