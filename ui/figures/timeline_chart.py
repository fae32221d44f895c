"""The interactive chart of timelines: predicted above measured on one time axis."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces import units
from traces.timeline import Timeline
from ui.figures import palette
from ui.figures.charts import finished
from ui.figures.timeline_panels import CRITICAL, IDLE, X_LABEL, Bar, TimelinePanel, timeline_panel
from ui.text.labels import headline, plotly_escaped

#: Pixels per lane, and between the panels.
LANE_PX, BETWEEN_PX = 34, 56


def timelines_figure(predicted: Timeline, measured: Timeline | None = None) -> go.Figure:
    """One training step, predicted above measured on one time axis that begins at 0; one row per lane, colored by phase.

    A red stripe under a bar marks the critical path. Without `measured`, the figure shows the prediction alone.
    """
    panels = [timeline_panel(timeline) for timeline in (predicted, measured) if timeline is not None]
    heights = [max(1, len(panel.rows)) for panel in panels]
    drawn_px = LANE_PX * sum(heights) + BETWEEN_PX * (len(panels) - 1)
    spacing = BETWEEN_PX / drawn_px if len(panels) > 1 else 0.0
    titles = [plotly_escaped(f"{panel.kind}: {panel.step_label}") for panel in panels]
    figure = make_subplots(len(panels), 1, shared_xaxes=True, vertical_spacing=spacing, row_heights=heights, subplot_titles=titles)
    in_legend: set[str] = set()
    for number, panel in enumerate(panels, start=1):
        for trace in _traces(panel, in_legend):
            figure.add_trace(trace, row=number, col=1)
        figure.update_yaxes(
            categoryorder="array", categoryarray=labels(panel), autorange="reversed", showgrid=False, ticksuffix=" ", row=number, col=1
        )
        figure.add_vline(x=panel.step_ms, line={"color": palette.GREY, "width": 1.5, "dash": "dash"}, row=number, col=1)
    end_ms = max(panel.length_ms for panel in panels)
    figure.update_xaxes(range=[0, end_ms * 1.01], showgrid=True, gridcolor=palette.GRID, zeroline=False)
    figure.update_xaxes(title_text=X_LABEL, row=len(panels), col=1)
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    if any(panel.pipeline for panel in panels):
        figure.update_layout(uniformtext={"minsize": 8, "mode": "hide"})  # labels that do not fit into their bars
    title = headline(predicted.step_s, measured.step_s if measured else None)
    return finished(figure, title, drawn_px=drawn_px, barmode="overlay")


def _traces(panel: TimelinePanel, in_legend: set[str]) -> list[go.Bar]:
    """One bar trace per phase, one of critical stripes, and before them one of idle time in a pipeline.

    Names that are not yet in `in_legend` are added to it and to the legend.
    """
    names = labels(panel)
    border = {"width": 0.5 if panel.bordered else 0, "color": "rgba(255,255,255,0.6)"}
    traces = [_idle_trace(panel, names, IDLE not in in_legend)] if panel.idle else []
    in_legend |= {trace.name for trace in traces}
    for name, bars in (*panel.bars.items(), (CRITICAL, panel.critical)):
        if not bars:
            continue
        if name == CRITICAL:
            color, looks = palette.CRITICAL, {"offset": 0.42, "width": 0.1, "hoverinfo": "skip"}
        else:
            color, looks = palette.phase_color(name), {"width": 0.78, "hovertemplate": "%{hovertext}<extra></extra>"}
            looks["hovertext"] = [_hover(bar) for bar in bars]
            if panel.pipeline:
                color = [palette.shaded(color, bar.shade) for bar in bars]
                looks |= {"text": [bar.labels[0] if bar.labels else "" for bar in bars], "textposition": "inside", "textangle": 0}
                looks["insidetextanchor"] = "middle"
        trace = go.Bar(
            orientation="h",
            name=plotly_escaped(name),
            legendgroup=plotly_escaped(name),
            showlegend=name not in in_legend,
            marker={"color": color, "line": border},
            y=[names[bar.row] for bar in bars],
            base=[bar.start_ms for bar in bars],
            x=[bar.length_ms for bar in bars],
            **looks,
        )
        in_legend.add(name)
        traces.append(trace)
    return traces


def _idle_trace(panel: TimelinePanel, names: Sequence[str], in_legend: bool) -> go.Bar:
    rows, starts_ms, lengths_ms = zip(*panel.idle, strict=True)
    return go.Bar(
        orientation="h",
        name=IDLE,
        legendgroup=IDLE,
        showlegend=in_legend,
        marker={"color": "rgba(0,0,0,0)", "line": {"width": 0}, "pattern": {"shape": "/", "fgcolor": palette.IDLE, "size": 6}},
        y=[names[row] for row in rows],
        base=starts_ms,
        x=lengths_ms,
        width=0.78,
        hovertemplate="idle for %{x:.3g} ms<extra></extra>",
    )


def labels(panel: TimelinePanel) -> list[str]:
    """The labels of a panel's rows, as plotly shows them unchanged."""
    return [plotly_escaped(row) for row in panel.rows]


def _hover(bar: Bar) -> str:
    span = bar.span
    lines = [
        f"<b>{plotly_escaped(span.task)}</b>",
        f"{plotly_escaped(span.phase)}{f' of {plotly_escaped(span.layer)}' if span.layer else ''}, micro-batch {span.micro_batch}",
        f"{units.duration(span.end_s - span.start_s)}, from {units.duration(bar.offset_ms / 1e3)}, iteration {span.iteration}",
    ]
    if bar.critical:
        lines.append(f"on the critical path, waited for: {bar.cause}")
    return "<br>".join(lines)
