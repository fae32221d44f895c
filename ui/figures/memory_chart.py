"""The interactive figure of memory over one steady period. Drawing only."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from simulator.predict.explain import KIND_NAMES
from traces.timeline import Timeline
from traces.units import memory_unit
from ui.figures import palette
from ui.figures.charts import finished
from ui.figures.memory_panels import devices_shown, heading, limit_drawn, panel


def memory_figure(predicted: Timeline, measured: Timeline | None = None) -> go.Figure:
    """Bytes held over one steady period: a row per device, predicted beside measured, stacked by kind of value.

    A dashed line marks the peak (of a measured timeline, the allocator's), a red one the limit where it is near.
    """
    shown = [timeline for timeline in (predicted, measured) if timeline is not None]
    devices = devices_shown(shown)
    if not devices:
        return _memory_lines(shown)
    rows = [[panel(timeline, device) for timeline in shown] for device in devices]
    drawn_px = 190 * len(devices) + 50 * (len(devices) - 1)
    limits = [predicted.limits_bytes.get(device) for device in devices]
    highest = [max((max(each.highest_bytes, each.peak_bytes) for each in panels if each is not None), default=0) for panels in rows]
    near = [limit_drawn(limit, most) for limit, most in zip(limits, highest, strict=True)]
    titles = [
        heading(timeline, each, limit if not close else None) if each is not None else ""
        for panels, limit, close in zip(rows, limits, near, strict=True)
        for timeline, each in zip(shown, panels, strict=True)
    ]
    spacing = 50 / drawn_px if len(devices) > 1 else 0.0
    figure = make_subplots(
        len(devices), len(shown), shared_xaxes="all", shared_yaxes="rows", vertical_spacing=spacing, horizontal_spacing=0.03,
        subplot_titles=titles,
    )  # fmt: skip
    listed: set[str] = set()
    end_ms = max(timeline.window_s[1] - timeline.window_s[0] for timeline in shown) * 1e3
    for row, panels in enumerate(rows):
        size, name = memory_unit(highest[row])
        for column, each in enumerate(panels, start=1):
            place = {"row": row + 1, "col": column}
            for kind, counts in each.held.items() if each is not None else ():
                figure.add_scatter(
                    x=each.times_ms, y=[count / size for count in counts], name=KIND_NAMES[kind], legendgroup=kind, mode="lines",
                    showlegend=kind not in listed, stackgroup=f"{row} {column}", fillcolor=palette.KIND[kind], hoverinfo="name+x+y",
                    line={"shape": "hv", "width": 0, "color": palette.KIND[kind]}, **place,
                )  # fmt: skip
                listed.add(kind)
            levels = [("peak", each.peak_bytes if each is not None else 0, {"color": palette.GREY, "width": 1.5, "dash": "dash"})]
            levels.append(("limit", limits[row] if near[row] else 0, {"color": palette.LIMIT, "width": 2}))
            for name_of, level, line in levels:
                if level:
                    figure.add_scatter(
                        x=(0, end_ms), y=(level / size,) * 2, name=name_of, legendgroup=name_of, mode="lines", line=line,
                        showlegend=name_of not in listed, hoverinfo="name+y", **place,
                    )  # fmt: skip
                    listed.add(name_of)
        top = max(highest[row], limits[row] if near[row] else 0) / size * 1.1
        figure.update_yaxes(range=[0, top or 1], gridcolor=palette.GRID, zeroline=False, row=row + 1)
        figure.update_yaxes(title_text=name, row=row + 1, col=1)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_xaxes(title_text="ms from the start of the steady period", row=len(devices))
    for axis in figure.select_xaxes():
        for title in [t for t in figure.layout.annotations if abs(t.x - sum(axis.domain) / 2) < 1e-6]:
            title.update(x=axis.domain[0], xanchor="left", font={"size": 13})
    return finished(figure, "Memory by what it holds", drawn_px=drawn_px)


def _memory_lines(shown: Sequence[Timeline]) -> go.Figure:
    """Bytes held per device, of timelines that do not say by what."""
    figure = go.Figure()
    for timeline in shown:
        start, end = timeline.window_s
        for device, steps in timeline.memory.items():
            before = [held for time, held in steps if time <= start]
            inside = [(start, before[-1] if before else 0), *((time, held) for time, held in steps if start < time <= end)]
            inside.append((end, inside[-1][1]))
            times, held = zip(*inside, strict=True)
            name = f"{device} {timeline.kind}"
            figure.add_scatter(x=[(t - start) * 1e3 for t in times], y=[h / 2**30 for h in held], name=name, mode="lines", line_shape="hv")
    figure.update_yaxes(title_text="GiB", rangemode="tozero", gridcolor=palette.GRID)
    figure.update_xaxes(title_text="ms from the start of the steady period", showgrid=False, zeroline=False)
    return finished(figure, "Memory", drawn_px=200)
