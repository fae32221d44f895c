"""`--schedule FILE`: the order of tasks, or of a pipeline's actions, is read from a file, or written to it if it does not exist."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.cpu.testbed import CpuTestbed
from calibrate.identity import cpu_identity
from tests.support.jobs import MLP
from tests.support.places import ROOT
from tests.support.refusals import refused
from traces.documents.profile import Identity, Profile
from traces.errors import SchedcastError
from ui.commands.bench import Bench
from ui.commands.schedules import opened
from ui.request import JobRequest, machine_named

JOB = ("--model", "lenet5", "--batch", 8, "--devices", 2)
#: 1F1B of two ranks whose last gradients by weights run in another order than their forwards.
SPLIT = "0F0,0F1,,0B0,0B1\n,1F0,1F1,1I0,1I1,1W1,1W0\n"
#: torch 2.13's own 1F1B: the last rank has no F0.
LYING = "0F0,0F1,,0B0,0B1\n,1F1,1B0,1B1\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "schedule.csv"


def test_a_schedule_is_written_once_and_then_followed(schedcast, file):
    written = schedcast.call("predict", *JOB, "--strategy", "1f1b", "--schedule", file, "--json")
    assert written.err.splitlines()[-1] == f"schedcast: wrote the schedule of 1f1b to {file}: 2 ranks, 2 stages and 4 microbatches"
    assert file.read_text() == "0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    followed = schedcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", file, "--json")
    assert f"schedcast: gpipe followed the schedule in {file}: 2 ranks, 2 stages and 4 microbatches" in followed.err
    assert followed.document["step_s"] == written.document["step_s"]
    assert followed.document["options"]["schedule"] == str(file)


@pytest.mark.thorough
def test_any_order_that_can_run_computes_what_plain_training_does(schedcast, file):
    file.write_text(SPLIT)
    done = schedcast.call("run", *JOB, "--strategy", "gpipe", "--schedule", file, "--steps", 3, "--json")
    assert done.status == 0, done.err
    assert done.document["semantics"]["microbatches"] == 2
    assert done.document["max_grad_error"] < 1e-5


@pytest.mark.thorough
def test_a_validation_follows_a_schedule(schedcast, file):
    file.write_text(SPLIT)
    job = ("--model", MLP, "--batch", 8, "--devices", 2, "--strategy", "1f1b")
    done = schedcast.call("validate", *job, "--schedule", file, "--quick", "--json")
    assert done.status == 0, done.err
    rows = {row["strategy"]: row for row in done.document["results"]}
    assert rows["1f1b"]["status"] == "ok"
    assert rows["1f1b"]["options"]["schedule"] == str(file)


TASKS = ("--model", MLP, "--batch", 8, "--optimizer", "momentum:for")


def edited(file, before: str, after: str) -> None:
    """Move the line of the task `after` right before that of the task `before`."""
    lines = file.read_text().splitlines(keepends=True)
    (moved,) = (line for line in lines if line.startswith(f"{after},"))
    lines.remove(moved)
    place = next(number for number, line in enumerate(lines) if line.startswith(f"{before},"))
    file.write_text("".join([*lines[:place], moved, *lines[place:]]))


@pytest.mark.thorough
def test_the_tasks_of_any_strategy_are_written_once_and_then_followed(schedcast, file):
    job = (*TASKS, "--machine", "h100", "--strategy", "baseline", "--schedule", file)
    written = schedcast.call("predict", *job, "--json")
    assert written.err.splitlines()[-1] == f"schedcast: wrote the schedule of baseline to {file}: 18 tasks on 1 lane"
    edited(file, before="1/threshold_backward.dX", after="2.bias/update")
    followed = schedcast.call("predict", *job, "--json")
    assert followed.status == 0, followed.err
    assert f"schedcast: baseline followed the schedule in {file}: 18 tasks on 1 lane" in followed.err
    assert (followed.document["strategy"], followed.document["options"]) == ("baseline", {"schedule": str(file)})
    assert followed.document["baseline_step_s"] == written.document["step_s"]


@pytest.mark.thorough
def test_a_validation_and_a_run_follow_an_order_of_tasks(schedcast, file):
    schedcast.call("predict", *TASKS, "--strategy", "baseline", "--schedule", file)
    edited(file, before="1/threshold_backward.dX", after="2.bias/update")
    job = (*TASKS, "--strategy", "baseline", "--schedule", file, "--json")
    done = schedcast.call("validate", *job, "--quick")
    assert done.status == 0, done.err
    own, followed = done.document["results"]
    assert (own["options"], followed["options"]) == ({}, {"schedule": str(file)})
    assert followed["status"] == "ok"
    assert followed["max_param_error"] == own["max_param_error"]
    done = schedcast.call("run", *job, "--steps", 3)
    assert done.status == 0, done.err
    assert done.document["options"] == {"schedule": str(file)}


@pytest.mark.thorough
def test_an_order_of_tasks_that_breaks_a_hazard(schedcast, file):
    schedcast.call("predict", *TASKS, "--strategy", "baseline", "--schedule", file)
    edited(file, before="2/mm.dX", after="2.weight/update")
    for command in ("predict", "run", "validate"):
        done = schedcast.call(command, *TASKS, "--strategy", "baseline", "--schedule", file)
        refused(
            done,
            f"schedule {file}: line 10: 2.weight/update must come after 2/mm.dX: it changes the parameter 2.weight, which 2/mm.dX reads",
        )


@pytest.mark.thorough
def test_orders_of_tasks_that_do_not_fit_the_request(schedcast, file, tmp_path):
    schedcast.call("predict", *TASKS, "--strategy", "baseline", "--schedule", file)
    comma = tmp_path / "a,b.csv"
    comma.write_text(file.read_text())
    both = ("--strategy", "baseline", "--strategy", "turbodl")
    for more, expected in {
        (*both, "--schedule", file): "orders the tasks of one strategy: 2 are given; name the file as in NAME:schedule=",
        ("--schedule", file): "none is given",
        ("--strategy", f"baseline:schedule={file}", "--schedule", file): "drop one of the two",
        ("--strategy", "baseline", "--schedule", comma): "rename the file",
        (
            "--strategy",
            "backward-fusion",
            "--schedule",
            file,
        ): "18 tasks, but backward-fusion's plan has 16: it lacks '2/update' and 1 more",
    }.items():
        refused(schedcast.call("predict", *TASKS, *more), expected)


def test_an_order_that_cannot_run_is_drawn_with_an_arrow_at_the_fault(schedcast, file):
    file.write_text(LYING)
    for command in ("predict", "run", "validate"):
        done = schedcast.call(command, *JOB, "--strategy", "1f1b", "--schedule", file)
        assert (done.status, done.out) == (2, "")
        first, *drawing = done.err.splitlines()
        assert first.startswith(f"schedcast: schedule {file}: rank 1 runs 1B0 without 1F0 before it")
        assert "torch's own 1F1B order leaves out the last rank's F0" in first
        assert drawing == ["", "rank 0  0F0 0F1 0B0 -   0B1 -", "rank 1  .   .   1F1 1B0 -   1B1 -", " " * 20 + "^ here"]


@pytest.mark.thorough
def test_files_that_do_not_fit_the_request(schedcast, file, tmp_path):
    file.write_text(SPLIT)
    predict = ("predict", *JOB, "--schedule", file, "--strategy")
    for more, expected in {
        ("pipedream",): "expected the line task,device,stream,priority",
        ("baseline", "--strategy", "turbodl"): "a pipeline's actions (1f1b, gpipe, interleaved-1f1b, zero-bubble): baseline, turbodl are 2",
        ("gpipe", "--strategy", "1f1b"): "gpipe and 1f1b do",
        ("gpipe", "--set", "microbatches=4"): f"microbatches is 4, but schedule {file} has 2; drop microbatches",
        ("gpipe:stages=3",): f"stages is 3, but schedule {file} has 2",
        ("gpipe", "--accumulate", 4): f"--accumulate is 4, but schedule {file} has 2",
        ("gpipe:schedule=x.csv",): "drop one of the two",
        ("gpipe", "--timeline", file): f"--timeline would overwrite {file}, the file of --schedule",
    }.items():
        refused(schedcast.call(*predict, *more), expected)
    file.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    refused(schedcast.call(*predict, "gpipe"), "gpipe needs 3 devices, there are 2")
    file.write_text("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n")
    refused(schedcast.call(*predict, "gpipe"), "--batch 8 does not divide into 3 microbatches")
    new = tmp_path / "new.csv"
    refused(schedcast.call("predict", "--schedule", new, *JOB), "needs one --strategy", "none is given")
    done = schedcast.call("predict", *JOB, "--batch", "8,16", "--strategy", "gpipe", "--schedule", new)
    refused(done, f"--schedule {new} does not exist, and writing it takes one --batch and one --machine")
    refused(schedcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", tmp_path), "cannot read schedule")
    refused(schedcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", "/proc/none/x.csv"), "cannot write")
    assert not new.exists()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(SPLIT) - 1), junk=st.sampled_from(["", "\0", ",", "\n", "9", "0F0", "é", "F", "-1", "(", "9" * 5000]))
def test_a_damaged_file_is_followed_or_refused_in_one_line(place, junk, file):
    file.write_text(SPLIT[:place] + junk + SPLIT[place + 1 :])
    try:
        order = opened(file, ["gpipe"], {})
    except SchedcastError as refusal:
        lines = str(refusal).splitlines()
    else:
        lines = [order.read.stages]
    assert len(lines) == 1


# `schedcast search` as users call it.


SEARCHED = ("search", "--model", "lenet5", "--batch", 8, "--machine", "p100x4", "--devices", 2)
FEW = ("--strategy", "baseline", "--strategy", "gpipe:microbatches=2", "--strategy", "turbodl")


@pytest.mark.thorough
def test_it_ranks_plans_and_writes_the_document(schedcast, tmp_path):
    out = tmp_path / "search.json"
    done = schedcast.call(*SEARCHED, *FEW, "--json", "--out", out)
    assert done.status == 0
    document = done.document
    assert document["schema"] == "schedcast.search/1"
    assert document["best"] == document["plans"][0]["plan"]
    assert {plan["strategy"] for plan in document["plans"]} <= {"baseline", "gpipe", "turbodl"}
    assert out.exists()
    one = schedcast.call("predict", *SEARCHED[1:], "--strategy", document["best"], "--json").document
    assert one["step_s"] == document["plans"][0]["step_s"]
    assert one["interval_s"] == document["plans"][0]["interval_s"]
    assert one["speedup"] == document["plans"][0]["speedup"]
    shown = schedcast.call(*SEARCHED, *FEW)
    assert shown.status == 0
    assert f"{document['best']} is predicted fastest of {document['candidates']} candidates" in shown.out
    assert "(its lower bound)" in " ".join(shown.out.split())


def test_a_memory_limit_that_nothing_fits_has_status_1(schedcast):
    done = schedcast.call(*SEARCHED, "--strategy", "baseline", "--memory-limit", 0.0001, "--json")
    assert done.status == 1
    assert done.document["best"] is None
    assert done.document["plans"] == []
    (refused,) = done.document["refused"]
    assert refused["excess_bytes"] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--verify", 0), "--verify is 0; expected at least 1"),
        (("--verify", 2), "--verify runs plans on this machine, and --machine p100x4 is another"),
        (("--processes", 0), "--processes is 0; expected at least 1"),
        (("--processes", 2, "--cluster", "tcp://127.0.0.1:1"), "both say who evaluates"),
        (("--cluster", "tcp://127.0.0.1:1"), "--cluster tcp://127.0.0.1:1"),
        (("--strategy", "pytorch"), "no executor runs"),
        (("--strategy", "gpip"), "did you mean 'gpipe'"),
        (("--set", "nothing=1"), "unknown option for --set 'nothing'"),
        (("--out", "/"), "cannot write /: it is a folder"),
    ],
)
def test_a_mistake_is_one_line(schedcast, options, why):
    refused(schedcast.call(*SEARCHED, *options), why)


def test_more_plans_to_verify_than_there_are(schedcast):
    options = ("search", "--model", "lenet5", "--batch", 8, "--strategy", "baseline", "--verify", 5)
    refused(schedcast.call(*options), "--verify 5: there are 1 candidates")


def test_costs_of_another_machine_are_not_mixed_with_those_measured_now(tmp_path):
    elsewhere = Profile(identity=Identity(kind="cpu", cpu="Elsewhere 9000", cores=64, torch="0.1"))
    request = JobRequest("lenet5", machine=machine_named(None, elsewhere.save(tmp_path / "elsewhere.json")))
    bench = Bench.of(request, CpuTestbed(), calibration=True)
    assert (bench.profile.identity, bench.place) == (cpu_identity(), None)


@pytest.mark.thorough
def test_the_best_plans_run_and_the_ranking_is_judged(schedcast):
    options = ("--strategy", "baseline", "--strategy", "forward-fusion", "--verify", 2, "--quick", "--json")
    done = schedcast.call("search", "--model", f"{ROOT}/tests/support/mlp.py:make", "--batch", 8, *options)
    assert done.status == 0, done.err
    verified = done.document["verification"]
    assert [plan["status"] for plan in verified["plans"]] == ["ok", "ok"]
    assert verified["chosen"] in {plan["plan"] for plan in verified["plans"]}
    assert verified["regret"] >= 0
    assert all(plan["max_grad_error"] < 1e-4 for plan in verified["plans"])
