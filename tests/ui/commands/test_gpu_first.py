"""The command gpu-first: what it prints and writes, on a simulated GPU and without a GPU."""

import json
import tarfile
from types import SimpleNamespace

import pytest

from calibrate.preflight import run
from calibrate.preflight.registry import CHECKS
from tests.support.places import ROOT
from tests.support.refusals import refused
from traces.gpu_first import CheckRecord, GpuFirst, Mend
from traces.gpu_report import GpuReport
from ui.commands import gpu_first as command
from ui.reports import gpu_first as page

WHOLE = "tests.support.first_gpus:whole"
CHECK = CheckRecord(
    name="events", asks="Do events work?", verdict="differs", seconds=2.0, figures={"seconds": 1.5}, means="they do not",
    mend=(Mend(worth=2, text="mend <events>"),),
)  # fmt: skip
FIRST = GpuFirst(
    fix_first=("mend <events> (events)",), date="2026-01-01", device={"name": "NVIDIA H100"}, versions={"torch": "2.11"}, minutes=9.0,
    seconds=60.0, complete=True, checks=(CHECK,), report="eager: 2 results.",
)  # fmt: skip


@pytest.fixture
def two_checks(monkeypatch):
    monkeypatch.setattr(run, "CHECKS", [check for check in CHECKS if check.name in ("versions", "streams")])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_the_page_starts_with_what_to_fix_first():
    lines = page.readme(FIRST).splitlines()
    assert lines[:6] == ["# First minutes on NVIDIA H100", "", "## What to fix first", "", r"1. mend \<events\> (events)", ""]
    assert "### events: differs" in lines
    assert "- seconds: `1.5`" in lines
    assert page.mend_words(FIRST.model_copy(update={"fix_first": ()})) == ["Nothing: every answer is as Stepcast assumes."]
    assert list(FIRST.document())[:2] == ["schema", "fix_first"]
    assert FIRST.document()["schema"] == "stepcast.gpu_first/1"


def test_the_report_gets_the_time_that_is_left(two_checks, tmp_path, capsys, monkeypatch):
    calls = []

    class Process:
        """Writes a report, and ends once the archive has it."""

        returncode = 0

        def __init__(self, arguments, **more):
            calls.append(arguments)
            assert "It is being measured." in (tmp_path / "out" / "README.md").read_text()
            report = GpuReport(date="2026", versions={}, device={}, identity={}, minutes=1.0, seconds=1.0, parts=())
            report.save(tmp_path / "out" / "report" / "report.json")

        def poll(self):
            with tarfile.open(tmp_path / "all.tgz") as archive:
                return 0 if "out/report/report.json" in archive.getnames() else None

        def kill(self):
            """It has ended."""

        def wait(self):
            """It has ended."""

    monkeypatch.setattr(command, "subprocess", SimpleNamespace(Popen=Process, TimeoutExpired=TimeoutError))
    document = command.write(3, True, tmp_path / "out", tmp_path / "all.tgz", WHOLE, (), ["gpu-report", "--device", "cuda:0"])
    (arguments,) = calls
    assert arguments[4:8] == ["gpu-report", "--device", "cuda:0", "--out"]
    assert arguments[8:10] == [str(tmp_path / "out" / "report"), "--minutes"]
    assert 0 < float(arguments[10]) * 60 < 180
    assert document.complete
    assert document.report.startswith("No strategy ran.")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-4:] == [
        "What to fix first:",
        "  Nothing: every answer is as Stepcast assumes.",
        f"GPU report: {document.report}",
        f"answers: {tmp_path / 'out' / 'README.md'}, all of it in {tmp_path / 'all.tgz'}",
    ]
    assert GpuFirst.load(tmp_path / "out" / "first.json") == document


def test_a_report_that_fails_or_has_no_time_is_said_so(two_checks, tmp_path):
    look = run.FirstLook(tmp_path, 5, WHOLE)
    assert (
        command._report(look, ["gpu-report", "--device", "cpu", "--out", str(tmp_path / "report")]) == "It has no results: exit status 2."
    )
    assert command._report(run.FirstLook(tmp_path, 0.5, WHOLE), []).startswith("It was not begun: 30 s were left")


def test_the_command_without_a_gpu(stepcast, tmp_path):
    refused(stepcast.call("gpu-first", "--out", tmp_path / "out"), "PyTorch")
    refused(stepcast.call("gpu-first", "--device", "cpu"), "--device cpu", "stepcast demo")
    refused(stepcast.call("gpu-first", "--minutes", "0"), "--minutes is 0")
    refused(stepcast.call("gpu-first", "--only", "event"), "unknown check 'event'", "did you mean 'events'")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    refused(stepcast.call("gpu-first", "--out", tmp_path / "mine"), "has files (notes.txt) but no report of this command")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_json_prints_one_document(two_checks, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(command, "REAL", WHOLE.rpartition(":")[0] + ":whole_at")
    command.gpu_first(9, True, tmp_path / "out", None, "cuda:0", [], False, True)
    printed = json.loads(capfd.readouterr().out)
    assert (printed["schema"], printed["fix_first"], len(printed["checks"])) == ("stepcast.gpu_first/1", [], 2)
