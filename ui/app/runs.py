"""The commands that the app runs, shared by all pages and tabs, and the part of a page that follows or cancels one.

One command runs at a time, because two would disturb each other's measurements. It runs in a separate process and stops as by Ctrl-C.
"""

import atexit
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from traces.errors import SchedcastError
from traces.process import importing_environment
from ui.app.navigation import link_ui, pages
from ui.present.labels import markdown_escaped
from ui.service.progress import COMMAND_LINE, LINES, PROGRESS

#: The most lines that are stored.
MOST_LINES = 200
#: Seconds that a command has to end after Ctrl-C, and after SIGTERM, before the next stronger signal. A process that was started in the
#: background of a shell ignores Ctrl-C.
GRACE_S = 5.0
_STEP = re.compile(r"^(?P<title>[^:]{1,120}): (?P<done>\d{1,9}) of (?P<total>\d{1,9}), ?(?P<text>.*)$")


class CommandRun:
    """`schedcast ARGUMENTS`, running or ended. `lines`: what it said on standard error, without progress."""

    def __init__(self, arguments: Sequence[str]):
        self.arguments = tuple(arguments)
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.title, self.done, self.total, self.text = "", 0, 0, ""
        self.began = time.monotonic()
        self.cancelled = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", COMMAND_LINE, *arguments],
            env={**importing_environment(), PROGRESS: LINES, "COLUMNS": "160"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        atexit.register(self._process.kill)

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return shlex.join(["schedcast", *self.arguments])

    @property
    def running(self) -> bool:
        """Whether the command has not ended, or not everything that it said has been read."""
        return self.reader.is_alive()

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return None if self.running else self._process.poll()

    @property
    def share(self) -> float:
        """How much of the current stage is done, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def mistake(self) -> str:
        """The last line that the command said, which is its reason if it could not be run; empty without lines."""
        return self.lines[-1] if self.lines else ""

    def cancel(self) -> None:
        """Stop the command as Ctrl-C does, without waiting; one that does not end gets stronger signals."""
        self.cancelled = True
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            self._process.send_signal(number)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                continue

    def _read(self) -> None:
        said = self._process.stderr
        assert said is not None, "it is a pipe"
        for line in said:
            self._hear(line.rstrip())
        self._process.wait()
        said.close()
        atexit.unregister(self._process.kill)

    def _hear(self, line: str) -> None:
        step = _STEP.match(line)
        if step is not None:
            self.title, self.text = step["title"], step["text"]
            self.done, self.total = int(step["done"]), int(step["total"])
        elif line:
            self.lines.append(line)


#: Last lines of the command that are shown.
SHOWN_LINES = 12


def command_ui(run: CommandRun) -> None:
    """Show a running command. When it has ended, the page is drawn again."""
    if not run.running:
        st.rerun()
    st.code(run.command, language="bash", wrap_lines=True)
    progress_ui(run)
    lines_ui(run)
    cancel_ui(run)


def progress_ui(run: CommandRun) -> None:
    """Show the progress of a command."""
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


#: Seconds between two checks of the running command. Every check disturbs what it measures.
REFRESH_S = 2.0
#: The most runs that are stored after their end.
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

    @property
    def results(self) -> Path:
        """`folder`. Raises ValueError for a run that has none."""
        if self.folder is None:
            raise ValueError(f"{self.command.command} writes to no folder")
        return self.folder


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
