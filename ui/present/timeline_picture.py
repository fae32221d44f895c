"""The static pictures of timelines, for files: predicted above measured on one time axis, in the colors of the canvas; and their memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.engine.memory.contents import KIND_NAMES
from traces.documents.timeline import Timeline
from ui.present import labels
from ui.present.labels import PEAK, finished, headline, plotly_escaped
from ui.present.pictures import INK, LETTER, WIDTH, text_width, write_picture
from ui.present.timeline_rows import (
    BY_WEIGHTS,
    CRITICAL,
    IDLE,
    REPEATED,
    X_LABEL,
    Bar,
    Panel,
    Row,
    TimelinePanel,
    kinds_shown,
    rows,
    timeline_panel,
)

#: Pixels between panels, and per lane; pictures with more than FEW_LANES have narrow lanes.
BETWEEN, LANE, NARROW_LANE, FEW_LANES = 34, 42, 30, 14
#: Pixels around a label that a bar needs, and around all bars of a picture next to the labels of lanes.
ROOM, AROUND = 8, 60
#: The size of letters in bars.
BAR_LETTER = 11


def timelines_picture(path: Path | str, predicted: Timeline, measured: Timeline | None = None, title: str = "") -> Path:
    """Draw one training step, predicted above measured, into `path` (.svg). The heading has `title`, both step times and the error.

    A red stripe under a bar marks the critical path; a solid line marks a timeline's step time, a dashed one the predicted step time.
    """
    return write_picture(path, timelines_figure(predicted, measured, title))


def timelines_figure(predicted: Timeline, measured: Timeline | None = None, title: str = "") -> go.Figure:
    """The figure of that picture."""
    times = headline(predicted.step_s, measured.step_s if measured else None)
    return stacked_figure([timeline for timeline in (predicted, measured) if timeline is not None], f"{title}: {times}" if title else times)


def stacked_figure(timelines: Sequence[Timeline], heading: str) -> go.Figure:
    """One step of each timeline, below each other on one axis, each under its `kind`. A dashed line marks the step time of the first."""
    panels = [timeline_panel(timeline) for timeline in timelines]
    lane = LANE if sum(len(panel.rows) for panel in panels) <= FEW_LANES else NARROW_LANE
    heights = [lane * max(1, len(panel.rows)) for panel in panels]
    drawn_px = sum(heights) + BETWEEN * (len(panels) - 1)
    figure = make_subplots(len(panels), 1, row_heights=heights, vertical_spacing=BETWEEN / drawn_px)
    end_ms = max(panel.length_ms for panel in panels)
    beside = max((text_width(label) for panel in panels for label in panel.rows), default=0.0)
    px_per_ms = (WIDTH - AROUND - beside) / end_ms
    for number, panel in enumerate(panels, start=1):
        _draw(figure, panel, number, px_per_ms)
        if number > 1:
            figure.add_vline(panels[0].step_ms, line={"color": labels.GREY, "width": 1, "dash": "dash"}, row=number, col=1)
        figure.update_yaxes(
            range=[len(panel.rows) - 0.45, -0.55], tickvals=list(range(len(panel.rows))), ticktext=list(map(plotly_escaped, panel.rows)),
            showgrid=False, row=number,
        )  # fmt: skip
        figure.update_xaxes(range=[0, end_ms * 1.002], showticklabels=number == len(panels), row=number)
    figure.update_xaxes(title_text=X_LABEL, row=len(panels))
    return finished(figure, heading, drawn_px)


def _draw(figure: go.Figure, panel: TimelinePanel, number: int, px_per_ms: float) -> None:
    """Add a panel's idle time, bars, critical path, step time and heading."""
    if panel.idle:
        rows, starts, lengths = zip(*panel.idle, strict=True)
        hatched = {"color": labels.IDLE, "pattern": {"shape": "/"}}
        _add_bars(figure, number, IDLE, rows, starts, lengths, marker=hatched)
    for phase, bars in panel.bars.items():
        for shade in sorted({bar.shade for bar in bars}):
            own = [bar for bar in bars if bar.shade == shade]
            look = {"color": labels.shaded(labels.phase_color(phase), shade), "line": {"color": "#fff", "width": 0.6 * panel.bordered}}
            ink = INK if phase == "backward" or shade else "#fff"
            texts = [_label(bar, phase, px_per_ms) for bar in own]
            _add_bars(figure, number, phase, *_places(own), marker=look, text=texts, textfont={"color": ink})
    _add_bars(figure, number, f"{CRITICAL} (stripe)", *_places(panel.critical), marker={"color": labels.CRITICAL}, offset=0.34, width=0.1)
    figure.add_vline(panel.step_ms, line={"color": INK, "width": 1.6}, row=number, col=1)
    heading = {"yref": "y domain", "y": 1, "yanchor": "bottom", "showarrow": False, "row": number, "col": 1}
    figure.add_annotation(text=f"<b>{panel.kind}</b>", xref="x domain", x=0, xanchor="left", **heading)
    figure.add_annotation(text=f"<b>{panel.step_label}</b>", x=panel.step_ms, xanchor="right", **heading)


