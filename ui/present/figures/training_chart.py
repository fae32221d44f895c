"""The interactive chart of a training."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces.documents.training import TrainingRun
from ui.present.figures import palette
from ui.present.figures.charts import finished
from ui.present.figures.training_curves import ITERATIONS, Line, accuracies, lines, logarithmic, measures, title
from ui.present.text.labels import plotly_escaped


def training_figure(document: TrainingRun, measure: str = ITERATIONS) -> go.Figure:
    """The chart of the loss, and of the test accuracy if it was measured, over one of the document's `measures` of time."""
    losses, shares = lines(document), accuracies(document)
    figure = make_subplots(1, 2 if shares else 1, horizontal_spacing=0.08)
    for column, drawn in enumerate((losses, shares), start=1):
        for number, line in enumerate(drawn):
            if line.over(measure) is not None:
                _draw(figure, line, measure, column, number == 0)
    label = measures(document)[measure]
    figure.update_xaxes(title_text=plotly_escaped(label), gridcolor=palette.GRID, zeroline=False, rangemode="tozero")
    figure.update_yaxes(gridcolor=palette.GRID, zeroline=False)
    figure.update_yaxes(title_text="loss", type="log" if logarithmic(losses) else "linear", row=1, col=1)
    if shares:
        figure.update_yaxes(title_text="test accuracy in %", row=1, col=2)
        if document.target is not None:
            figure.add_hline(100 * document.target, line={"color": palette.GREY, "dash": "dot", "width": 1}, row=1, col=2)
    return finished(figure, f"{title(document)} over {measure}", drawn_px=320)


def _draw(figure: go.Figure, line: Line, measure: str, column: int, first: bool) -> None:
    """Add a line, and below it the band of several seeds or the faint losses of one."""
    x, quiet = line.over(measure), {"showlegend": False, "hoverinfo": "skip", "mode": "lines", "row": 1, "col": column}
    group = plotly_escaped(line.name)
    if line.seeds > 1:
        for edge, fill in ((line.high, None), (line.low, "tonexty")):
            figure.add_scatter(
                x=x, y=edge, line={"width": 0}, fill=fill, fillcolor=_clear(line.color), legendgroup=group, **quiet,
            )  # fmt: skip
    elif line.smooth:
        figure.add_scatter(x=x, y=line.values, line={"color": line.color, "width": 1}, opacity=0.2, legendgroup=group, **quiet)
    look = {"color": line.color, "width": 5 if first else 2}
    figure.add_scatter(
        x=x, y=line.means, mode="lines", line=look, opacity=0.6 if first else 1.0, showlegend=column == 1, row=1, col=column, name=group,
        legendgroup=group,
    )  # fmt: skip


def _clear(color: str) -> str:
    """The color of a band: one that other lines are seen through."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
