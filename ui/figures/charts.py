"""Interactive figures for the app: timelines, step times per strategy, time per phase. Drawing only.

Backgrounds are transparent and no text has a colour of its own, so that a figure suits a light and a dark page.
"""

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces import units
from traces.comparison import Comparison, Prediction, Validation
from traces.critical import critical_spans
from traces.lanes import lanes
from traces.timeline import Span, Timeline
from ui.figures import palette
from ui.text.labels import headline, lane_label, row_labels

#: Above this many spans, their borders would hide them.
BORDERED_SPANS = 600


def timelines_figure(predicted: Timeline, measured: Timeline | None = None) -> go.Figure:
    """One steady period, predicted above measured on one time axis that begins at 0; one row per lane, coloured by phase.

    A red stripe under a span marks the critical path. Without `measured`, the prediction alone.
    """
    shown = [timeline for timeline in (predicted, measured) if timeline is not None]
    rows = [lanes(timeline, timeline.window()) for timeline in shown]
    titles = [f"{timeline.kind}: {units.duration(timeline.step_s)}" for timeline in shown]
    heights = [max(1, len(row)) for row in rows]
    drawn_px = 34 * sum(heights) + 56 * (len(shown) - 1)
    spacing = 56 / drawn_px if len(shown) > 1 else 0.0
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=spacing, row_heights=heights, subplot_titles=titles)
    listed: set[str] = set()
    for number, (timeline, places) in enumerate(zip(shown, rows, strict=True), start=1):
        for trace in _span_traces(timeline, listed):
            figure.add_trace(trace, row=number, col=1)
        labels = [lane_label(*place) for place in places]
        figure.update_yaxes(
            categoryorder="array", categoryarray=labels, autorange="reversed", showgrid=False, ticksuffix=" ", row=number, col=1
        )
        step_ms = timeline.step_s * 1e3
        figure.add_vline(x=step_ms, line={"color": palette.GREY, "width": 1.5, "dash": "dash"}, row=number, col=1)
    end_ms = max(max(t.step_s, t.window_s[1] - t.window_s[0]) for t in shown) * 1e3
    figure.update_xaxes(range=[0, end_ms * 1.01], showgrid=True, gridcolor=palette.GRID, zeroline=False)
    figure.update_xaxes(title_text="ms from the start of the steady period", row=len(shown), col=1)
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    title = headline(predicted.step_s, measured.step_s if measured else None)
    return finished(figure, title, drawn_px=drawn_px, barmode="overlay")


def _span_traces(timeline: Timeline, listed: set[str]) -> "list[go.Bar]":
    """One bar trace per phase and one of critical stripes; `listed` holds what the legend has already."""
    origin, end = timeline.window_s
    spans = timeline.window()
    causes = {span: link.cause for span, link in critical_spans(timeline)}
    border = {"width": 0.5 if len(spans) <= BORDERED_SPANS else 0, "color": "rgba(255,255,255,0.6)"}
    groups = [(phase, [s for s in spans if s.phase == phase]) for phase in palette.phases_in_order({s.phase for s in spans})]
    groups.append(("critical path", [s for s in spans if s in causes]))
    traces = []
    for name, group in groups:
        if not group:
            continue
        stripe = name == "critical path"
        left = [max(s.start_s, origin) for s in group]
        colour = palette.CRITICAL if stripe else palette.phase_colour(name)
        looks = (
            {"offset": 0.42, "width": 0.1, "hoverinfo": "skip"}
            if stripe
            else {"width": 0.78, "hovertemplate": "%{hovertext}<extra></extra>"}
        )
        texts = None if stripe else [_hover(s, origin, causes.get(s)) for s in group]
        bar = go.Bar(orientation="h", name=name, legendgroup=name, showlegend=name not in listed, marker={"color": colour, "line": border})
        bar.update(
            y=[lane_label(s.device, s.lane) for s in group],
            base=[(start - origin) * 1e3 for start in left],
            x=[(min(s.end_s, end) - start) * 1e3 for s, start in zip(group, left, strict=True)],
            hovertext=texts,
            **looks,
        )
        listed.add(name)
        traces.append(bar)
    return traces


def _hover(span: Span, origin: float, cause: str | None) -> str:
    lines = [
        f"<b>{escape(span.task)}</b>",
        f"{span.phase}{f' of {escape(span.layer)}' if span.layer else ''}, micro-batch {span.micro_batch}",
    ]
    lines.append(f"{units.duration(span.end_s - span.start_s)}, from {units.duration(span.start_s - origin)}, iteration {span.iteration}")
    return "<br>".join([*lines, f"on the critical path, waited for: {cause}"] if cause else lines)


