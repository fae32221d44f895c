"""The part of a page of predictions that says when too little was measured here for a verdict, and offers to measure it."""

from collections.abc import Sequence

import streamlit as st

from ui.app.command_parts import command_ui
from ui.app.command_run import CommandRun
from ui.app.links import arguments
from ui.app.model import Forecast, Request
from ui.app.state import BUTTON
from ui.text.labels import markdown_escaped
from ui.text.sentences import no_verdict_words

#: Seconds between two looks at the command.
REFRESH_S = 2.0
_KEY = "measuring run"


def unmeasured_ui(request: Request, forecasts: Sequence[Forecast]) -> None:
    """Say first if too little was measured for a verdict. On this CPU, offer to measure the job, as `predict --calibrate` does.

    When that has ended, the page is drawn anew, with the new costs.
    """
    here = all(answer.measured_here for answer in forecasts)
    words = no_verdict_words((answer.prediction.measured_share for answer in forecasts), here)
    if not words:
        return
    st.warning(markdown_escaped(words[0]))
    if not here or request.scale or not all(use.name.startswith("cpu") for answer in forecasts for use in answer.prediction.devices):
        return
    run: CommandRun | None = st.session_state.get(_KEY)
    if run is not None and run.running:
        st.fragment(command_ui, run_every=REFRESH_S)(run)
        return
    if run is not None and run.status == 2:
        st.error(markdown_escaped(run.mistake))
    if st.button("Measure this job", icon=":material/timer:", key=f"{BUTTON}measure", help="Adds its costs to this machine's profile."):
        st.session_state[_KEY] = CommandRun(arguments(request, "--calibrate", "--json"))
        st.rerun()
