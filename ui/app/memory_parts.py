"""The parts of the app about predictions that do not fit in memory: red, first, and without a step time to rely on."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from traces.documents.comparison import Prediction
from ui.app.table_parts import table_ui
from ui.present.text import fits, tables
from ui.present.text.labels import markdown_escaped

#: Columns of a prediction that does not fit which are as prominent as those of others; the rest describe a step that cannot run.
PLAIN_COLUMNS = ("strategy", "peak memory", "fits")
RED, DIM_RED = "color: #D1495B", "color: #DFA6AD"


def shortage_ui(predictions: Sequence[Prediction]) -> None:
    """Say in red, for each prediction that does not fit, by how much, what holds the memory, and the largest batch that fits."""
    for prediction in predictions:
        if not prediction.fits:
            st.error(markdown_escaped(" ".join(fits.fit_words(prediction))))


def predictions_table_ui(predictions: Sequence[Prediction], here: bool = True) -> None:
    """Show the table of predictions. Rows of those that do not fit are red, and their times dimmed.

    `here`: whether measured costs are this machine's.
    """
    fitting, rows = [prediction.fits for prediction in predictions], tables.prediction_rows(predictions, here)
    if all(fitting):  # without styles, which take longer than all else
        table_ui(rows)
        return

    def styles(row: pd.Series) -> list[str]:
        return ["" if fitting[row.name] else RED if head in PLAIN_COLUMNS else DIM_RED for head in row.index]

    table_ui(rows, pd.DataFrame(rows).style.apply(styles, axis=1))
