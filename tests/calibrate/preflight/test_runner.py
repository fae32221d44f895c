"""Probes in processes of their own: crashes and hangs, what a killed call keeps, and how the next one goes on."""

import os
import sys
import tarfile
import time
from dataclasses import replace

import pytest

from calibrate.preflight import child, runner
from calibrate.preflight.probe import Probe
from calibrate.preflight.registry import named, probes
from calibrate.preflight.runner import Processes, Runner
from tests.support.cli_process import environment
from tests.support.places import ROOT
from tests.support.refusals import refuses
from tests.support.warm_processes import WarmProcess
from traces.documents.gpu_report import Fix, GpuReport, PartRecord, fix_first
from traces.errors import Code
from traces.process import importing_environment

GPUS = "tests.support.first_gpus"
BY_NAME = {probe.name: probe for probe in probes(())}
FEW = [BY_NAME[name] for name in ("versions", "events", "streams", "captures")]
#: Long enough for a process to start on a busy machine.
START_S = 120
#: When a probe is given up that hangs.
GIVEN_UP_S = 3.0


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Processes find the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def look(folder, opener: str, todo: list[Probe] = FEW, minutes: float = 60, **more) -> GpuReport:
    with Processes(folder, f"{GPUS}:{opener}", ()) as processes:
        return Runner(folder, todo, minutes, processes.ask, **more).run()


def verdicts(report: GpuReport) -> dict[str, str]:
    return {part.name: part.verdict for part in report.parts}


@pytest.mark.thorough
def test_a_crash_and_a_hang_end_one_probe_alone_and_are_tried_again(tmp_path):
    """What needs one of them is not tried."""
    graphs = replace(BY_NAME["host-calls"], file="graphs.json", needs=("streams", "events"))
    report = look(tmp_path / "out", "troubled", [*FEW[:3], replace(BY_NAME["captures"], limit_s=GIVEN_UP_S), graphs])
    assert verdicts(report) == {"versions": "ok", "events": "failed", "streams": "ok", "captures": "failed", "host-calls": "unsuited"}
    events, captures = report.parts[1], report.parts[3]
    assert report.parts[4].why == f"skipped: the check events failed: {events.why}"
    assert events.why.startswith("its process ended with SIGABRT: ")
    assert captures.why == f"it did not end within {GIVEN_UP_S:.0f} s, so a kernel or a wait may hang"
    assert "about to crash" in (tmp_path / "out" / "probes" / "events.log").read_text()
    assert [text[:35] for text in report.fix_first] == ["find out why the probe events faile", "find out why the probe captures fai"]
    assert not report.well
    again = look(tmp_path / "out", "whole")
    assert set(verdicts(again).values()) == {"ok"}
    assert {part.name: part.status for part in again.parts} == {
        "versions": "done", "events": "done", "streams": "skipped", "captures": "done",
    }  # fmt: skip
    assert (again.fix_first, again.well) == ((), True)
    with refuses(Code.REQUEST, r"is of another machine or software \(Fake GPU 132 .* there, Other GPU 132 .*--no-resume"):
        look(tmp_path / "out", "another")


@pytest.mark.thorough
def test_an_answer_counts_though_its_process_dies_or_hangs_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_LATE_S", 0.5)
    report = look(tmp_path, "answering")
    assert set(verdicts(report).values()) == {"ok"}
    flags = {part.name: part.flags for part in report.parts}
    assert flags["events"] == ("its process ended with SIGABRT after it had answered",)
    assert flags["captures"] == ("its process did not go on after it had answered",)
    assert not list((tmp_path / "probes").glob("*.answer.json"))


@pytest.mark.thorough
def test_one_probe_is_run_again_on_request(tmp_path):
    assert verdicts(look(tmp_path, "whole", only=["streams"])) == {"versions": "ok", "events": "left", "streams": "ok", "captures": "left"}
    with refuses(Code.NAME, r"unknown check 'event'.*did you mean 'events'"):
        named(["event"])


