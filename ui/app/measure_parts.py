"""The part of a page of predictions that says when too little was measured here for a verdict, and offers to measure it."""

from collections.abc import Sequence

import streamlit as st

from traces.errors import SchedcastError
from ui.app import runs
from ui.app.command_parts import command_ui
from ui.app.links import arguments
from ui.app.state import BUTTON
from ui.present.text.labels import markdown_escaped
from ui.present.text.sentences import no_verdict_words
from ui.request import JobRequest
from ui.service.jobs import Forecast

#: The module of `ui.app.pages` that shows the runs.
PAGE = "what_if"


def measuring_ui() -> None:
    """Show the measurement of a job that is running. When it has ended, the page is drawn anew, with the new costs."""
    run = runs.latest(PAGE)
    if run is not None and run.command.running:
        with st.container(border=True):
            st.fragment(command_ui, run_every=runs.REFRESH_S)(run.command)


def unmeasured_ui(request: JobRequest, forecasts: Sequence[Forecast]) -> None:
    """Say first if too little was measured for a verdict. On this CPU, offer to measure the job, as `predict --calibrate` does."""
    here = all(answer.measured_here for answer in forecasts)
    words = no_verdict_words((answer.prediction.measured_share for answer in forecasts), here)
    if not words:
        return
    st.warning(markdown_escaped(words[0]))
    if not here or request.scale or not all(use.name.startswith("cpu") for answer in forecasts for use in answer.prediction.devices):
        return
    if runs.running() is not None:
        return
    run = runs.latest(PAGE)
    if run is not None and run.command.status and not run.command.cancelled:
        st.error(markdown_escaped(run.command.mistake))
    if st.button("Measure this job", icon=":material/timer:", key=f"{BUTTON}measure", help="Adds its costs to this machine's profile."):
        try:
            runs.start(arguments(request, "--calibrate", "--json"), PAGE)
        except SchedcastError as error:
            st.error(markdown_escaped(str(error)))
        else:
            st.rerun()
