"""The app's page of predictions: a job, a machine and strategies, and what they would give."""

from collections.abc import Sequence

import streamlit as st

from traces import units
from traces.errors import StepcastError
from ui.app.memory_parts import predictions_table_ui, shortage_ui
from ui.app.model import Forecast, Predictor, Refusal, Request, find_predictor
from ui.app.request_form import request_ui, request_words
from ui.app.state import select
from ui.app.timeline_parts import timelines_ui
from ui.app.waterfall_parts import prediction_waterfall_ui
from ui.figures import charts
from ui.figures.memory_chart import memory_figure
from ui.text import sentences, tables
from ui.text.labels import markdown_escaped

TITLE, ICON, ORDER = "What if", ":material/tune:", 10
#: The key of the container of answers to an earlier request, by which its style finds it.
STALE = "earlier-answers"
#: Rows of the table of the critical path's longest tasks.
LONGEST = 12


def page() -> None:
    """Let the user ask for predictions, and show the last answers under the job that they belong to."""
    predictor = find_predictor()
    if predictor is None:
        st.info("This installation cannot predict from the app, because it has no `ui.jobs`. Use `stepcast predict` on the command line.")
        return
    request = None
    try:
        with st.container(border=True):
            request, asked = request_ui(predictor.choices())
        if asked:
            st.session_state["answered"] = (request, forecast(repr(request), predictor, request))
    except StepcastError as error:
        st.error(markdown_escaped(str(error)))
    if "answered" not in st.session_state:
        return
    answered, answers = st.session_state["answered"]
    stale = answered != request
    st.subheader(markdown_escaped(request_words(answered)), anchor=False)
    if stale:
        st.warning("These answers belong to the earlier request in the title. The form has changed since; Predict answers it.")
        st.html(f"<style>.st-key-{STALE} {{ opacity: 0.45; }}</style>")
    with st.container(key=STALE if stale else "answers"):
        answers_ui(answers)


@st.cache_data(max_entries=32, ttl=300, show_spinner="Predicting")
def forecast(key: str, _predictor: Predictor, _request: Request) -> Sequence[Forecast | Refusal]:
    """The predictor's answers. `key` identifies the request in the cache, which expires soon because a calibration may change answers."""
    return tuple(_predictor.predict_many(_request))


def answers_ui(answers: Sequence[Forecast | Refusal]) -> None:
    """Show all answers in one table, then one in detail."""
    for refusal in (answer for answer in answers if isinstance(answer, Refusal)):
        st.warning(markdown_escaped(f"{refusal.strategy}: {refusal.why}"))
    forecasts = [answer for answer in answers if isinstance(answer, Forecast)]
    if not forecasts:
        return
    predictions, here = [answer.prediction for answer in forecasts], forecasts[0].measured_here
    labels = [tables.prediction_label(prediction) for prediction in predictions]
    shortage_ui(predictions)
    st.plotly_chart(charts.predictions_figure(predictions, labels), key="predictions")
    predictions_table_ui(predictions, here)
    chosen = select(st, "Look at", labels, "looked at")
    forecast_details_ui(forecasts[labels.index(chosen)])


def forecast_details_ui(answer: Forecast) -> None:
    """Show one prediction: step time, timeline, explanation, memory and the longest tasks of its critical path."""
    prediction = answer.prediction
    if prediction.fits:
        figures = (
            (
                "Step time",
                units.duration(prediction.step_s),
                f"{units.interval(prediction.interval_s)} ms" if prediction.interval_s else units.NONE,
            ),
            ("Against PyTorch", units.speedup(prediction.against_pytorch), units.factors(prediction.against_pytorch_interval)),
            ("Over the baseline", units.speedup(prediction.speedup), units.factors(prediction.speedup_interval)),
        )
        for column, (label, value, interval) in zip(st.columns(len(figures)), figures, strict=True):
            column.metric(label, value)
            if interval != units.NONE:
                column.caption(f"90 %: {interval}")
    timelines_ui("forecast", answer.timeline)
    prediction_waterfall_ui(prediction)
    st.write(markdown_escaped(" ".join(sentences.prediction_words(prediction, answer.measured_here))))
    if answer.timeline.memory:
        st.plotly_chart(memory_figure(answer.timeline), key="forecast memory")
    with st.expander("Longest tasks on the critical path"):
        st.dataframe(tables.critical_cells(prediction, LONGEST), hide_index=True)
