"""The interactive chart of transfers and collectives: the fitted law over the measured points."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traces.documents.collectives import CollectiveLaw
from traces.documents.profile import Profile, Transfer
from ui.present.figures import palette
from ui.present.figures.charts import finished
from ui.present.text.labels import plotly_escaped


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
