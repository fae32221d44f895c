"""The parts of the app that explain a step time: a sentence and a waterfall whose numbers add up."""

import streamlit as st

from traces.documents.comparison import Prediction, ValidationResult
from ui.present.figures.waterfall_chart import waterfall_figure
from ui.present.text import waterfalls
from ui.present.text.labels import markdown_escaped, strategy_name


def prediction_waterfall_ui(prediction: Prediction) -> None:
    """Show why a strategy is faster or slower than the baseline; nothing for the baseline itself."""
    if prediction.waterfall:
        st.write(markdown_escaped(" ".join(waterfalls.prediction_words(prediction))))
        title = f"From the baseline to {strategy_name(prediction.strategy)}"
        st.plotly_chart(waterfall_figure(waterfalls.prediction_bars(prediction), title), key="waterfall")


def measured_waterfall_ui(result: ValidationResult) -> None:
    """Show why the measured step is not as long as predicted; nothing if the document does not say."""
    if result.waterfall:
        st.write(markdown_escaped(" ".join(waterfalls.measured_words(result))))
        st.plotly_chart(waterfall_figure(waterfalls.measured_bars(result), "From predicted to measured"), key="measured waterfall")
