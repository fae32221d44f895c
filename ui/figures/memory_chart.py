"""The interactive chart of memory over one training step."""

from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.memory.words import KIND_NAMES
from traces.timeline import Timeline
from ui.figures import palette
from ui.figures.charts import finished
from ui.figures.memory_panels import Panel, Row, rows
from ui.figures.timeline_panels import X_LABEL
from ui.text.labels import plotly_escaped

#: Pixels per row, and between rows.
ROW_PX, BETWEEN_PX = 190, 50


def memory_figure(predicted: Timeline, measured: Timeline | None = None) -> go.Figure:
    """Bytes held over one training step: one row per device, predicted next to measured, stacked by kind of value.

    A dashed line marks the highest bytes of the whole timeline; a red line marks a limit that is near.
    """
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None]
    device_rows = rows(timelines)
    if not device_rows:
        return _lines_figure(timelines)
    count = len(device_rows)
    drawn_px = ROW_PX * count + BETWEEN_PX * (count - 1)
    spacing = BETWEEN_PX / drawn_px if count > 1 else 0.0
    figure = make_subplots(
        count, len(timelines), shared_xaxes="all", shared_yaxes="rows", vertical_spacing=spacing, horizontal_spacing=0.03,
        subplot_titles=[plotly_escaped(heading) for row in device_rows for heading in row.headings],
    )  # fmt: skip
    in_legend: set[str] = set()
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in timelines) * 1e3
    for number, row in enumerate(device_rows, start=1):
        for column, panel in enumerate(row.panels, start=1):
            for trace in _traces(row, panel, f"{number - 1} {column}", end_ms):
                figure.add_scatter(**trace, showlegend=trace["legendgroup"] not in in_legend, row=number, col=column)
                in_legend.add(trace["legendgroup"])
        figure.update_yaxes(range=[0, row.top], gridcolor=palette.GRID, zeroline=False, row=number)
        figure.update_yaxes(title_text=row.unit, row=number, col=1)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_xaxes(title_text=X_LABEL, row=count)
    _align_titles(figure)
    return finished(figure, "Memory by what it holds", drawn_px=drawn_px)


def _traces(row: Row, panel: Panel | None, stack: str, end_ms: float) -> Iterator[dict[str, Any]]:
    """The areas, the peak and the limit of one panel, as arguments of `add_scatter`."""
    for kind, counts in panel.held.items() if panel is not None else ():
        yield {
            "x": panel.times_ms, "y": [count / row.unit_bytes for count in counts], "name": KIND_NAMES[kind], "legendgroup": kind,
            "mode": "lines", "stackgroup": stack, "fillcolor": palette.KIND[kind], "hoverinfo": "name+x+y",
            "line": {"shape": "hv", "width": 0, "color": palette.KIND[kind]},
        }  # fmt: skip
    peak_bytes = panel.peak_bytes if panel is not None else 0
    for name, level, line in (
        ("peak", peak_bytes, {"color": palette.GREY, "width": 1.5, "dash": "dash"}),
        ("limit", row.limit_bytes, {"color": palette.LIMIT, "width": 2}),
    ):
        if level:
            height = (level / row.unit_bytes,) * 2
            yield {"x": (0, end_ms), "y": height, "name": name, "legendgroup": name, "mode": "lines", "line": line, "hoverinfo": "name+y"}


def _align_titles(figure: go.Figure) -> None:
    """Move each panel's title, which plotly centers, to the left edge of the panel."""
    for axis in figure.select_xaxes():
        for title in [t for t in figure.layout.annotations if abs(t.x - sum(axis.domain) / 2) < 1e-6]:
            title.update(x=axis.domain[0], xanchor="left", font={"size": 13})


def _lines_figure(timelines: Sequence[Timeline]) -> go.Figure:
    """Bytes held per device as lines, for timelines that do not say what the memory holds."""
    figure = go.Figure()
    for timeline in timelines:
        start, end = timeline.window_s
        for device, steps in timeline.memory.items():
            before = [held for time, held in steps if time <= start]
            inside = [(start, before[-1] if before else 0), *((time, held) for time, held in steps if start < time <= end)]
            inside.append((end, inside[-1][1]))
            times, held = zip(*inside, strict=True)
            name = plotly_escaped(f"{device} {timeline.kind}")
            figure.add_scatter(x=[(t - start) * 1e3 for t in times], y=[h / 2**30 for h in held], name=name, mode="lines", line_shape="hv")
    figure.update_yaxes(title_text="GiB", rangemode="tozero", gridcolor=palette.GRID)
    figure.update_xaxes(title_text=X_LABEL, showgrid=False, zeroline=False)
    return finished(figure, "Memory", drawn_px=200)
