"""The interactive chart of a training."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces.training import TrainingRun
from ui.figures import palette
from ui.figures.charts import finished
from ui.figures.training_curves import lines, logarithmic
from ui.text.labels import plotly_escaped


def training_figure(document: TrainingRun) -> go.Figure:
    """The chart of the loss over iterations and over seconds."""
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    curves = lines(document)
    for number, line in enumerate(curves):
        for column, x in ((1, line.iterations), (2, line.seconds)):
            if line.smooth:
                faint = {"color": line.color, "width": 1}
                figure.add_scatter(
                    x=x, y=line.losses, mode="lines", line=faint, opacity=0.2, showlegend=False, hoverinfo="skip", row=1, col=column
                )
            look = {"color": line.color, "width": 5 if number == 0 else 2}
            names = dict.fromkeys(("name", "legendgroup"), plotly_escaped(line.name))
            figure.add_scatter(
                x=x, y=line.means, mode="lines", line=look, opacity=0.6 if number == 0 else 1.0, showlegend=column == 1, row=1, col=column,
                **names,
            )  # fmt: skip
    figure.update_xaxes(title_text="iteration", gridcolor=palette.GRID, zeroline=False, row=1, col=1)
    figure.update_xaxes(title_text="seconds of training steps", gridcolor=palette.GRID, zeroline=False, row=1, col=2)
    figure.update_yaxes(gridcolor=palette.GRID, zeroline=False, type="log" if logarithmic(curves) else "linear")
    figure.update_yaxes(title_text="loss", row=1, col=1)
    return finished(figure, "Loss over iterations and over seconds", drawn_px=320)
