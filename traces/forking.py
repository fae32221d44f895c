"""Processes that start quickly: a server that has imported what they need forks them. `Forked` asks it, and `serve` is its loop."""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

#: The longest request in bytes, seconds until the server forks, and seconds between its looks for processes that have ended.
_LONGEST, _FORKING_S, _LOOK_S = 1 << 20, 120.0, 0.02


class ForkServer:
    """The process that forks the others."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **more: Any):
        """Start it. `command` must call `serve`; its standard input is the channel. `more` are arguments of `subprocess.Popen`."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(command, env=environment, stdin=theirs.fileno(), **more)

    def send(self, request: Any, files: Sequence[int]) -> None:
        """Send a request. Raises OSError if the server has ended."""
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)

    def close(self) -> None:
        """End the server."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A forked process, with attributes of a `subprocess.Popen`: its id `pid`, and its status `returncode` once it has ended."""

    def __init__(self, server: ForkServer, request: Any, environment: Mapping[str, str], folder: Path, files: Sequence[int]):
        """Fork it. It runs the request with this environment, in `folder`, and with `files` as its standard input, output and error.

        Raises OSError if the server has ended or does not answer.
        """
        self._reports, theirs = os.pipe()
        weakref.finalize(self, os.close, self._reports)
        try:
            server.send([request, dict(environment), str(folder)], [theirs, *files])
        finally:
            os.close(theirs)
        if (pid := self._report(_FORKING_S)) is None:
            raise ConnectionResetError("the process that forks others does not answer")
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The status if it has ended, else None."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The status, once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if (status := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and _readable(self._reports, timeout_s):
            status = self._report(0.0)
            self.returncode = -signal.SIGKILL if status is None else status  # processes end with their server
        return self.returncode

    def _report(self, timeout_s: float) -> int | None:
        """The next number that the server reports; None if it has ended, or reports nothing in time."""
        number = os.read(self._reports, 4) if _readable(self._reports, timeout_s) else b""
        return int.from_bytes(number, "little", signed=True) if number else None


def serve(run: Callable[[Any], int]) -> None:
    """Fork a process for each request until the channel's other end is closed. It ends with the status that `run(request)` returns.

    The server reports its id and then its status. The server must have one thread, since no other one survives a fork.
    """
    channel = socket.socket(fileno=0)
    running: dict[int, int] = {}  # where to report the status, by process
    gc.collect()
    gc.freeze()
    while True:
        if _readable(channel, _LOOK_S if running else None):
            message, files, _, _ = socket.recv_fds(channel, _LONGEST, 4)
            if not message:
                return
            reports, *files = files
            if not (pid := os.fork()):
                channel.close()
                for other in (reports, *running.values()):
                    os.close(other)
                request, environment, folder = json.loads(message)
                _become(run, request, environment, folder, files)
            for file in files:
                os.close(file)
            running[pid] = reports
            _tell(reports, pid)
        for pid in tuple(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _tell(running[pid], os.waitstatus_to_exitcode(status))
                os.close(running.pop(pid))


def _readable(file: Any, timeout_s: float | None) -> bool:
    return bool(select.select([file], [], [], timeout_s)[0])


def _tell(reports: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody asks any more
        os.write(reports, number.to_bytes(4, "little", signed=True))


def _become(run: Callable[[Any], int], request: Any, environment: Mapping[str, str], folder: str, files: Sequence[int]) -> NoReturn:
    """Run the request in this process, which has just been forked, and end."""
    status = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run(request)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
