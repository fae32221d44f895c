"""The command gpu-report, also --quick: what it prints and writes, on a simulated GPU and without a GPU."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer

from calibrate.preflight import registry
from calibrate.preflight.registry import probes
from tests.support.page_samples import result, validation
from tests.support.places import ROOT
from tests.support.refusals import refused
from traces.documents.gpu_report import VALIDATIONS, Fix, GpuReport, PartRecord
from ui.commands import preflight as command
from ui.preload import read_ahead, read_torch_ahead
from ui.present import gpu_report as page

GPUS = "tests.support.first_gpus"
EVENTS = PartRecord(
    name="events", title="Do events work?", priority=3, status="done", seconds=2.0, figures={"seconds": 1.5}, why="they do not",
    fixes=(Fix(worth=2, text="mend <events>"),),
)  # fmt: skip
REPORT = GpuReport(
    fix_first=("mend <events> (events)",), date="2026-01-01", device={"name": "NVIDIA H100"}, versions={"torch": "2.11"}, minutes=9.0,
    seconds=60.0, parts=(EVENTS,),
)  # fmt: skip
#: As an earlier command wrote it.
OLDER = {
    "schema": "stepcast.gpu_first/1", "fix_first": ["mend it (events)"], "date": "2026-01-01", "device": {}, "versions": {"torch": "2.11"},
    "minutes": 9.0, "seconds": 60.0, "complete": True, "report": "It was not begun.", "flags": [],
    "checks": [
        {"name": "versions", "asks": "Which?", "verdict": "ok", "seconds": 3.0, "figures": {}, "means": "all answer", "mend": []},
        {"name": "streams", "asks": "Do they work?", "verdict": "differs", "means": "no", "mend": [{"worth": 2, "text": "mend it"}],
         "earlier": True},
    ],
}  # fmt: skip


def report(out, *, archive=None, quick=True, only=(), as_json=False, wait_s=0.0):
    """Run the command without the options that a test does not speak of."""
    command.gpu_report(
        minutes=9, resume=True, out=out, archive=archive, device="cuda:0", models=[], samples=False, quick=quick, only=only, report=True,
        as_json=as_json, wait_s=wait_s,
    )  # fmt: skip


@pytest.fixture
def two_probes(monkeypatch):
    """Two quick probes, on a simulated GPU."""
    few = [probe for probe in probes(()) if probe.name in ("versions", "streams")]
    monkeypatch.setattr(command, "probes", lambda targets=(): few)
    monkeypatch.setattr(command, "REAL", f"{GPUS}:whole_at")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_the_page_starts_with_what_to_fix_first():
    text = page.readme(REPORT, {})
    assert text.splitlines()[2:5] == ["## What to fix first", "", r"1. mend \<events\> (events)"]
    assert "### events: differs" in text.splitlines()
    assert "- seconds: `1.5`" in text.splitlines()
    assert page.mend_words(REPORT.model_copy(update={"fix_first": ()})) == ["Nothing: every answer is as Schedcast assumes."]
    assert list(REPORT.document())[:2] == ["schema", "fix_first"]
    assert page.part_line(EVENTS) == "   2.0 s  differs   events: they do not"


@pytest.mark.thorough
def test_json_prints_one_document(two_probes, tmp_path, capfd):
    report(tmp_path / "out", as_json=True)
    printed, err = capfd.readouterr()
    document = json.loads(printed)
    assert (document["schema"], document["fix_first"], len(document["parts"])) == ("schedcast.gpu-report/1", [], 2)
    assert document == GpuReport.load(tmp_path / "out" / "report.json").document()
    assert document["complete"]
    lines = err.splitlines()
    at = lines.index("What to fix first:")
    assert lines[at + 1] == "  Nothing: every answer is as Schedcast assumes."
    assert lines[-1] == f"report: {tmp_path / 'out' / 'README.md'}, all of it in {tmp_path / 'out.tar.gz'}"


def test_a_validation_is_a_table_at_once_and_one_of_an_earlier_call_is_not(tmp_path, monkeypatch, capfd):
    """120 columns where nothing says how wide the terminal is. The file is saved before the report is told."""
    done = EVENTS.model_copy(update={"name": "small-cnn", "kind": "validation", "file": f"{VALIDATIONS}/small-cnn.json"})
    parts = {status: done.model_copy(update={"status": status}) for status in ("done", "skipped")}
    validation(result(predicted=0.040, measured=0.050)).save(tmp_path / done.file)

    class Told:
        def __init__(self, folder, ordered, minutes, ask, tell, show):
            self._tell = tell

        def left_s(self) -> float:
            return 60.0

        def run(self) -> GpuReport:
            for part in parts.values():
                latest = REPORT.model_copy(update={"parts": (part,)})
                self._tell(latest, part)
            return latest

    monkeypatch.setattr(command, "Runner", Told)
    command.write(None, (), 1.0, tmp_path, tmp_path / "all.tgz")
    err = capfd.readouterr().err
    (row,) = (line for line in err.splitlines() if line.startswith(" small-cnn batch 64, fp32, sgd  eager  turbodl"))
    assert row.split()[-5:-2] == ["40.0", "50.0", "-20.0"]


@pytest.mark.thorough
def test_a_quick_look_is_continued(two_probes, tmp_path, monkeypatch):
    """Exit status 1 without --quick: no strategy was validated."""
    report(tmp_path / "out")
    with pytest.raises(typer.Exit) as left:
        report(tmp_path / "out", quick=False)
    assert left.value.exit_code == 1
    again = GpuReport.load(tmp_path / "out" / "report.json")
    assert [part.status for part in again.parts] == ["done", "skipped"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "default_place", Path)
    with pytest.raises(typer.Exit):
        report(None, quick=False, wait_s=1e-9)
    assert (tmp_path / "Fake GPU" / "report.json").exists()
    assert not (tmp_path / "Fake GPU.tar.gz").exists()


@pytest.mark.thorough
def test_the_folder_of_an_older_gpu_first_is_continued(two_probes, tmp_path):
    (tmp_path / "first.json").write_text(json.dumps(OLDER))
    older = GpuReport.load(tmp_path / "first.json")
    assert [(part.name, part.title, part.verdict, part.why) for part in older.parts] == [
        ("versions", "Which?", "ok", "all answer"), ("streams", "Do they work?", "differs", "no"),
    ]  # fmt: skip
    assert (older.fix_first, older.well, older.document()["schema"]) == (("mend it (events)",), False, "schedcast.gpu-report/1")
    with pytest.raises(typer.Exit) as left:
        report(tmp_path, archive=tmp_path / "all.tgz")
    assert left.value.exit_code == 1
    assert [part.verdict for part in GpuReport.load(tmp_path / "report.json").parts] == ["ok", "differs"]
    report(tmp_path, archive=tmp_path / "all.tgz", only=["streams"])
    assert [part.verdict for part in GpuReport.load(tmp_path / "report.json").parts] == ["ok", "ok"]


@pytest.mark.thorough
def test_the_commands_without_a_gpu(schedcast, tmp_path):
    for name in (["gpu-report", "--quick"], ["gpu-first"], ["gpu-report"]):
        refused(schedcast.call(*name, "--out", tmp_path / "out"), "PyTorch")
        refused(schedcast.call(*name, "--device", "cpu"), "--device cpu", "schedcast demo")
        refused(schedcast.call(*name, "--minutes", "0"), "--minutes is 0")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes.txt").touch()
        refused(schedcast.call(*name, "--out", tmp_path / "mine"), "has files (notes.txt) but no report of this command")
        (tmp_path / "mine" / "notes.txt").unlink()
        (tmp_path / "mine").rmdir()
    refused(schedcast.call("gpu-report", "--json"), "PyTorch")
    refused(schedcast.call("gpu-report", "--only", "events"), "--only events is an option of a quick look; add --quick")
    refused(schedcast.call("gpu-report", "--quick", "--only", "event"), "unknown check 'event'", "did you mean 'events'")
    refused(schedcast.call("gpu-report", "--models", "lenet5"), "'lenet5' is not MODEL@BATCH")
    refused(schedcast.call("gpu-report", "--models", "lenet@5"), "unknown model 'lenet'")
    assert list(tmp_path.iterdir()) == []


def test_the_libraries_of_torch_are_read_ahead_whole(tmp_path, monkeypatch):
    sizes = {"torch/lib/libtorch_cuda.so": 300_000, "nvidia/cudnn/lib/libcudnn.so.9": 5, "torch/lib/empty.so": 0, "torch/lib/notes.txt": 9}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    asked = Counter()

    def advise(file: int, offset: int, length: int, advice: int) -> None:
        name = str(Path(os.readlink(f"/proc/self/fd/{file}")).relative_to(tmp_path))
        assert (offset, advice) == (asked[name], os.POSIX_FADV_WILLNEED)
        asked[name] += min(length, 1 << 17)  # more is not read

    monkeypatch.setattr(os, "posix_fadvise", advise)
    read_ahead(tmp_path)
    assert asked == {"torch/lib/libtorch_cuda.so": 3 << 17, "nvidia/cudnn/lib/libcudnn.so.9": 1 << 17}
    monkeypatch.delattr(os, "posix_fadvise")
    read_ahead(tmp_path)


def test_a_folder_called_torch_is_no_pytorch_to_read_ahead(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    read_torch_ahead()


def test_names_are_those_of_quick_probes():
    quick = [probe.name for probe in registry.probes(()) if probe.file is None]
    assert registry.named(quick) == quick
