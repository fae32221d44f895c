"""Interactive charts for the app: step times per strategy and task time per phase.

Backgrounds are transparent and text has no color of its own, so that a chart suits light and dark pages.
"""

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from traces import units
from traces.comparison import Comparison, Prediction, Validation
from ui.figures import palette
from ui.text.labels import plain_label, row_labels


def speedups_figure(validation: Validation) -> go.Figure:
    """Predicted and measured step time per strategy. Whiskers are the 90 % interval and the range of the measured runs.

    A dashed line marks plain PyTorch.
    """
    results = validation.ran
    figure = go.Figure()
    names = row_labels(results)
    predicted = [(r.predicted_step_s, *(r.predicted_interval_s or (r.predicted_step_s,) * 2)) for r in results]
    measured = [
        (r.measured_step_s, min((*r.measured_runs_s, r.measured_step_s)), max((*r.measured_runs_s, r.measured_step_s))) for r in results
    ]
    _add_points(figure, "predicted, 90 % interval", palette.PREDICTED, "diamond", names, predicted, -0.12)
    _add_points(figure, "measured, all runs", palette.MEASURED, "circle", names, measured, 0.12)
    if results and validation.reference_step_s is not None:
        line = {"color": palette.GREY, "width": 1.5, "dash": "dash"}
        note = {"annotation_text": plain_label(validation), "annotation_position": "bottom right"}
        figure.add_vline(x=validation.reference_step_s * 1e3, line=line, **note)
    gains = [f"{units.speedup(r.predicted_speedup)} / {units.speedup(r.measured_speedup)}" for r in results]
    return _strategy_axes(figure, "Step time per strategy (speed-up predicted / measured)", names, gains)


def predictions_figure(predictions: Sequence[Prediction]) -> go.Figure:
    """Predicted step time per strategy with its 90 % interval and speed-up."""
    figure = go.Figure()
    names = [prediction.strategy for prediction in predictions]
    values = [(p.step_s, *(p.interval_s or (p.step_s,) * 2)) for p in predictions]
    _add_points(figure, "predicted, 90 % interval", palette.PREDICTED, "diamond", names, values, 0.0)
    return _strategy_axes(figure, "Predicted step time per strategy (speed-up)", names, [_note(p) for p in predictions])


def _note(prediction: Prediction) -> str:
    return units.speedup(prediction.speedup) if prediction.fits else "does not fit"


def _add_points(
    figure: go.Figure, name: str, color: str, symbol: str, names: list[str], values: list[tuple[float, float, float]], offset: float
) -> None:
    """Add one point with whiskers per strategy. `values`: (value, low, high) in seconds. `offset`: from the middle of the row."""
    whiskers = {"type": "data", "symmetric": False, "thickness": 1.5, "color": color}
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
        marker={"color": color, "symbol": symbol, "size": 10},
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
    """Task time per phase within one steady period, predicted and measured."""
    seconds = comparison.phases()
    phases = palette.phases_in_order(set(seconds))
    figure = go.Figure()
    for name, color, pick in (("predicted", palette.PREDICTED, "predicted_s"), ("measured", palette.MEASURED, "measured_s")):
        values = [getattr(seconds[phase], pick) for phase in phases]
        figure.add_bar(
            x=phases,
            y=[v * 1e3 for v in values],
            name=name,
            marker_color=color,
            text=[units.ms(v) for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_yaxes(title_text="task time per step, ms", gridcolor=palette.GRID)
    return finished(figure, "Task time per phase", drawn_px=240, barmode="group")


def finished(figure: go.Figure, title: str, drawn_px: int, **layout) -> go.Figure:
    """Give the figure a title at the left, a legend under it and transparent backgrounds. `drawn_px`: the height inside the margins."""
    margin = {"l": 10, "r": 20, "t": 96, "b": 50}
    height = drawn_px + margin["t"] + margin["b"]
    legend = {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1 - 36 / height, "xanchor": "left", "x": 0}
    heading = {"text": title, "x": 0, "xanchor": "left", "yanchor": "top", "y": 1 - 8 / height, "yref": "container"}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    return figure.update_layout(
        title=heading, height=height, legend=legend, showlegend=True, margin=margin, hovermode="closest", **clear, **layout
    )
