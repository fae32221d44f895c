"""Processes that a server forks: their environment, files and ends."""

import signal
import subprocess
import sys

import pytest

from tests.support.places import ROOT
from traces.forking import Forked, ForkServer

PROGRAM = """
import os, time
from traces.forking import serve
from traces.process import end_with
def run(request):
    end_with(os.getppid())
    print(request, os.environ.get("WORD"), os.read(0, 9), os.path.exists("input"), flush=True)
    if request == "hang":
        time.sleep(600)
    if request == "die":
        os.abort()
    return 3
serve(run)
"""
#: Long enough for a process on a busy machine.
LONG_S = 120


@pytest.fixture
def server():
    server = ForkServer([sys.executable, "-W", "error", "-c", PROGRAM], {}, cwd=ROOT)
    yield server
    server.close()


def fork(server: ForkServer, request: str, tmp_path) -> Forked:
    """A process that reads "word", and writes to a file of the request's name."""
    (tmp_path / "input").write_text("word")
    with open(tmp_path / "input") as given, open(tmp_path / request, "w") as output:
        return Forked(server, request, {"WORD": "its own"}, tmp_path, [given.fileno(), output.fileno(), output.fileno()])


def test_one_dies_one_hangs_and_others_end(server, tmp_path):
    hanging, dying, ending = (fork(server, request, tmp_path) for request in ("hang", "die", "end"))
    assert [process.wait(LONG_S) for process in (ending, dying)] == [3, -signal.SIGABRT]
    assert (tmp_path / "end").read_text() == "end its own b'word' True\n"
    assert hanging.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        hanging.wait(0.0)
    hanging.kill()
    assert (hanging.wait(LONG_S), hanging.returncode) == (-signal.SIGKILL, -signal.SIGKILL)


def test_a_server_that_died_forks_nothing(server, tmp_path):
    hanging = fork(server, "hang", tmp_path)
    server._process.kill()
    server._process.wait()
    with pytest.raises(OSError, match=r"Broken pipe|reset|does not answer"):
        fork(server, "end", tmp_path)
    assert hanging.wait(LONG_S) == -signal.SIGKILL, "processes end with their server"
