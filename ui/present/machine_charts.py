"""The interactive charts of a machine: the roofline of a job's ops and measured keys, and transfers with the law fitted to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

import plotly.graph_objects as go

from simulator.engine.costs.op_points import OpPoint, Roof
from traces import units
from traces.documents.collectives import CollectiveLaw
from traces.documents.profile import Profile, Transfer
from ui.present import palette
from ui.present.charts import finished
from ui.present.labels import plotly_escaped


@dataclass(frozen=True)
class FittedLine:
    """A transfer's or collective's measured (bytes, seconds), and its law at the same sizes (at 1 KiB to 1 GiB, if none was kept)."""

    name: str
    points: tuple[tuple[float, float], ...]
    law: tuple[tuple[float, float], ...]


def fitted_lines(profile: Profile) -> list[FittedLine]:
    """The transfers of a profile, then its collectives."""
    laws: Mapping[str, Transfer | CollectiveLaw] = {**profile.transfers, **profile.collectives}
    result = []
    for name, law in laws.items():
        points = tuple((size, seconds) for size, seconds in law.points if size > 0 and seconds > 0)
        sizes = sorted({size for size, _ in points}) or [2.0**power for power in range(10, 31, 2)]
        fitted = tuple((size, law_seconds(law, size)) for size in sizes)
        result.append(FittedLine(name, points, fitted))
    return result


def law_seconds(law: Transfer | CollectiveLaw, size: float) -> float:
    """The seconds that a law gives for `size` bytes: of a collective by its pieces, and not by the points it was fitted on."""
    if isinstance(law, Transfer):
        return law.latency_s + size / law.bytes_per_s
    piece = next((piece for piece in law.pieces if size <= piece.up_to_bytes), law.pieces[-1])
    return piece.latency_s + piece.s_per_byte * size


def transfers_figure(profile: Profile) -> go.Figure:
    """Time over size on logarithmic axes, one color per transfer or collective: measured points, and lines of the laws."""
    figure = go.Figure()
    for number, line in enumerate(fitted_lines(profile)):
        name, color = plotly_escaped(line.name), palette.line_color(number)
        for kind, rows in (("markers", line.points), ("lines", line.law)):
            if rows:
                x, y = zip(*rows, strict=True)
                figure.add_scatter(
                    x=x, y=[seconds * 1e3 for seconds in y], mode=kind, name=name, legendgroup=name, showlegend=kind == "lines",
                    line={"color": color, "width": 2}, marker={"color": color, "size": 8},
                    hovertemplate=f"%{{x:.3s}}B: %{{y:.3g}} ms, {'measured' if kind == 'markers' else 'law'}",
                )  # fmt: skip
    figure.update_xaxes(title_text="bytes", type="log", gridcolor=palette.GRID, exponentformat="SI")
    figure.update_yaxes(title_text="ms", type="log", gridcolor=palette.GRID)
    return finished(figure, "Transfers and collectives: measured points and fitted laws", drawn_px=320)


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