def _places(bars: "tuple[Bar, ...] | list[Bar]") -> tuple[list[int], list[float], list[float]]:
    """Row, start and length of every bar."""
    return [bar.row for bar in bars], [bar.start_ms for bar in bars], [bar.length_ms for bar in bars]


def _add_bars(figure: go.Figure, number: int, name: str, rows, starts, lengths, offset: float = -0.38, width: float = 0.7, **look) -> None:
    if rows:
        seen = name in {trace.name for trace in figure.data}
        figure.add_bar(
            y=rows, base=starts, x=lengths, orientation="h", offset=offset, width=width, name=name, legendgroup=name, showlegend=not seen,
            row=number, col=1, **look,
        )  # fmt: skip


def _label(bar: Bar, phase: str, px_per_ms: float) -> str:
    """The longest label of a forward or a backward for which its bar has room."""
    if phase not in ("forward", "backward", BY_WEIGHTS, REPEATED):
        return ""
    return next((label for label in bar.labels if text_width(label, BAR_LETTER) + ROOM <= bar.length_ms * px_per_ms), "")


#: Pixels per row, and between rows; and the room between predicted and measured, as a share of the width.
MEMORY_PX, BETWEEN_PX, GAP = 175, 45, 0.05


def memory_figure(predicted: Timeline, measured: Timeline | None = None, title: str = "") -> go.Figure | None:
    """The memory contents of every device, predicted next to measured, for a static picture. None if no timeline says so."""
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None and timeline.memory_kinds]
    device_rows = rows(timelines)
    if not device_rows:
        return None
    drawn_px = len(device_rows) * (MEMORY_PX + BETWEEN_PX) - BETWEEN_PX
    figure = make_subplots(
        len(device_rows), len(timelines), vertical_spacing=BETWEEN_PX / drawn_px, horizontal_spacing=GAP, shared_yaxes=True
    )
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in timelines) * 1e3
    for number, row in enumerate(device_rows, start=1):
        for column, panel in enumerate(row.panels, start=1):
            if panel is not None:
                _draw_memory(figure, panel, row, {"row": number, "col": column}, row.headings[column - 1], 0.9 * WIDTH / len(timelines))
        figure.update_yaxes(range=[0, row.top], row=number)
        figure.update_yaxes(title_text=f"allocated, {row.unit}", row=number, col=1)
    for kind in kinds_shown(device_rows):
        _name(figure, KIND_NAMES[kind], mode="markers", marker={"color": labels.KIND[kind], "symbol": "square", "size": 12})
    _name(figure, PEAK, mode="lines", line=PEAK_LINE)
    if any(row.limit_bytes for row in device_rows):
        _name(figure, "limit", mode="lines", line=LIMIT_LINE)
    figure.update_xaxes(range=[0, end_ms * 1.002], showticklabels=False)
    figure.update_xaxes(title_text=X_LABEL, showticklabels=True, row=len(device_rows))
    return finished(figure, f"{title}: memory" if title else "memory", drawn_px)


PEAK_LINE, LIMIT_LINE = {"color": INK, "width": 1.4, "dash": "dash"}, {"color": labels.LIMIT, "width": 2}


def _draw_memory(figure: go.Figure, panel: Panel, row: Row, place: dict[str, int], words: str, room_px: float) -> None:
    """Add the heading of a panel and its stacked areas, the highest first and lower ones over it; the peak, and the limit."""
    stacked = np.cumsum(list(panel.held.values()), axis=0) / row.unit_bytes
    for kind, top in reversed(list(zip(panel.held, stacked, strict=True))):
        figure.add_scatter(
            x=panel.times_ms, y=top, fill="tozeroy", fillcolor=labels.KIND[kind], mode="lines", line={"width": 0, "shape": "hv"},
            showlegend=False, **place,
        )  # fmt: skip
    for drawn_bytes, line in ((panel.peak_bytes, PEAK_LINE), (row.limit_bytes, LIMIT_LINE)):
        if drawn_bytes:
            figure.add_hline(drawn_bytes / row.unit_bytes, line=line, **place)
    figure.add_annotation(
        text=f"<b>{plotly_escaped(words)}</b>", xref="x domain", yref="y domain", x=0, y=1, xanchor="left", yanchor="bottom",
        showarrow=False, font={"size": min(LETTER, room_px / text_width(words, 1))}, **place,
    )  # fmt: skip


def _name(figure: go.Figure, name: str, **look) -> None:
    """Add an entry of the legend."""
    figure.add_scatter(x=[None], y=[None], name=name, **look)
