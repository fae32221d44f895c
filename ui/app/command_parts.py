"""The part of a page that follows a command which the app runs: how far it is, what it said, and a button that cancels it."""

import streamlit as st

from ui.app.command_run import CommandRun
from ui.present.text.labels import markdown_escaped

#: Last lines of the command that are shown.
SHOWN_LINES = 12


def command_ui(run: CommandRun) -> None:
    """Show a running command. When it has ended, the page is drawn anew."""
    if not run.running:
        st.rerun()
    st.code(run.command, language="bash", wrap_lines=True)
    progress_ui(run)
    lines_ui(run)
    cancel_ui(run)


def progress_ui(run: CommandRun) -> None:
    """Show how far a command is."""
    st.progress(run.share, text=markdown_escaped(f"{run.title}: {run.done} of {run.total}, {run.text}") if run.total else "starting")


def cancel_ui(run: CommandRun) -> None:
    """A button that cancels a command."""
    if run.cancelled:
        st.caption("Stopping. What is complete stays; nothing is left half written.")
    else:
        st.button("Cancel", icon=":material/stop:", on_click=run.cancel)


def lines_ui(run: CommandRun) -> None:
    """Show the last lines that the command said."""
    lines = list(run.lines)[-SHOWN_LINES:]
    if lines:
        st.code("\n".join(lines), language=None, wrap_lines=True)
