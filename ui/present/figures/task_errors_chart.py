"""The interactive chart of errors by phase, layer or op: what took longer than predicted, and what less."""

from collections.abc import Sequence

import plotly.graph_objects as go

from simulator.replay.diff.task_errors import GroupError
from traces import units
from ui.present.figures import palette
from ui.present.figures.charts import finished
from ui.present.text.labels import plotly_escaped
from ui.present.text.task_errors import SHOWN, signed_ms

#: Pixels of a bar.
BAR_PX = 26


def errors_figure(groups: Sequence[GroupError], by: str) -> go.Figure:
    """Measured less predicted ms of the groups with the largest errors."""
    shown = groups[:SHOWN]
    texts = [
        f"<b>{plotly_escaped(group.name)}</b><br>predicted {units.duration(group.predicted_s)}, measured {units.duration(group.measured_s)}"
        for group in shown
    ]
    bars = go.Bar(
        orientation="h",
        x=[group.difference_s * 1e3 for group in shown],
        y=[plotly_escaped(group.name) for group in shown],
        marker_color=[palette.LONGER if group.difference_s > 0 else palette.SHORTER for group in shown],
        text=[signed_ms(group.difference_s) for group in shown],
        textposition="outside",
        cliponaxis=False,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    figure = go.Figure(bars)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, ticksuffix=" ")
    low, high = min([0.0, *bars.x]), max([0.0, *bars.x])
    room = 0.18 * (high - low) or 1.0  # for the numbers beside the bars
    span = [low - room * (low < 0), high + room]
    figure.update_xaxes(title_text="measured less predicted, ms", range=span, gridcolor=palette.GRID, zerolinecolor=palette.GREY)
    return finished(figure, f"Error by {by}", drawn_px=max(60, BAR_PX * len(shown)))
