"""The app's page of a training, which `schedcast run --out` wrote."""

from pathlib import Path

import streamlit as st

from traces.documents.training import TrainingRun
from traces.errors import SchedcastError
from ui.app.table_parts import formulas_ui, table_ui
from ui.present.figures.training_chart import training_figure
from ui.present.figures.training_curves import measures
from ui.present.reports import training as training_report
from ui.present.text import trainings as training_words
from ui.present.text.labels import markdown_escaped
from ui.present.text.verdicts import busy_line


def training_place(place: Path) -> Path | None:
    """The document in a training's folder; None for any other path."""
    document = place / training_report.DOCUMENT
    return document if document.is_file() else None


def training_ui(document: Path) -> None:
    """Show curves, sentences and table of one training."""
    try:
        run = load_run(str(document), document.stat().st_mtime_ns)
    except SchedcastError as error:
        st.error(markdown_escaped(str(error)))
        return
    st.subheader(markdown_escaped(training_words.title(run)), anchor=False)
    if busy := busy_line(run.busy_share):
        st.error(markdown_escaped(busy))
    st.write(markdown_escaped("; ".join(training_words.sentences(run)) + "."))
    measure = st.radio("over", list(measures(run)), horizontal=True, key="measure")
    st.plotly_chart(training_figure(run, measure), key="training")
    table_ui(training_words.cells(run))
    formulas_ui("Step of a training", "Loss at the end", "Difference of losses")


@st.cache_resource(max_entries=8, show_spinner="Reading the training")
def load_run(place: str, stamp: int) -> TrainingRun:
    """A training from the cache. It is read again when its document has changed, which `stamp` shows."""
    return TrainingRun.load(place)
