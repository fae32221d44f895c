"""A command loads only what it needs: torch for capturing and running, matplotlib for pictures, Streamlit for the app."""

import json

import pytest

from tests.support.cli_process import start

HEAVY = ("torch", "streamlit", "matplotlib", "scipy", "networkx")
#: Prints which of the heavy libraries are loaded when the process ends.
REPORT = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr))
"""
#: A job whose graph the fixture `captured` puts into the cache.
CACHED = ("--model", "lenet5", "--batch", "1")

DONE = {
    "models": ["models"],
    "strategies": ["strategies"],
    "machines": ["machines"],
    "profiles": ["profiles"],
    "papers": ["reproduce"],
    "help": ["validate", "--help"],
    "cached graph": ["predict", *CACHED, "--strategy", "backward-fusion", "--machine", "h100"],
    "cached graph on this CPU": ["predict", *CACHED, "--strategy", "turbodl", "--machine", "this-cpu", "--no-calibrate"],
}
PREDICT = ["predict", "--machine", "h100", "--strategy"]
REFUSED = {
    "model": ["run", "--model", "lenet", "--batch", "1", "--strategy", "baseline"],
    "image size": ["validate", *CACHED, "--image-size", "4"],
    "strategy": ["calibrate", *CACHED, "--strategy", "basline"],
    "option": [*PREDICT, "backward-fusion:speed=9", *CACHED],
    "option for all": [*PREDICT, "baseline", *CACHED, "--set", "speed=9"],
    "machine": ["predict", *CACHED, "--strategy", "baseline", "--machine", "h2000"],
    "trace": ["replay", "nosuch.json"],
    "paper": ["reproduce", "nosuch"],
}


@pytest.fixture(scope="module")
def captured(schedcast):
    """The command line with the graph of CACHED in its cache."""
    assert schedcast.call("predict", *CACHED, "--strategy", "baseline", "--machine", "h100").status == 0
    return schedcast


def heavy_libraries(schedcast, arguments: list[str], status: int) -> list[str]:
    """Run one command in a fresh process and return the heavy libraries that it loaded."""
    process = start(REPORT, *arguments, folder=schedcast.folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return json.loads(err.splitlines()[-1])


@pytest.mark.parametrize("command", DONE)
def test_a_command_that_needs_no_torch_does_not_load_it(captured, command):
    assert heavy_libraries(captured, DONE[command], 0) == []


@pytest.mark.parametrize("command", REFUSED)
def test_a_request_is_refused_before_heavy_libraries_load(schedcast, command):
    assert heavy_libraries(schedcast, REFUSED[command], 2) == []
