"""Processes that start at once, with PyTorch and Schedcast imported. `fork_server` forks them."""

import atexit
import os
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import IO

from tests.support.places import ROOT
from traces.forking import Forked, ForkServer


@cache
def _server() -> ForkServer:
    # Threads do not survive a fork; spinning ones would take the cores of other tests.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    server = ForkServer([sys.executable, "-m", "tests.support.fork_server"], env, cwd=ROOT)
    atexit.register(server.close)
    return server


class _Program(Forked):
    """A program that the server has forked."""

    def __init__(self, args: list[str], cwd: Path, env: dict[str, str], files: list[int]):
        """Start `python ARGS`, `-c CODE` or `-m MODULE` with its arguments. `files`: its standard input, output and error."""
        super().__init__(_server(), args, env, cwd, files)


class WarmProcess(_Program):
    """`python ARGS` in a process of its own. As a `subprocess.Popen` of the same arguments whose output is text and goes to pipes."""

    def __init__(self, args: list[str], cwd: Path, env: dict[str, str]):
        """Start it."""
        self._texts = ["", ""]
        pipes = [os.pipe(), os.pipe()]
        with open(os.devnull) as nothing:
            super().__init__(args, cwd, env, [nothing.fileno(), *(write for _, write in pipes)])
        for _, write in pipes:
            os.close(write)
        self._readers = [threading.Thread(target=self._read, args=(i, read), daemon=True) for i, (read, _) in enumerate(pipes)]
        for reader in self._readers:
            reader.start()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait until it has ended, and return its output and errors. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        end_s = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, end_s - time.monotonic()))
        self.wait(max(0.0, end_s - time.monotonic()))
        return self._texts[0], self._texts[1]

    def _read(self, index: int, file: int) -> None:
        with open(file) as stream:
            self._texts[index] = stream.read()


def launch_plain(command: list[str], environment: dict[str, str], channel: int, errors: IO) -> Forked:
    """Start the process of plain PyTorch as `calibrate.cpu.plain_process.launch` does, but at once."""
    with open(os.devnull, "w") as nothing:
        return _Program(command[command.index("-c") :], Path.cwd(), environment, [channel, nothing.fileno(), errors.fileno()])
