"""The part of the schedule board that runs the schedule on this machine, and shows predicted above measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import streamlit as st

from simulator.machine.presets import THIS_CPU
from simulator.plan.board import order_csv
from simulator.plan.board.order import Order
from traces.documents.comparison import Comparison, Validation
from traces.errors import SchedcastError
from traces.files import write_atomic
from ui.app import links, runs
from ui.app.command_parts import command_ui
from ui.app.model import reports_folder
from ui.app.state import BUTTON
from ui.app.timeline_parts import timelines_ui
from ui.app.validation_form import free_folder
from ui.app.validation_run import ended_ui
from ui.present.reports.report import read_report
from ui.present.text import sentences, verdicts
from ui.present.text.labels import markdown_escaped
from ui.request import JobRequest

#: The module of `ui.app.pages` that shows the runs.
PAGE = "board"


def board_run_ui(request: JobRequest, strategy: str, order: Order, can_run: bool) -> None:
    """Let the user run the order here. `can_run`: if not, the button is off."""
    if request.machine != THIS_CPU or request.scale:
        st.caption(f"To run the schedule here, choose the machine {THIS_CPU} as it is. Elsewhere, use the file of the download.")
        return
    current = runs.latest(PAGE)
    if current is not None and current.command.running:
        with st.container(border=True):
            st.fragment(command_ui, run_every=runs.REFRESH_S)(current.command)
        return
    help_text = (
        "Measures the costs of the tasks and the steps of this schedule on this machine, beside the baseline's, and compares the numbers."
    )
    if st.button("Run it here", icon=":material/play_arrow:", key=f"{BUTTON}run board", disabled=not can_run, help=help_text):
        out = free_folder(reports_folder(), f"board-{request.job().label}")
        schedule = write_atomic(out.with_suffix(".csv"), order_csv.write(order))
        try:
            runs.start(arguments(request, strategy, schedule, out), PAGE, out, (request, strategy, order))
        except SchedcastError as error:
            schedule.unlink()
            st.error(markdown_escaped(str(error)))
        else:
            st.rerun()
    if current is not None:
        if current.of != (request, strategy, order):
            st.caption("This is the run of an earlier schedule:")
        ended_ui(current)
        ran = compared(current.folder)
        if ran is not None:
            validation, comparison = ran
            if validation.busy:
                st.error(markdown_escaped(verdicts.headline(validation)))
            st.write(markdown_escaped(" ".join(sentences.result_words(validation, comparison.result))))
            timelines_ui("board measured", comparison.predicted, comparison.measured)


def arguments(request: JobRequest, strategy: str, schedule: Path, out: Path) -> Sequence[str]:
    """The arguments of `schedcast` that validate a strategy in the order of a file, and write the report to `out`."""
    asked = replace(request, strategies=(strategy,))
    return links.arguments(asked, "--quick", "--schedule", str(schedule), "--out", str(out), name="validate")


def compared(folder: Path) -> tuple[Validation, Comparison] | None:
    """The validation in a report, with the schedule's predicted and measured timeline; None if it did not run."""
    if not (folder / "report.json").exists():
        return None
    report = read_report(folder)
    comparisons = report.comparisons[0]
    return next(((report.validations[0], each) for each in comparisons if "schedule" in each.result.options), None)