def speedups_figure(validation: Validation) -> go.Figure:
    """Predicted and measured step time per strategy: whiskers are the 90 % interval and the range of the measured runs."""
    results = validation.ran
    figure = go.Figure()
    names = row_labels(results)
    predicted = [(r.predicted_step_s, *(r.predicted_interval_s or (r.predicted_step_s,) * 2)) for r in results]
    measured = [
        (r.measured_step_s, min((*r.measured_runs_s, r.measured_step_s)), max((*r.measured_runs_s, r.measured_step_s))) for r in results
    ]
    _add_points(figure, "predicted, 90 % interval", palette.PREDICTED, "diamond", names, predicted, -0.12)
    _add_points(figure, "measured, all runs", palette.MEASURED, "circle", names, measured, 0.12)
    gains = [f"{units.speedup(r.predicted_speedup)} / {units.speedup(r.measured_speedup)}" for r in results]
    return _strategy_axes(figure, "Step time per strategy (speed-up predicted / measured)", names, gains)


def predictions_figure(predictions: Sequence[Prediction]) -> go.Figure:
    """Predicted step time per strategy with its 90 % interval and speed-up."""
    figure = go.Figure()
    names = [prediction.strategy for prediction in predictions]
    values = [(p.step_s, *(p.interval_s or (p.step_s,) * 2)) for p in predictions]
    _add_points(figure, "predicted, 90 % interval", palette.PREDICTED, "diamond", names, values, 0.0)
    return _strategy_axes(figure, "Predicted step time per strategy (speed-up)", names, [units.speedup(p.speedup) for p in predictions])


def _add_points(
    figure: go.Figure, name: str, colour: str, symbol: str, names: list[str], values: list[tuple[float, float, float]], offset: float
) -> None:
    """One point with whiskers per strategy: `values` are (value, low, high) in seconds."""
    whiskers = {"type": "data", "symmetric": False, "thickness": 1.5, "color": colour}
    whiskers["array"] = [(high - value) * 1e3 for value, _, high in values]
    whiskers["arrayminus"] = [(value - low) * 1e3 for value, low, _ in values]
    texts = [
        f"<b>{escape(label)}</b><br>{name}: {units.duration(value)} ({units.interval((low, high))})"
        for label, (value, low, high) in zip(names, values, strict=True)
    ]
    figure.add_scatter(
        x=[value * 1e3 for value, _, _ in values],
        y=[row + offset for row in range(len(values))],
        mode="markers",
        name=name,
        marker={"color": colour, "symbol": symbol, "size": 10},
        error_x=whiskers,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _strategy_axes(figure: go.Figure, title: str, names: list[str], notes: list[str]) -> go.Figure:
    labels = [f"{escape(name)}<br>{note}" for name, note in zip(names, notes, strict=True)]
    rows = len(labels)
    figure.update_yaxes(
        tickvals=list(range(rows)), ticktext=labels, range=[rows - 0.5, -0.5], zeroline=False, showgrid=False, ticksuffix=" "
    )
    figure.update_xaxes(title_text="step time, ms", rangemode="tozero", zeroline=False, showgrid=True, gridcolor=palette.GRID)
    return finished(figure, title, drawn_px=20 + 55 * rows)


def phases_figure(comparison: Comparison) -> go.Figure:
    """Task time per phase within one steady period, predicted beside measured."""
    seconds = comparison.phases()
    phases = palette.phases_in_order(set(seconds))
    figure = go.Figure()
    for name, colour, pick in (("predicted", palette.PREDICTED, "predicted_s"), ("measured", palette.MEASURED, "measured_s")):
        values = [getattr(seconds[phase], pick) for phase in phases]
        figure.add_bar(
            x=phases,
            y=[v * 1e3 for v in values],
            name=name,
            marker_color=colour,
            text=[units.ms(v) for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_yaxes(title_text="task time per step, ms", gridcolor=palette.GRID)
    return finished(figure, "Task time per phase", drawn_px=240, barmode="group")


def finished(figure: go.Figure, title: str, drawn_px: int, **layout) -> go.Figure:
    """Title at the left, legend under it, transparent backgrounds; `drawn_px` is the height inside the margins."""
    margin = {"l": 10, "r": 20, "t": 96, "b": 50}
    height = drawn_px + margin["t"] + margin["b"]
    legend = {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1 - 36 / height, "xanchor": "left", "x": 0}
    heading = {"text": title, "x": 0, "xanchor": "left", "yanchor": "top", "y": 1 - 8 / height, "yref": "container"}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    return figure.update_layout(
        title=heading, height=height, legend=legend, showlegend=True, margin=margin, hovermode="closest", **clear, **layout
    )
