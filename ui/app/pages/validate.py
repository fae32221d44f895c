"""The app's page of reports and trainings: predicted above measured, with errors and their causes, and what `schedcast run --out` wrote."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

from simulator.replay.diff.task_errors import GROUPS, grouped, task_errors
from traces.documents.comparison import Comparison, Validation
from traces.documents.shipped import example_report
from traces.documents.training import TrainingRun
from traces.errors import UnknownNameError
from ui.app.links import command, request_of
from ui.app.page_parts import blocks_ui, formulas_ui, table_ui, timelines_ui
from ui.app.share_parts import Download, check_link, csv, json_bytes, keep_link, one_page, opened_by_link, refuse_link, share_ui
from ui.app.state import segments, select
from ui.app.uploads import offered_reports, report_upload_ui, stamp
from ui.app.validation_run import validation_run_ui
from ui.present import trainings, validations
from ui.present.labels import SCHEDULE, busy_line, markdown_escaped, row_labels
from ui.present.report import Report, read_report


def training_ui(document: Path) -> None:
    """Show curves, sentences and table of one training."""
    run = load_run(str(document), stamp(document))
    st.subheader(markdown_escaped(trainings.title(run)), anchor=False)
    if busy := busy_line(run.busy_share):
        st.error(markdown_escaped(busy))
    st.write(markdown_escaped("; ".join(trainings.sentences(run)) + "."))
    measure = st.radio("over", list(trainings.measures(run)), horizontal=True, key="measure")
    st.plotly_chart(trainings.training_figure(run, measure), key="training")
    table_ui(trainings.cells(run))
    formulas_ui("Step of a training", "Loss at the end", "Difference of losses")


@st.cache_resource(max_entries=8, show_spinner="Reading the training")
def load_run(place: str, stamp: int) -> TrainingRun:
    """A training from the cache. It is read again when its document has changed, which `stamp` shows."""
    return TrainingRun.load(place)


#: The query that the user came with.
Link = Mapping[str, Sequence[str]]
TITLE, ICON, ORDER = "Reports", ":material/fact_check:", 50
URL = "validate"
ABOUT = f"Step times of schedules, predicted and then measured. {SCHEDULE}"
#: The names in the query of the page's link: a report, and the numbers of its job and of the comparison whose timelines are drawn.
LINKED = ("report", "job", "timeline")


def page() -> None:
    """Let the user validate a job here or choose a report, and show it: predicted above measured first, then the analysis."""
    st.write(ABOUT)
    validation_run_ui("report")
    linked = opened_by_link("validate", LINKED) or {}
    place = place_ui(linked)
    keep_link("validate", own := {"report": [label_of(place)]})
    if (document := place / trainings.DOCUMENT).is_file():
        training_ui(document)
        return
    report = load_report(str(place), stamp(place if place.is_file() else place / "report.json"))
    number = validation_ui(report, linked)
    validation, comparisons = report.validations[number], report.comparisons[number]
    st.subheader(markdown_escaped(validations.job_words(validation)), anchor=False)
    headline_ui(validation)
    chosen = comparison_ui(f"strategy {number} of {report.folder}", comparisons, linked)
    own |= {"job": [str(number)]} if number else {}
    own |= {"timeline": [str(chosen)]} if chosen is not None else {}
    keep_link("validate", own)
    if chosen is not None:
        timelines_ui("timelines", comparisons[chosen].predicted, comparisons[chosen].measured)
    validation_summary_ui(validation)
    if chosen is not None:
        comparison_details_ui(validation, comparisons[chosen], report.folders[number][chosen])
    share_ui(command(request_of(validation), name="validate"), own, downloads(validation, comparisons))


def downloads(validation: Validation, comparisons: Sequence[Comparison]) -> list[Download]:
    """The page, the table and the document of a validation."""
    return [
        one_page(lambda: validations.sections([validation], [comparisons])),
        Download("Table (CSV)", "validation.csv", "text/csv", lambda: csv(validations.validation_cells(validation))),
        Download("Validation (JSON)", "validation.json", "application/json", lambda: json_bytes(validation.document())),
    ]


def place_ui(linked: Link) -> Path:
    """The path of the report that the user picks or uploads. If there is none, the page says how to make one, and shows an example.

    Raises SchedcastError for a link to a report that is not here.
    """
    with st.sidebar:
        new = report_upload_ui()
    places = offered_reports()
    if new:
        st.session_state["report"] = new[-1]
    if not places:
        places = [example_report()]
        st.info(
            "No report yet, so this is an example from a CPU with two cores. Make one with"
            " `schedcast validate --model NAME --batch N --out DIR`. Start the app in the folder that holds it, with it, or open its"
            " `validation.json` in the sidebar."
        )
    named = linked.get("report")
    if named:
        st.session_state["report"] = next((path for path in places if label_of(path) == named[-1]), None)
        refuse_link("" if st.session_state["report"] else str(UnknownNameError("report", named[-1], [label_of(path) for path in places])))
    chosen = select(st.sidebar, "Report", places, "report", words=label_of)
    check_link(chosen)
    return chosen


def label_of(place: Path) -> str:
    """The name of a report, with its folder's if another has the same name."""
    return f"{place.parent.name}/{place.name}" if [other.name for other in offered_reports()].count(place.name) > 1 else place.name


