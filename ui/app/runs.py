"""The commands that the app runs, shared by all pages and tabs. One runs at a time, because two would disturb each other's measurements."""

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from traces.errors import SchedcastError
from ui.app.command_parts import cancel_ui, progress_ui
from ui.app.command_run import CommandRun
from ui.app.navigation import link_ui, pages

#: Seconds between two looks at the running command. Every look disturbs what it measures.
REFRESH_S = 2.0
#: Runs that are kept after their end.
_MOST = 20
_LOCK = threading.Lock()
_runs: list["Run"] = []


@dataclass
class Run:
    """A command that is running or has ended. `page`: the module of `ui.app.pages` that shows it.

    `folder`: where it writes its results, if not among the profiles. `of`: what the run is of, for a page whose runs differ.
    """

    command: CommandRun
    page: str
    folder: Path | None = None
    of: object = None


def start(arguments: Sequence[str], page: str, folder: Path | None = None, of: object = None) -> Run:
    """Start `schedcast ARGUMENTS`. Raises SchedcastError while another command runs, in this tab or in another."""
    with _LOCK:
        other = running()
        if other is not None:
            words = shlex.join(["schedcast", *arguments])
            raise SchedcastError(f"{words} was not started: {other.command.command} is running; wait until it has ended, or cancel it")
        _runs.append(Run(CommandRun(arguments), page, folder, of))
        del _runs[:-_MOST]
        return _runs[-1]


def running() -> Run | None:
    """The run that has not ended."""
    return next((run for run in _runs if run.command.running), None)


def latest(page: str, folder: Path | None = None) -> Run | None:
    """The latest run of a page (that writes to `folder`, if one is given)."""
    return next((run for run in reversed(_runs) if run.page == page and folder in (None, run.folder)), None)


def clear() -> None:
    """Forget all runs. Tests begin with none."""
    _runs.clear()


def running_ui(shown: str) -> None:
    """Show what is running, with a link to its page and a button that cancels it. `shown`: the title of the page below; none on its own."""
    run = running()
    if run is not None and shown not in [page.title for page in pages() if page.name == run.page]:
        st.fragment(_running_ui, run_every=REFRESH_S)(run)


def _running_ui(run: Run) -> None:
    if not run.command.running:
        st.rerun()
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        progress_ui(run.command)
        link_ui(run.page, "Open")
        cancel_ui(run.command)
