"""The app's page of a training, which `stepcast run --out` wrote."""

from pathlib import Path

import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from traces.errors import StepcastError
from traces.training import TrainingRun
from ui.figures import palette
from ui.figures.charts import finished
from ui.figures.training_curves import lines, logarithmic
from ui.reports import training as training_report
from ui.text import trainings as training_words
from ui.text.labels import markdown_escaped


def training_place(place: Path) -> Path | None:
    """The document in a training's folder; None for any other path."""
    document = place / training_report.DOCUMENT
    return document if document.is_file() else None


def training_ui(document: Path) -> None:
    """Show curves, sentences and table of one training."""
    try:
        run = load_run(str(document), document.stat().st_mtime_ns)
    except StepcastError as error:
        st.error(str(error))
        return
    st.subheader(training_words.title(run))
    st.write(markdown_escaped("; ".join(training_words.sentences(run)) + "."))
    st.plotly_chart(training_figure(run), key="training")
    st.dataframe(training_words.cells(run), hide_index=True)


@st.cache_resource(max_entries=8, show_spinner="Reading the training")
def load_run(place: str, stamp: int) -> TrainingRun:
    """A training from the cache. It is read again when its document has changed, which `stamp` shows."""
    return TrainingRun.load(place)


def training_figure(document: TrainingRun) -> go.Figure:
    """The chart of the loss over iterations and over seconds."""
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    drawn = lines(document)
    for number, line in enumerate(drawn):
        for column, x in ((1, line.iterations), (2, line.seconds)):
            if line.smooth:
                faint = {"color": line.color, "width": 1}
                figure.add_scatter(
                    x=x, y=line.losses, mode="lines", line=faint, opacity=0.2, showlegend=False, hoverinfo="skip", row=1, col=column
                )
            look = {"color": line.color, "width": 5 if number == 0 else 2}
            figure.add_scatter(
                x=x, y=line.means, mode="lines", line=look, opacity=0.6 if number == 0 else 1.0, name=line.name, legendgroup=line.name,
                showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(title_text="iteration", gridcolor=palette.GRID, zeroline=False, row=1, col=1)
    figure.update_xaxes(title_text="seconds of training steps", gridcolor=palette.GRID, zeroline=False, row=1, col=2)
    figure.update_yaxes(gridcolor=palette.GRID, zeroline=False, type="log" if logarithmic(drawn) else "linear")
    figure.update_yaxes(title_text="loss", row=1, col=1)
    return finished(figure, "Loss over iterations and over seconds", drawn_px=320)
