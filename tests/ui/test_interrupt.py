"""Ctrl-C and SIGTERM stop a command at once with one line, and leave nothing half-written. A stopped calibration can be continued."""

import signal
import time
from pathlib import Path

import pytest

from calibrate.cpu import sampler
from tests.support.cli_process import start, start_warm
from tests.support.samples import read_samples
from traces.documents.profile import Profile
from traces.documents.training import TrainingRun

#: Runs before the command line: writes a file when FUNCTION of MODULE is called for the nth time, and then waits.
MARK = """
import importlib, pathlib, time
owner = importlib.import_module({module!r})
for part in {function!r}.split('.')[:-1]:
    owner = getattr(owner, part)
name, calls = {function!r}.split('.')[-1], []
original = getattr(owner, name)
def marked(*args, **kwargs):
    result = original(*args, **kwargs) if {after} else None
    calls.append(1)
    if len(calls) == {count}:
        pathlib.Path({mark!r}).touch()
        time.sleep({wait_s})
    return result if {after} else original(*args, **kwargs)
setattr(owner, name, marked)
"""
#: Runs before the command line: writes a file when torch is about to be imported.
MARK_IMPORT = """
import pathlib, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'torch':
            pathlib.Path({mark!r}).touch()
sys.meta_path.insert(0, Finder())
"""
#: Runs before the command line: writes a file when modules are unloaded at the end, and then waits for a second.
UNLOADING = """
import os, time
class Last:
    def __del__(self, open=os.open, close=os.close, flags=os.O_CREAT, sleep=time.sleep):
        close(open({mark!r}, flags))
        sleep(1)
os.last_of_all = Last()
"""
STOPPED = (130, "", "schedcast: stopped; nothing half-written is left\n")
TERMINATED = (143, *STOPPED[1:])
LONG = ("--model", "lenet5", "--batch", 2048)
#: Longest wait for steps that take a few seconds. A process that reaches it hangs.
HANGS_S = 120


def interrupted(folder: Path, code: str, *arguments: object, by: int = signal.SIGINT, begin=start_warm) -> tuple[int, str, str]:
    """Start the command line, send the signal `by` when `code` has written its file, and return (status, out, err)."""
    mark = folder / "mark"
    process = begin(
        code, *arguments, folder=folder, SCHEDCAST_CACHE=str(folder / "cache")
    )  # an empty one: some are stopped while capturing
    end = time.monotonic() + HANGS_S
    while not mark.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(by)
    try:
        out, err = process.communicate(timeout=HANGS_S)
    finally:
        process.kill()  # a process that hangs would occupy a core during all later tests
    mark.unlink(missing_ok=True)
    return process.returncode, out, err


CASES = {
    "predict while capturing": (
        "simulator.model.capture.recorder",
        "Recorder._op",
        ["predict", *LONG, "--strategy", "baseline", "--machine", "p100"],
        5,
    ),
    "predict while simulating": (
        "simulator.engine.sms",
        "Sms.enter",
        ["predict", *LONG, "--strategy", "turbodl", "--machine", "p100"],
        50,
    ),
    "run": (
        "executors.cpu.workers",
        "Workers.run",
        ["run", *LONG, "--strategy", "baseline", "--steps", 5000, "--metrics", "out/m.json"],
        1,
    ),
    "run on two streams": (
        "executors.cpu.workers",
        "Workers.run",
        ["run", *LONG, "--strategy", "backward-fusion:update_stream=on", "--steps", 5000, "--timeline", "out/t.json"],
        1,
    ),
    "validate": ("executors.cpu.workers", "Workers.run", ["validate", *LONG, "--out", "out/report"], 30),
    "demo": ("executors.cpu.workers", "Workers.run", ["demo", "--out", "out/report"], 60),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("by", "ended"), [(signal.SIGINT, STOPPED), (signal.SIGTERM, TERMINATED)], ids=["SIGINT", "SIGTERM"])
