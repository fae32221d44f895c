"""Processes that start at once, with PyTorch and Schedcast imported. `fork_server` forks them."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import IO

from tests.support.places import ROOT


class Server:
    """The process that forks the others."""

    def __init__(self):
        """Start it."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
            # Threads do not survive a fork; spinning ones would take the cores of other tests.
            env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, env=env, pass_fds=[theirs.fileno()])
        self.statuses: dict[int, int] = {}  # of the processes that ended, by process id

    def start(self, args: list[str], cwd: Path, env: dict[str, str], files: list[int]) -> int:
        """Start `python ARGS` with standard input, output and error from `files`. Returns its process id."""
        socket.send_fds(self._channel, [json.dumps({"args": args, "cwd": str(cwd), "env": env}).encode()], files)
        while (pid := self._receive().get("started")) is None:
            pass
        return pid

    def listen(self, timeout_s: float) -> None:
        """Wait until a process ends, for at most `timeout_s`."""
        if select.select([self._channel], [], [], max(0.0, timeout_s))[0]:
            self._receive()

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.wait()

    def _receive(self) -> dict:
        received = self._channel.recv(1 << 16)
        assert received, "the server died; start python -m tests.support.fork_server by hand to see why"
        message = json.loads(received)
        if "ended" in message:
            self.statuses[message["ended"]] = message["status"]
        return message


@cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


class Forked:
    """A program that the server has forked. `returncode`: its status once it has ended, negative if a signal ended it."""

    def __init__(self, args: list[str], cwd: Path, env: dict[str, str], files: list[int]):
        """Start `python ARGS`, `-c CODE` or `-m MODULE` with its arguments. `files`: its standard input, output and error."""
        self.returncode: int | None = None
        self.pid = _server().start(args, cwd, env, files)

    def poll(self) -> int | None:
        """The status if it has ended, else None."""
        return self._ended(0.0)

    def wait(self) -> int:
        """The status, once it has ended."""
        while self._ended(1.0) is None:
            pass
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float) -> int | None:
        server, end_s = _server(), time.monotonic() + timeout_s
        server.listen(0.0)
        while (status := server.statuses.get(self.pid)) is None and time.monotonic() < end_s:
            server.listen(end_s - time.monotonic())
        if status is not None and self.returncode is None:
            self.returncode = status
        return self.returncode


class WarmProcess(Forked):
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
        if self._ended(end_s - time.monotonic()) is None:
            raise subprocess.TimeoutExpired("a warm process", timeout)
        return self._texts[0], self._texts[1]

    def _read(self, index: int, file: int) -> None:
        with open(file) as stream:
            self._texts[index] = stream.read()


def launch_plain(command: list[str], environment: dict[str, str], channel: int, errors: IO) -> Forked:
    """Start the process of plain PyTorch as `calibrate.cpu.plain_process.launch` does, but at once."""
    with open(os.devnull, "w") as nothing:
        return Forked(command[command.index("-c") :], Path.cwd(), environment, [channel, nothing.fileno(), errors.fileno()])
