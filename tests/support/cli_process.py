"""Runs the command line in other processes, outside the repository: in a warm process for many calls, or in a fresh one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.places import ROOT
from tests.support.warm_processes import WarmProcess


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        """The one JSON document on standard output."""
        return json.loads(self.out)


def _data(folder: Path) -> Path:
    return folder / "data"


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a process: Schedcast's packages first on the path, data in `folder`, the session's cache."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    own = {"PYTHONPATH": path, "SCHEDCAST_DATA": str(_data(folder)), "COLUMNS": "160"}
    return {**os.environ, **own, "OPENBLAS_NUM_THREADS": "1", **more}


class Runner:
    """A warm process that runs commands."""

    def __init__(self, folder: Path):
        """Start the process. Commands run in `folder`; `data` is their data folder."""
        self.folder, self.data = folder, _data(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cli_runner"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder, env=environment(folder),
        )  # fmt: skip

    def call(self, *args: object, cwd: Path | None = None, file_limit: int = 0, **env: str) -> Ended:
        """Run `schedcast ARGS` in `cwd`, by default the runner's folder. `file_limit`: largest file in bytes, 0 for no limit."""
        request = {"args": [str(a) for a in args], "cwd": str(cwd or self.folder), "env": env, "file_limit": file_limit}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the runner died; start python -m tests.support.cli_runner by hand to see why"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


#: Background jobs of a shell ignore Ctrl-C, and so do the processes that they start; this restores it.
HEEDS_CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


COMMAND_LINE = "\nfrom ui.cli import main\nmain()"


def start(code: str, *args: object, folder: Path, **env: str) -> subprocess.Popen:
    """Start a fresh process that runs `code` and then the command line with `args`."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{HEEDS_CTRL_C}{code}{COMMAND_LINE}", *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment(folder, **env),
    )  # fmt: skip


def start_warm(code: str, *args: object, folder: Path, **env: str) -> WarmProcess:
    """As `start`, in a process that has imported PyTorch: for tests of what a command does then."""
    return WarmProcess(["-c", f"{code}{COMMAND_LINE}", *map(str, args)], folder, environment(folder, **env))