def test_a_run_keeps_its_completed_steps(tmp_path, by, ended):
    arguments = ["run", "--model", "rnn_bitstream", "--image-size", 20, "--batch", 4, "--strategy", "baseline", "--beside", "autograd"]
    places = ["--metrics", "m.json", "--out", "page", "--timeline", "t.json"]
    code = MARK.format(module="executors.cpu.workers", function="Workers.run", count=8, mark=str(tmp_path / "mark"), after=False, wait_s=0)
    status, out, err = interrupted(tmp_path, code, *arguments, "--steps", 200_000, *places, by=by)
    assert (status, out, err) == (ended[0], "", f"report: page/index.html\n{ended[2]}")
    document = TrainingRun.load(tmp_path / "m.json")
    assert document.complete is False
    assert 16 <= document.steps < 200_000
    assert [len(curve.losses) for curve in document.curves] == [document.steps] * 2
    assert TrainingRun.load(tmp_path / "page" / "run.json") == document
    assert not (tmp_path / "t.json").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_one_line_and_nothing_half_written(case, tmp_path):
    (tmp_path / "out").mkdir()
    module, function, arguments, count = CASES[case]
    wait_s = (
        0 if module == "executors.cpu.workers" else HANGS_S
    )  # interrupt workers while they run; a simulation must wait, because it could end too soon
    code = MARK.format(module=module, function=function, count=count, mark=str(tmp_path / "mark"), after=False, wait_s=wait_s)
    assert interrupted(tmp_path, code, *arguments) == STOPPED
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("case", ["predict while capturing", "validate"])
def test_a_job_scheduler_stops_a_command_as_ctrl_c_does(case, tmp_path):
    (tmp_path / "out").mkdir()
    module, function, arguments, count = CASES[case]
    wait_s = 0 if module == "executors.cpu.workers" else HANGS_S
    code = MARK.format(module=module, function=function, count=count, mark=str(tmp_path / "mark"), after=False, wait_s=wait_s)
    assert interrupted(tmp_path, code, *arguments, by=signal.SIGTERM) == TERMINATED
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.thorough
def test_a_report_that_is_being_written_leaves_no_folder(tmp_path):
    code = MARK.format(module="ui.present.report", function="write_json", count=1, mark=str(tmp_path / "mark"), after=False, wait_s=HANGS_S)
    validate = ["validate", "--model", "lenet5", "--batch", 4, "--strategy", "baseline", "--quick", "--out", "rep"]
    status, out, err = interrupted(tmp_path, code, *validate, by=signal.SIGTERM)
    assert (status, err.endswith(TERMINATED[2])) == (143, True)
    assert "baseline" in out, "the table is printed before the report is written"
    assert [path.name for path in tmp_path.iterdir() if "rep" in path.name] == []


@pytest.mark.thorough
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_work_is_done_changes_nothing(tmp_path, by):
    """Python has taken its handlers away when it unloads modules."""
    code = UNLOADING.format(mark=str(tmp_path / "mark"))
    status, out, err = interrupted(tmp_path, code, "strategies", by=by, begin=start)
    assert (status, err) == (0, "")
    assert "baseline" in out


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("run",), ("predict", "--machine", "p100")], ids=["run", "predict"])
def test_ctrl_c_waits_until_torch_is_loaded(command, tmp_path):
    code = MARK_IMPORT.format(mark=str(tmp_path / "mark"))
    assert interrupted(tmp_path, code, *command, *LONG, "--strategy", "baseline", begin=start) == STOPPED


@pytest.mark.thorough
def test_a_calibration_continues_where_it_stopped(tmp_path, schedcast):
    profile = tmp_path / "p.json"
    job = ("calibrate", "--model", "lenet5", "--batch", 8, "-o", profile)
    small = "import calibrate.cpu.sampler\ncalibrate.cpu.sampler.GROUP = 4\n"
    # profile.save is called once per group; the third group is being measured when the signal arrives
    mark = MARK.format(
        module="traces.documents.profile", function="Profile.save", count=2, mark=str(tmp_path / "mark"), after=True, wait_s=0
    )
    assert interrupted(tmp_path, small + mark, *job) == STOPPED
    stopped = Profile.load(profile).costs
    assert len(stopped) >= 8
    assert len(stopped) % 4 == 0
    assert {record["key"] for record in read_samples(profile)} == set(stopped)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    done = schedcast.call(*job, "--json").document
    finished = Profile.load(profile).costs
    assert done["measured_keys"] == len(finished) - len(stopped) > 0
    assert {key: finished[key] for key in stopped} == stopped


def test_long_keys_make_small_groups(monkeypatch):
    class Sampler:
        def add(self, plan, keys):
            pass

    clock = iter(range(1000))
    monkeypatch.setattr(sampler.time, "perf_counter", lambda: float(next(clock)))
    todo = [(None, f"key{i}", None) for i in range(10)]
    sampled = []
    count = sampler._sample_first(Sampler(), todo, lambda sampler, key, number: sampled.append((key, number)))
    assert count == len(sampled) == 3  # 3 samples of a second each, in nine rounds, exceed 20 s
    assert sampled[0] == ("key0", 0)
