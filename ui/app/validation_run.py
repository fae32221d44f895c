"""The part of the reports page that validates here: the form, how far the command is, and a button that cancels it."""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from traces.errors import StepcastError
from ui.app.command_parts import command_ui, lines_ui
from ui.app.command_run import CommandRun
from ui.app.model import find_predictor, reports_folder
from ui.app.validation_form import free_folder, validation_form_ui
from ui.text.labels import markdown_escaped

#: Seconds between two looks at the command. Every look disturbs what it measures.
REFRESH_S = 2.0
_KEY = "validation run"


@dataclass
class ValidationRun:
    """A validation that is running or has ended, and the folder of its report. `opened`: whether the page has opened that."""

    run: CommandRun
    folder: Path
    opened: bool = False


def validation_run_ui(key: str) -> None:
    """Let the user validate a job here, and open its report in the select box `key` when it is there. Draw this before that box."""
    predictor = find_predictor()
    if predictor is None:
        return
    current: ValidationRun | None = st.session_state.get(_KEY)
    if not st.toggle("Validate a job on this machine", key="validate here"):
        return
    with st.container(border=True):
        if current is not None and current.run.running:
            st.fragment(command_ui, run_every=REFRESH_S)(current.run)
            return
        try:
            request, asked = validation_form_ui(predictor.choices())
            if asked and request is not None:
                folder = free_folder(reports_folder(), request.label)
                st.session_state[_KEY] = ValidationRun(CommandRun(request.arguments(folder)), folder)
                st.rerun()
        except StepcastError as error:
            st.error(markdown_escaped(str(error)))
        if current is not None:
            ended_ui(current)
    if current is not None and not current.opened:
        current.opened = True
        if (current.folder / "report.json").exists():
            st.session_state[key] = current.folder.resolve()


def ended_ui(current: ValidationRun) -> None:
    """Say how the last validation ended."""
    run = current.run
    if run.cancelled and run.status not in (0, 1):
        st.warning("Cancelled. No report was written.")
    elif run.status == 2:
        st.error(markdown_escaped(run.mistake))
    elif run.status == 1:
        st.warning("A strategy's results differ from plain PyTorch's, or nothing ran; the report says which.")
    elif run.status == 0:
        st.success(markdown_escaped(f"Done; the report is in {current.folder}."))
    else:
        st.error(markdown_escaped(f"The command ended with status {run.status}: {run.mistake}"))
    st.code(run.command, language="bash", wrap_lines=True)
    if run.status != 0:
        lines_ui(run)
