"""The checks of gpu-first in processes of their own: crashes and hangs, what a killed call keeps, and how the next one goes on."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace

import pytest

from calibrate.preflight import run
from calibrate.preflight.registry import CHECKS
from calibrate.preflight.run import FirstLook, child_environment
from tests.support.cli_process import environment
from tests.support.places import ROOT
from traces.errors import StepcastError
from traces.gpu_first import CheckRecord, GpuFirst, Mend, fix_first

GPUS = "tests.support.first_gpus"
BY_NAME = {check.name: check for check in CHECKS}
#: Long enough for a process to start on a busy machine.
START_S = 120


#: When a check is given up that hangs.
GIVEN_UP_S = 3.0


@pytest.fixture
def few(monkeypatch):
    """Four checks."""
    monkeypatch.setattr(run, "CHECKS", tuple(BY_NAME[name] for name in ("versions", "events", "streams", "captures")))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def look(folder, opener: str, **more) -> GpuFirst:
    first = FirstLook(folder, 60, f"{GPUS}:{opener}", **more)
    first.run()
    return first.document()


def verdicts(first: GpuFirst) -> dict[str, str]:
    return {check.name: check.verdict for check in first.checks}


def test_a_crash_and_a_hang_end_one_check_alone_and_are_tried_again(few, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "CHECKS", (*run.CHECKS[:3], replace(BY_NAME["captures"], seconds=GIVEN_UP_S)))
        first = look(tmp_path / "out", "troubled")
    assert verdicts(first) == {"versions": "ok", "events": "failed", "streams": "ok", "captures": "failed"}
    events, captures = first.checks[1], first.checks[3]
    assert events.means.startswith("its process ended with SIGABRT: ")
    assert captures.means == f"it did not end within {GIVEN_UP_S:.0f} s, so a kernel or a wait may hang"
    assert "about to crash" in (tmp_path / "out" / "checks" / "events.log").read_text()
    assert [text[:35] for text in first.fix_first] == ["find out why the check events faile", "find out why the check captures fai"]
    assert not first.well
    again = look(tmp_path / "out", "whole")
    assert set(verdicts(again).values()) == {"ok"}
    assert {check.name: check.earlier for check in again.checks} == {"versions": False, "events": False, "streams": True, "captures": False}
    assert (again.fix_first, again.well) == ((), True)
    with pytest.raises(StepcastError, match=r"is of another machine or software \(Fake GPU 132 .* there, Other GPU 132 .*--no-resume"):
        look(tmp_path / "out", "another")


def test_one_check_is_made_again_on_request(few, tmp_path):
    assert verdicts(look(tmp_path, "whole", only=["streams"])) == {"versions": "ok", "events": "left", "streams": "ok", "captures": "left"}
    with pytest.raises(StepcastError, match=r"unknown check 'event'.*did you mean 'events'"):
        run.named(["event"])


def test_without_a_gpu_nothing_is_left_behind(few, tmp_path):
    with pytest.raises(StepcastError, match=r"^PyTorch can use no GPU; check that nvidia-smi lists one$"):
        look(tmp_path / "out", "none")
    assert list(tmp_path.iterdir()) == []


def test_checks_that_do_not_fit_are_left(few, tmp_path):
    first = FirstLook(tmp_path, 1e-3, f"{GPUS}:whole")
    first.run()
    assert verdicts(first.document()) == dict.fromkeys(["versions", "events", "streams", "captures"], "left")


def test_a_killed_call_keeps_what_it_has(tmp_path):
    """The archive too. The process of the check that hung ends with it."""
    code = (
        "from dataclasses import replace; from pathlib import Path; from calibrate.preflight import run\n"
        "run.CHECKS = [check for check in run.CHECKS if check.name in ('versions', 'streams', 'captures')]\n"
        "from ui.commands.gpu_first import write\n"
        f"write(9, True, Path('out'), None, '{GPUS}:troubled')"
    )
    call = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    hung, end = tmp_path / "out" / "checks" / "captures.pid", time.monotonic() + START_S
    while not hung.exists() and time.monotonic() < end:
        time.sleep(0.1)
    call.send_signal(signal.SIGKILL)
    _, err = call.communicate()
    assert hung.exists(), err
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        archive.extractall(tmp_path / "carried", filter="data")
    for folder in (tmp_path / "out", tmp_path / "carried" / "out"):
        first = GpuFirst.load(folder / "first.json")
        assert verdicts(first) == {"versions": "ok", "streams": "ok", "captures": "left"}
        assert not first.complete
        assert "it still runs, or it was killed" in (folder / "README.md").read_text()
    assert " ok       streams: 68 streams have queues of their own" in err
    pid, end = int(hung.read_text()), time.monotonic() + START_S
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # a process that ended may wait for its parent
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_processes_import_the_packages_of_this_one(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert child_environment()["PYTHONPATH"] == f"{ROOT}{os.pathsep}elsewhere"


def test_what_to_fix_first_is_in_order_of_worth():
    def record(name: str, *mends: tuple[int, str]) -> CheckRecord:
        return CheckRecord(name=name, asks="?", verdict="differs", mend=tuple(Mend(worth=worth, text=text) for worth, text in mends))

    checks = [record("a", (4, "last"), (2, "second")), record("b", (1, "first"), (2, "third"), (2, "third"))]
    assert fix_first(checks) == ("first (b)", "second (a)", "third (b)", "last (a)")
