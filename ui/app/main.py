"""The app: shows reports, predicts other schedules and machines, and replays recorded traces. `stepcast ui` starts it.

The app offers built-in models, the traces named at start, and the reports named at start or kept in the data folder. It never runs
uploaded code.
"""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from traces import units
from traces.comparison import Comparison, Validation
from traces.errors import StepcastError
from ui.app.diff_page import diff_ui
from ui.app.memory_parts import predictions_table_ui, shortage_ui
from ui.app.model import (
    Forecast,
    Predictor,
    Refusal,
    Request,
    find_predictor,
    report_places,
    reports_folder,
    start_arguments,
    start_traces,
)
from ui.app.replay_page import replay_ui
from ui.app.request_form import request_ui, request_words
from ui.app.state import keep_widgets, select
from ui.app.training_page import training_place, training_ui
from ui.app.waterfall_parts import measured_waterfall_ui, prediction_waterfall_ui
from ui.figures import charts
from ui.figures.memory_chart import memory_figure
from ui.figures.timeline_chart import timelines_figure
from ui.reports.report import Report, read_report
from ui.text import sentences, tables, verdicts
from ui.text.labels import markdown_escaped, row_labels

REPORTS, WHAT_IF, REPLAY, COMPARE = "Reports", "What if", "Replay", "Compare"
#: The key of the container of answers to an earlier request, by which its style finds it.
STALE = "earlier-answers"
#: Rows of the table of the critical path's longest tasks.
LONGEST = 12


def main() -> None:
    """Draw the page."""
    st.set_page_config(page_title="Stepcast", layout="wide")
    keep_widgets()
    with st.sidebar:
        st.title("Stepcast")
        st.caption("How long a training step takes under a schedule: predicted, and measured by running that schedule.")
        views = [REPORTS, WHAT_IF, REPLAY, COMPARE]
        if st.session_state.get("view") not in views:
            st.session_state["view"] = REPORTS
        view = st.radio("View", views, key="view")
    if view == REPORTS:
        reports_ui()
    elif view == WHAT_IF:
        what_if_ui()
    elif view == REPLAY:
        replay_ui(start_traces())
    else:
        diff_ui(start_traces())


def reports_ui() -> None:
    """Let the user choose a report, and show it."""
    place = place_ui(report_places(start_arguments()))
    if place is None:
        return
    training = training_place(place)
    if training is not None:
        training_ui(training)
        return
    report = report_ui(place)
    if report is None:
        return
    number = validation_ui(report)
    comparisons = report.comparisons[number]
    validation_summary_ui(report.validations[number])
    chosen = comparison_ui(f"strategy {number} of {report.folder}", comparisons)
    if chosen is not None:
        comparison_details_ui(comparisons[chosen], report.folders[number][chosen])


def place_ui(places: list[Path]) -> Path | None:
    """The path of the report that the user picks. If there is none, the page says how to make one, and the result is None."""
    if not places:
        st.info(
            f"No report yet. Make one with `stepcast validate --model NAME --batch N --out DIR`. Start the app with that folder, "
            f"or keep the folder in `{reports_folder()}`."
        )
        return None
    names = [path.name for path in places]
    return select(st.sidebar, "Report", places, "report", words=lambda path: path.name if names.count(path.name) == 1 else str(path))


def report_ui(place: Path) -> Report | None:
    """The report at `place`. If it cannot be read, the page says why, and the result is None."""
    try:
        return load_report(str(place), _stamp(place))
    except StepcastError as error:
        st.error(markdown_escaped(str(error)))
        return None


@st.cache_resource(max_entries=8, show_spinner="Reading the report")
def load_report(place: str, stamp: int) -> Report:
    """A report from the cache. It is read again when its index has changed, which `stamp` shows."""
    return read_report(place)


def _stamp(place: Path) -> int:
    index = place if place.is_file() else place / "report.json"
    return index.stat().st_mtime_ns if index.exists() else 0


def validation_ui(report: Report) -> int:
    """The number of the validation to show. The user chooses if the report has several."""
    if len(report.validations) == 1:
        return 0
    numbers = range(len(report.validations))
    return select(st.sidebar, "Job", numbers, f"job of {report.folder}", words=lambda n: sentences.job_words(report.validations[n]))


def validation_summary_ui(validation: Validation) -> None:
    """Show sentences, chart and table of one validation."""
    st.subheader(markdown_escaped(sentences.job_words(validation)), anchor=False)
    headline_ui(validation)
    st.write(markdown_escaped(" ".join(sentences.validation_words(validation))))
    if validation.ran:
        st.plotly_chart(charts.speedups_figure(validation), key="speedups")
    st.dataframe(tables.validation_cells(validation), hide_index=True)


def headline_ui(validation: Validation) -> None:
    """Show whether the fastest schedule is faster than plain PyTorch: in green if it is, in yellow if it is not or nobody can tell."""
    gain = verdicts.headline_gain(validation)
    if gain is not None:
        box = {"faster": st.success, "same": st.info}.get(gain.verdict, st.warning)
        box(markdown_escaped(verdicts.headline(validation)))


def comparison_ui(key: str, comparisons: tuple[Comparison, ...]) -> int | None:
    """The number of the comparison that the user picks in the select box `key`; None if the report has no timelines."""
    if not comparisons:
        st.info("This report holds no timelines.")
        return None
    labels = row_labels([comparison.result for comparison in comparisons])
    return select(st, "Strategy", range(len(labels)), key, default=len(labels) - 1, words=lambda number: labels[number])


def comparison_details_ui(comparison: Comparison, folder: Path) -> None:
    """Show predicted above measured, with sentences, phases, memory and files."""
    st.plotly_chart(timelines_figure(comparison.predicted, comparison.measured), key="timelines")
    st.write(markdown_escaped(" ".join([*sentences.result_words(comparison.result), sentences.phase_words(comparison)])))
    measured_waterfall_ui(comparison.result)
    st.plotly_chart(charts.phases_figure(comparison), key="phases")
    if comparison.predicted.memory or comparison.measured.memory:
        st.write(markdown_escaped(" ".join(sentences.memory_words(comparison.result))))
        st.plotly_chart(memory_figure(comparison.predicted, comparison.measured), key="memory")
    trace = folder / "perfetto.json.gz"
    if trace.exists():
        st.download_button(
            "Trace for ui.perfetto.dev", trace.read_bytes(), file_name=f"{folder.name}.perfetto.json.gz", mime="application/gzip"
        )


def what_if_ui() -> None:
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
    st.plotly_chart(timelines_figure(answer.timeline), key="forecast")
    prediction_waterfall_ui(prediction)
    st.write(markdown_escaped(" ".join(sentences.prediction_words(prediction, answer.measured_here))))
    if answer.timeline.memory:
        st.plotly_chart(memory_figure(answer.timeline), key="forecast memory")
    with st.expander("Longest tasks on the critical path"):
        st.dataframe(tables.critical_cells(prediction, LONGEST), hide_index=True)


if __name__ == "__main__":
    main()
