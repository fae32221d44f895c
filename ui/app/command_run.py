"""A command of Schedcast that the app runs in a process of its own, with its lines and its progress. It can be stopped as by Ctrl-C."""

import atexit
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

#: Lines that are kept.
MOST_LINES = 200
#: Seconds that a command has to end after Ctrl-C, and after SIGTERM, before the next stronger signal. A process that was started in the
#: background of a shell ignores Ctrl-C.
GRACE_S = 5.0
_STEP = re.compile(r"^(?P<title>[^:]{1,120}): (?P<done>\d{1,9}) of (?P<total>\d{1,9}), ?(?P<text>.*)$")
_ROOT = Path(__file__).resolve().parents[2]


class CommandRun:
    """`schedcast ARGUMENTS`, running or ended. `lines`: what it said on standard error, without progress."""

    def __init__(self, arguments: Sequence[str]):
        from ui.service.jobs import LINES, PROGRESS  # loaded by the page that runs a command, and too slow for the first page

        self.arguments = tuple(arguments)
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.title, self.done, self.total, self.text = "", 0, 0, ""
        self.began = time.monotonic()
        self.cancelled = False
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ui.cli", *arguments],
            env={**os.environ, "PYTHONPATH": path, PROGRESS: LINES, "COLUMNS": "160"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        atexit.register(self._process.kill)

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return shlex.join(["schedcast", *self.arguments])

    @property
    def running(self) -> bool:
        """Whether the command has not ended, or not everything that it said has been read."""
        return self._reader.is_alive()

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

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the command has ended."""
        self._reader.join(timeout_s)

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
        for line in self._process.stderr:
            self._hear(line.rstrip())
        self._process.wait()
        self._process.stderr.close()
        atexit.unregister(self._process.kill)

    def _hear(self, line: str) -> None:
        step = _STEP.match(line)
        if step is not None:
            self.title, self.text = step["title"], step["text"]
            self.done, self.total = int(step["done"]), int(step["total"])
        elif line:
            self.lines.append(line)
