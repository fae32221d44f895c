"""`--schedule FILE`: the order of a pipeline's actions is read from a file, or written to it if it does not exist."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.places import SUPPORT
from tests.support.refusals import refused
from traces.errors import StepcastError
from ui.commands.schedules import opened

JOB = ("--model", "lenet5", "--batch", 8, "--devices", 2)
#: 1F1B of two ranks whose last gradients by weights run in another order than their forwards.
SPLIT = "0F0,0F1,,0B0,0B1\n,1F0,1F1,1I0,1I1,1W1,1W0\n"
#: torch 2.13's own 1F1B: the last rank has no F0.
LYING = "0F0,0F1,,0B0,0B1\n,1F1,1B0,1B1\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "schedule.csv"


def test_a_schedule_is_written_once_and_then_followed(stepcast, file):
    written = stepcast.call("predict", *JOB, "--strategy", "1f1b", "--schedule", file, "--json")
    assert written.err.splitlines()[-1] == f"stepcast: wrote the schedule of 1f1b to {file}: 2 ranks, 2 stages and 4 micro-batches"
    assert file.read_text() == "0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3\n,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    followed = stepcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", file, "--json")
    assert f"stepcast: gpipe followed the schedule in {file}: 2 ranks, 2 stages and 4 micro-batches" in followed.err
    assert followed.document["step_s"] == written.document["step_s"]
    assert followed.document["options"]["schedule"] == str(file)


def test_any_order_that_can_run_computes_what_plain_training_does(stepcast, file):
    file.write_text(SPLIT)
    done = stepcast.call("run", *JOB, "--strategy", "gpipe", "--schedule", file, "--steps", 3, "--json")
    assert done.status == 0, done.err
    assert done.document["semantics"]["micro_batches"] == 2
    assert done.document["max_grad_error"] < 1e-5


def test_a_validation_follows_a_schedule(stepcast, file):
    file.write_text(SPLIT)
    job = ("--model", f"{SUPPORT / 'mlp.py'}:make", "--batch", 8, "--devices", 2, "--strategy", "1f1b")
    done = stepcast.call("validate", *job, "--schedule", file, "--quick", "--json")
    assert done.status == 0, done.err
    rows = {row["strategy"]: row for row in done.document["results"]}
    assert rows["1f1b"]["status"] == "ok"
    assert rows["1f1b"]["options"]["schedule"] == str(file)


def test_an_order_that_cannot_run_is_drawn_with_an_arrow_at_the_fault(stepcast, file):
    file.write_text(LYING)
    for command in ("predict", "run", "validate"):
        done = stepcast.call(command, *JOB, "--strategy", "1f1b", "--schedule", file)
        assert (done.status, done.out) == (2, "")
        first, *drawing = done.err.splitlines()
        assert first.startswith(f"stepcast: schedule {file}: rank 1 runs 1B0 without 1F0 before it")
        assert "torch's own 1F1B order leaves out the last rank's F0" in first
        assert drawing == ["", "rank 0  0F0 0F1 0B0 -   0B1 -", "rank 1  .   .   1F1 1B0 -   1B1 -", " " * 20 + "^ here"]


def test_files_that_do_not_fit_the_request(stepcast, file, tmp_path):
    file.write_text(SPLIT)
    predict = ("predict", *JOB, "--schedule", file, "--strategy")
    for more, expected in {
        ("pipedream",): "needs one --strategy that follows a schedule (1f1b, gpipe, interleaved-1f1b, zero-bubble): pipedream cannot",
        ("baseline",): "baseline cannot",
        ("gpipe", "--strategy", "1f1b"): "gpipe and 1f1b do",
        ("gpipe", "--set", "microbatches=4"): f"microbatches is 4, but schedule {file} has 2; leave out microbatches",
        ("gpipe:stages=3",): f"stages is 3, but schedule {file} has 2",
        ("gpipe", "--accumulate", 4): f"--accumulate is 4, but schedule {file} has 2",
        ("gpipe:schedule=x.csv",): "leave out one of the two",
        ("gpipe", "--timeline", file): f"--timeline would overwrite {file}, the file of --schedule",
    }.items():
        refused(stepcast.call(*predict, *more), expected)
    file.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    refused(stepcast.call(*predict, "gpipe"), "gpipe needs 3 devices, there are 2")
    file.write_text("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n")
    refused(stepcast.call(*predict, "gpipe"), "--batch 8 does not divide into 3 micro-batches")
    new = tmp_path / "new.csv"
    refused(stepcast.call("predict", "--schedule", new, *JOB), "needs one --strategy", "none is given")
    done = stepcast.call("predict", *JOB, "--batch", "8,16", "--strategy", "gpipe", "--schedule", new)
    refused(done, f"--schedule {new} does not exist, and writing it takes one --batch and one --machine")
    refused(stepcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", tmp_path), "cannot read schedule")
    refused(stepcast.call("predict", *JOB, "--strategy", "gpipe", "--schedule", "/proc/none/x.csv"), "cannot write")
    assert not new.exists()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(SPLIT) - 1), junk=st.sampled_from(["", "\0", ",", "\n", "9", "0F0", "é", "F", "-1", "(", "9" * 5000]))
def test_a_damaged_file_is_followed_or_refused_in_one_line(place, junk, file):
    file.write_text(SPLIT[:place] + junk + SPLIT[place + 1 :])
    try:
        order = opened(file, ["gpipe"], {})
    except StepcastError as refusal:
        lines = str(refusal).splitlines()
    else:
        lines = [order.read.stages]
    assert len(lines) == 1