@st.cache_resource(max_entries=8, show_spinner="Reading the report")
def load_report(place: str, stamp: int) -> Report:
    """A report from the cache. It is read again when its index has changed, which `stamp` shows."""
    return read_report(place)


def validation_ui(report: Report, linked: Link) -> int:
    """The number of the validation to show. The user chooses if the report has several."""
    if len(report.validations) == 1:
        return 0
    numbers, key = range(len(report.validations)), f"job of {report.folder}"
    _put_number(key, linked, "job")
    return select(st.sidebar, "Job", numbers, key, words=lambda n: validations.job_words(report.validations[n]))


def _put_number(key: str, linked: Link, name: str) -> None:
    """Set the select box `key` to the number that a link gives."""
    text = linked.get(name, [""])[-1]
    if text.isdecimal() and len(text) < 6:
        st.session_state[key] = int(text)


def validation_summary_ui(validation: Validation) -> None:
    """Show sentences, chart and table of one validation."""
    blocks_ui(validations.summary(validation, wide=True), "summary")
    formulas_ui("Error", "Measured step", "A/A spread", "Drift", "Numbers")
    numerics = validations.numerics_cells(validation)
    if numerics:
        with st.expander("Numbers: how far each strategy's results are from plain PyTorch's"):
            table_ui(numerics)


def headline_ui(validation: Validation) -> None:
    """Show whether the fastest schedule is faster than plain PyTorch: in green if it is, in yellow if it is not or cannot be told.

    In red if the machine was too busy to measure.
    """
    gain = validation.headline_gain
    if gain is not None:
        box = {"faster": st.success, "same": st.info, "no verdict": st.error}.get(gain.verdict, st.warning)
        box(markdown_escaped(validations.headline(validation)))


def comparison_ui(key: str, comparisons: tuple[Comparison, ...], linked: Link) -> int | None:
    """The number of the comparison that the user picks in the select box `key`; None if the report has no timelines."""
    if not comparisons:
        st.info("This report holds no timelines.")
        return None
    _put_number(key, linked, "timeline")
    labels = row_labels([comparison.result for comparison in comparisons])
    return select(st, "Strategy", range(len(labels)), key, default=len(labels) - 1, words=lambda number: labels[number])


def comparison_details_ui(validation: Validation, comparison: Comparison, folder: Path) -> None:
    """Show sentences, phases, memory and files of one comparison."""
    blocks_ui([*validations.compared(validation, comparison), validations.phases(comparison)], "comparison")
    task_errors_ui(comparison)
    trace = folder / "perfetto.json.gz"
    if trace.exists():
        st.download_button(
            "Trace for ui.perfetto.dev", trace.read_bytes(), file_name=f"{folder.name}.perfetto.json.gz", mime="application/gzip"
        )


def task_errors_ui(comparison: Comparison) -> None:
    """Show the errors of single tasks: by phase, layer or op, and the largest with their likely causes."""
    errors = task_errors(comparison)
    if not errors:
        return
    st.subheader("Where the error is", anchor=False)
    by = segments("By", list(GROUPS), "errors by", "layer")
    groups = grouped(errors, by)
    left, right = st.columns(2)
    left.plotly_chart(validations.errors_figure(groups, by), key="errors")
    with right:
        table_ui(validations.group_cells(groups, by))
    st.write(markdown_escaped(validations.cause_words(errors)))
    table_ui(validations.offender_cells(errors))
