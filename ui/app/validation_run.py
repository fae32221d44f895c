"""The part of the reports page that validates here: the form, how far the command is, and how the last validation ended."""

import streamlit as st

from traces.errors import SchedcastError
from ui.app import runs
from ui.app.command_parts import command_ui, lines_ui
from ui.app.links import arguments
from ui.app.model import reports_folder
from ui.app.runs import Run
from ui.app.validation_form import free_folder, validation_form_ui
from ui.present.text.labels import markdown_escaped
from ui.service import jobs

#: The module of `ui.app.pages` that shows the runs.
PAGE = "validate"
#: Where a session keeps the folder of the report that it waits for.
_AWAITED = "awaited report"


def validation_run_ui(key: str) -> None:
    """Let the user validate a job here, and open its report in the select box `key` when it is there. Draw this before that box."""
    current = runs.latest(PAGE)
    st.session_state.setdefault("validate here", current is not None and current.command.running)  # after a reload, or in another tab
    if not st.toggle("Validate a job on this machine", key="validate here"):
        return
    with st.container(border=True):
        if current is not None and current.command.running:
            st.fragment(command_ui, run_every=runs.REFRESH_S)(current.command)
            st.session_state[_AWAITED] = str(current.folder)
            return
        try:
            asked = validation_form_ui(jobs.choices())
            if asked is not None:
                request, more = asked
                folder = free_folder(reports_folder(), request.job().label)
                command = arguments(request, *more, "--out", str(folder), name="validate")
                st.session_state[_AWAITED] = str(runs.start(command, PAGE, folder).folder)
                st.rerun()
        except SchedcastError as error:
            st.error(markdown_escaped(str(error)))
        if current is not None:
            ended_ui(current)
    if current is not None and st.session_state.get(_AWAITED) == str(current.folder):
        del st.session_state[_AWAITED]
        if (current.folder / "report.json").exists():
            st.session_state[key] = current.folder.resolve()


def ended_ui(current: Run) -> None:
    """Say how the last validation ended."""
    run = current.command
    if run.cancelled and run.status not in (0, 1):
        st.warning("Cancelled. No report was written.")
    elif run.status == 2:
        st.error(markdown_escaped(run.mistake))
    elif run.status == 1:
        st.warning("A strategy's results differ from plain PyTorch's, or nothing ran; the report says which.")
    elif run.status == 0:
        st.success(markdown_escaped(f"Done; the report is called {current.folder.name}."))
    else:
        st.error(markdown_escaped(f"The command ended with status {run.status}: {run.mistake}"))
    st.code(run.command, language="bash", wrap_lines=True)
    if run.status != 0:
        lines_ui(run)