@pytest.mark.thorough
def test_without_a_gpu_nothing_is_left_behind(tmp_path):
    with refuses(Code.DEVICES, r"^PyTorch can use no GPU; check that nvidia-smi lists one$"):
        look(tmp_path / "out", "none")
    with Processes(tmp_path, f"{GPUS}:none") as processes, refuses(Code.DEVICES, r"^PyTorch can use no GPU"):
        processes.look(0.0, print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_probes_that_do_not_fit_are_left(tmp_path):
    report = look(tmp_path, "whole", minutes=1e-3)
    assert verdicts(report) == {"versions": "ok", "events": "left", "streams": "left", "captures": "left"}


def test_a_gpu_that_cannot_be_opened_twice_ends_the_call(tmp_path):
    first = replace(FEW[0], environment={})
    todo = [replace(probe, environment={"TEARDOWN_CUPTI": "1"}) for probe in FEW[1:]]
    report = look(tmp_path, "gone", [first, *todo])
    assert verdicts(report) == {"versions": "ok", "events": "failed", "streams": "failed", "captures": "left"}
    assert report.parts[2].why == "the GPU could not be opened: the GPU has fallen off the bus"
    assert report.parts[3].why == "the GPU is unusable after streams; start again"


@pytest.mark.parametrize(("opener", "processes"), [("lasting", 1), ("dying", 2)])
def test_long_probes_share_a_process_until_it_cannot_use_the_gpu(tmp_path, opener, processes):
    """A quick one has its own, and only one of all lives at a time."""
    started = []

    class Counted(Processes):
        def _start(self, log, environment, mode="w"):
            before = self._process
            super()._start(log, environment, mode)
            assert before is None or before.poll() is not None
            started.append(log.name)

    long = [replace(BY_NAME[name], file=f"{name}.json") for name in ("events", "captures")]
    with Counted(tmp_path, f"{GPUS}:{opener}", ()) as runs:
        for probe in long:
            assert runs.ask(probe, START_S, START_S, 0.0, lambda text: None)["status"] == "done"
        assert runs.ask(BY_NAME["versions"], START_S, START_S, 0.0, lambda text: None)["status"] == "done"
    assert started == ["long.log"] * processes + ["versions.log"]


@pytest.mark.thorough
def test_a_killed_call_keeps_what_it_has(tmp_path):
    """The archive too. The process of the probe that hung ends with it."""
    code = (
        "from pathlib import Path\n"
        "from calibrate.preflight.registry import probes\n"
        "from calibrate.preflight.runner import Processes\n"
        "from ui.commands.preflight import write\n"
        "by_name = {probe.name: probe for probe in probes(())}\n"
        "todo = [by_name[name] for name in ('versions', 'streams', 'captures')]\n"
        f"processes = Processes(Path('out'), '{GPUS}:troubled', ())\n"
        "write(processes.ask, todo, 9, Path('out'), Path('out.tar.gz'))"
    )
    call = WarmProcess(["-c", code], tmp_path, environment(tmp_path))
    hung, end = tmp_path / "out" / "probes" / "captures.pid", time.monotonic() + START_S
    while not hung.exists() and time.monotonic() < end:
        time.sleep(0.1)
    call.kill()
    _, err = call.communicate(START_S)
    assert hung.exists(), err
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        archive.extractall(tmp_path / "carried", filter="data")
    for folder in (tmp_path / "out", tmp_path / "carried" / "out"):
        report = GpuReport.load(folder / "report.json")
        assert verdicts(report) == {"versions": "ok", "streams": "ok", "captures": "running"}
        assert not report.complete
        assert "it still runs, or it was killed" in (folder / "README.md").read_text()
    assert " ok        streams: 68 streams have queues of their own" in err
    pid, end = int(hung.read_text()), time.monotonic() + START_S
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _runs(pid)
    again = look(tmp_path / "out", "whole", [BY_NAME[name] for name in ("versions", "streams", "captures", "events")])
    assert set(verdicts(again).values()) == {"ok"}


def test_a_long_probe_that_breaks_the_gpu_goes_on_in_a_new_process(tmp_path):
    """Once: the key that broke it is left out the second time."""
    ran = []

    def ask(probe: Probe, *_limits) -> dict:
        ran.append(probe.name)
        broken = probe.file is not None and (ran.count(probe.name) == 1 or probe.name == "captures")
        return {"status": "failed", "why": "CUDA error", "usable": False} if broken else {"status": "done"}

    long = [replace(BY_NAME[name], file=f"{name}.json") for name in ("events", "captures")]
    report = Runner(tmp_path, [BY_NAME["versions"], *long], 9, ask).run()
    assert ran == ["versions", "events", "events", "captures", "captures"]
    assert {part.name: part.status for part in report.parts} == {"versions": "done", "events": "done", "captures": "failed"}


def test_a_long_probe_goes_on_in_another_process_as_often_as_it_asks_to(tmp_path):
    """Eager steps are timed where no profiler has run, and a strategy that plans with measured costs may need more of them."""
    ran = []

    def ask(probe: Probe, *_limits) -> dict:
        ran.append(probe.name)
        again = probe.file is not None and len(ran) < 4
        return {"status": "left", "why": "its cost keys are measured", "usable": False, "again": True} if again else {"status": "done"}

    report = Runner(tmp_path, [BY_NAME["versions"], replace(BY_NAME["events"], file="events.json")], 9, ask).run()
    assert ran == ["versions", "events", "events", "events"]
    assert {part.name: part.status for part in report.parts} == {"versions": "done", "events": "done"}


def test_parts_that_need_a_check_that_failed_are_skipped_until_it_passes(tmp_path):
    """Unless one of them was measured all the same."""
    versions, events = BY_NAME["versions"], BY_NAME["events"]
    eager, *graphs = (replace(versions, name=name, file=f"{name}.json") for name in ("eager", "graph", "more"))
    graph, more = (replace(probe, needs=("events",)) for probe in graphs)
    ran, broken = [], {"events"}

    def ask(probe: Probe, *_limits) -> dict:
        ran.append(probe.name)
        return {"status": "failed" if probe.name in broken else "done", "why": "it hangs"}

    def run(folder: str, *todo: Probe) -> dict[str, str]:
        ran.clear()
        report = Runner(tmp_path / folder, [versions, *todo], 9, ask).run()
        return {part.name: part.why for part in report.parts if part.status == "unsuited"}

    assert run("a", events, graph, eager, more) == dict.fromkeys(["graph", "more"], "skipped: the check events failed: it hangs")
    assert ran == ["versions", "events", "eager"]
    assert run("b", graph, events, eager, more) == {}
    broken.clear()
    assert run("a", events, graph, eager, more) == {}
    assert ran == ["versions", "eager", "events", "graph", "more"], "the check comes before what needs it"


def test_what_a_killed_call_was_at_comes_last_in_the_next_one(tmp_path):
    """It may kill that one too."""
    ran = []

    def ask(probe: Probe, *_limits) -> dict:
        if ran.append(probe.name) or probe.name == "streams":
            raise SystemExit
        return {"status": "done", "figures": {}}

    with pytest.raises(SystemExit):
        Runner(tmp_path, [BY_NAME[name] for name in ("versions", "streams", "events")], 9, ask).run()
    with pytest.raises(SystemExit):
        Runner(tmp_path, [BY_NAME[name] for name in ("versions", "streams", "events")], 9, ask).run()
    assert ran == ["versions", "streams", "versions", "events", "streams"]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # a process that ended may wait for its parent
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_ctrl_c_stops_the_process_of_a_probe(tmp_path):
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with Processes(tmp_path, f"{GPUS}:talking", ()) as processes:
        with pytest.raises(KeyboardInterrupt):
            processes.ask(BY_NAME["streams"], START_S, START_S, 0.0, stop)
        assert processes._process is None
    assert "KeyboardInterrupt" in (tmp_path / "probes" / "streams.log").read_text()


#: Ends with 5 if a server forked it, with 7 if it was started from scratch. Three arguments: python, -c and this.
_PROGRAM = "import sys; from traces.forking import serve; sys.exit(7) if sys.argv[1:] else serve(lambda request: 5)"


@pytest.fixture
def starter(monkeypatch):
    """Starts processes of `_PROGRAM`."""
    monkeypatch.setattr(runner, "_COMMAND", (sys.executable, "-c", _PROGRAM))
    starter = runner._Starter()
    yield starter
    starter.close()


def start(starter: runner._Starter) -> int:
    """The status of a process."""
    with open(os.devnull, "r+") as nothing:
        return starter.start({}, importing_environment(), (nothing.fileno(),) * 3).wait(START_S)


def test_a_server_that_died_is_replaced(starter):
    assert start(starter) == 5
    starter._server._process.kill()
    assert start(starter) == 5


def test_without_a_server_that_forks_processes_start_from_scratch(starter, monkeypatch):
    monkeypatch.setattr(runner, "_COMMAND", (sys.executable, "-c", _PROGRAM.replace("serve(lambda request: 5)", "None")))
    assert [start(starter), start(starter)] == [7, 7]
    assert starter._server is None


def test_a_process_with_threads_or_with_the_gpu_must_not_fork(monkeypatch):
    monkeypatch.setattr(os, "listdir", lambda path: ["1", "2"])
    assert child._unforkable() == "it has 2 threads"
    monkeypatch.setattr(os, "listdir", lambda path: ["1"])
    assert child._unforkable() == ""
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidiactl")
    assert child._unforkable() == "it has opened the GPU"


def test_processes_import_the_packages_of_this_one(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert importing_environment()["PYTHONPATH"] == f"{ROOT}{os.pathsep}elsewhere"


def test_what_to_fix_first_is_in_order_of_worth():
    def record(name: str, *mends: tuple[int, str]) -> PartRecord:
        fixes = tuple(Fix(worth=worth, text=text) for worth, text in mends)
        return PartRecord(name=name, title="?", priority=0, status="done", fixes=fixes)

    parts = [record("a", (4, "last"), (2, "second")), record("b", (1, "first"), (2, "third"), (2, "third"))]
    assert fix_first(parts) == ("first (b)", "second (a)", "third (b)", "last (a)")
