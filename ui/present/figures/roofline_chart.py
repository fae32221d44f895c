"""The interactive roofline of a machine: every op of a job, and every measured key, under the roof of peak FLOP/s and bandwidth."""

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go

from simulator.engine.costs.op_points import OpPoint, Roof
from traces import units
from ui.present.figures import palette
from ui.present.figures.charts import finished
from ui.present.text.labels import plotly_escaped

#: Points of measured keys that are drawn at most.
MOST_KEYS = 2000
_OF_KEYS = "measured costs of the profile"


def roofline_figure(points: Sequence[OpPoint], own_roof: Roof, keys: Sequence[OpPoint] = ()) -> go.Figure:
    """FLOP/s over FLOPs per byte on logarithmic axes. Marks grow with the time that the op takes in all; colors are those of phases."""
    figure = go.Figure()
    shown = [point for point in points if point.drawable]
    others = [point for point in keys if point.drawable][:MOST_KEYS]
    if others:
        _marks(figure, others, _OF_KEYS, palette.GREY, [5.0] * len(others), 0.35)
    longest_s = max((point.count * point.seconds for point in shown), default=1.0)
    for phase in palette.phases_in_order({point.phase for point in shown}):
        own = [point for point in shown if point.phase == phase]
        sizes = [7 + 25 * (point.count * point.seconds / longest_s) ** 0.5 for point in own]
        _marks(figure, own, phase, palette.phase_color(phase), sizes, 0.8)
    everything = [*shown, *others]
    low, high = _range([point.intensity for point in everything], own_roof)
    for precision in roofs_to_draw(own_roof, everything):
        corner = own_roof.peaks[precision] / own_roof.bytes_per_s
        x = sorted({low, high, *([corner] if low < corner < high else [])})
        figure.add_scatter(
            x=x, y=[own_roof.at(value, precision) for value in x], mode="lines", name=f"roof, {precision}",
            line={"color": palette.LIMIT, "width": 2, "dash": "solid" if precision == "fp32" else "dash"}, hoverinfo="name+y",
        )  # fmt: skip
    axis = {"type": "log", "gridcolor": palette.GRID, "exponentformat": "SI"}
    figure.update_xaxes(title_text="FLOPs per byte", range=[log10(low), log10(high)], **axis)
    figure.update_yaxes(title_text="FLOP/s", **axis)
    return finished(figure, "Roofline: every op of the job", drawn_px=420)


def roofs_to_draw(own_roof: Roof, points: Sequence[OpPoint]) -> list[str]:
    """The precisions whose roofs apply to a point, fp32 first."""
    used = {point.precision for point in points if point.precision in own_roof.peaks}
    return [name for name in own_roof.peaks if name in used | {"fp32"}]


def _range(intensities: Sequence[float], own_roof: Roof) -> tuple[float, float]:
    corner = max(own_roof.peaks.values()) / own_roof.bytes_per_s
    return min([*intensities, corner / 100]) / 2, max([*intensities, corner]) * 3


def _marks(figure: go.Figure, points: Sequence[OpPoint], name: str, color: str, sizes: Sequence[float], opacity: float) -> None:
    texts = [
        "<br>".join((
            f"<b>{plotly_escaped(point.name[:120])}</b>",
            plotly_escaped(f"{point.op_class}, {point.precision}, {point.source}"),
            f"{point.count} x {units.duration(point.seconds)}",
            f"{units.digits(point.intensity)} FLOPs per byte, {units.digits(point.flops_per_s / 1e9)} GFLOP/s",
        ))
        for point in points
    ]  # fmt: skip
    figure.add_scatter(
        x=[point.intensity for point in points], y=[point.flops_per_s for point in points], mode="markers", name=plotly_escaped(name),
        marker={"color": color, "size": list(sizes), "opacity": opacity, "line": {"width": 0}}, hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
