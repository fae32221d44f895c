"""The validation on this machine that the reports page offers: the form, its progress, and how the last one ended."""

from pathlib import Path

import streamlit as st

from traces.errors import SchedcastError
from ui.app import runs
from ui.app.links import arguments
from ui.app.model import parse_settings, reports_folder
from ui.app.navigation import refusals_shown
from ui.app.runs import Run, command_ui, lines_ui
from ui.app.state import number, select, several, text
from ui.present.labels import markdown_escaped
from ui.request import JobRequest, check_steered, start_models
from ui.service import jobs
from ui.service.jobs import Choices

#: The longest wait of a validation for a quiet machine in seconds, if the user wants it.
LONGEST_WAIT_S = 600


def validation_form_ui(choices: Choices) -> tuple[JobRequest, list[str]] | None:
    """What the form asks for, and more options of the command; None until it is started. Raises SchedcastError for unusable fields."""
    first, second, third = st.columns(3)
    model = select(first, "Model", choices["model"], "model")
    batch = number(second, "Batch size", "batch", default=32) or 1
    size = number(third, "Image size", "image size", placeholder="the model's own")
    optimizer = select(first, "Optimizer", choices["optimizer"], "optimizer")
    form = select(second, "Form of the update", choices["form"], "form")
    precision = select(third, "Precision", choices["precision"], "precision")
    strategies = tuple(several(first, "Strategies", choices["strategies"], "strategies", choices["strategies"][:2]))
    settings = text(second.text_input, "Options", "settings", placeholder="overlap=off, bucket=0")
    devices = number(third, "Groups of this CPU's cores", "validation devices", placeholder="1")
    st.session_state.setdefault("validation quick", True)
    quick = st.toggle("Quick: fewer rounds, less certain", key="validation quick")
    wait = st.toggle(f"Wait up to {LONGEST_WAIT_S // 60} minutes until other processes leave the machine alone", key="validation wait")
    if not st.button("Validate here", type="primary", icon=":material/play_arrow:"):
        return None
    request = JobRequest(
        model, batch, size, optimizer, form,
        precision=precision, devices=devices, settings=parse_settings(settings), strategies=strategies,
    )  # fmt: skip
    if not request.strategies:
        raise SchedcastError("no strategy chosen; choose at least one")
    check_steered(request, start_models())
    return request, ["--quick"] * quick + ["--wait", str(LONGEST_WAIT_S)] * wait


def free_folder(folder: Path, label: str) -> Path:
    """A folder in `folder` that does not exist, named after `label`."""
    place, count = folder / label, 1
    while place.exists():
        count += 1
        place = folder / f"{label}-{count}"
    return place


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
        with refusals_shown():
            asked = validation_form_ui(jobs.choices())
            if asked is not None:
                request, more = asked
                folder = free_folder(reports_folder(), request.job().label)
                command = arguments(request, *more, "--out", str(folder), name="validate")
                st.session_state[_AWAITED] = str(runs.start(command, PAGE, folder).folder)
                st.rerun()
        if current is not None:
            ended_ui(current)
    if current is not None and st.session_state.get(_AWAITED) == str(current.folder):
        del st.session_state[_AWAITED]
        if (current.results / "report.json").exists():
            st.session_state[key] = current.results.resolve()


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
        st.success(markdown_escaped(f"Done; the report is called {current.results.name}."))
    else:
        st.error(markdown_escaped(f"The command ended with status {run.status}: {run.mistake}"))
    st.code(run.command, language="bash", wrap_lines=True)
    if run.status != 0:
        lines_ui(run)
