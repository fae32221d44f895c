"""`schedcast calibrate --from-trace`: a trace becomes a profile, and every strategy is predicted with it."""

import pytest

from simulator.model.job import Job
from tests.support.plan_traces import Recorder
from traces.documents.comparison import PYTORCH, PYTORCH_GRAPH
from traces.documents.profile import Profile

JOB = ("--model", "lenet5", "--batch", 4, "--optimizer", "sgd")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    recorder = Recorder(Job("lenet5", 4, optimizer="sgd")).steps(3)
    return recorder.trace.save(tmp_path_factory.mktemp("traces") / "trace.json.gz")


def test_the_outcome_is_told_and_the_profile_is_written(schedcast, trace, tmp_path):
    done = schedcast.call("calibrate", "--from-trace", trace, *JOB, "-o", tmp_path / "v100.json")
    assert (done.status, done.err) == (0, "")
    assert "100.0 % of the recorded kernel time belongs to the job (3 steps)." in done.out
    assert f"costs of Tesla V100-SXM2-16GB in {tmp_path / 'v100.json'}" in done.out
    profile = Profile.load(tmp_path / "v100.json")
    assert (profile.identity.gpu, profile.identity.sms, profile.loop is not None) == ("Tesla V100-SXM2-16GB", 80, True)


def test_document(schedcast, trace, tmp_path):
    done = schedcast.call("calibrate", "--from-trace", trace, *JOB, "-o", tmp_path / "v100.json", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["schema"] == "schedcast.traced/1"
    assert done.document["matched_share"] == 1.0
    assert done.document["missing"] == {}
    assert done.document["predicted_step_s"] == pytest.approx(done.document["step_s"], rel=0.05)


def test_strategies_are_predicted_with_the_profile(schedcast, trace, tmp_path):
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", trace, *JOB, "-o", place)
    done = schedcast.call("predict", *JOB, "--profile", place, "--strategy", "turbodl", "--strategy", "backward-fusion", "--json")
    assert done.status == 0
    assert [p["strategy"] for p in done.document["predictions"]] == [PYTORCH, PYTORCH_GRAPH, "turbodl", "backward-fusion"]
    assert all(prediction["shares"]["guessed"] == 0 for prediction in done.document["predictions"])


def test_a_second_trace_adds_to_the_profile(schedcast, trace, tmp_path):
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", trace, *JOB, "-o", place)
    first = set(Profile.load(place).costs)
    other = Recorder(Job("lenet5", 8, optimizer="sgd")).steps(2).trace.save(tmp_path / "other.json")
    done = schedcast.call("calibrate", "--from-trace", other, "--model", "lenet5", "--batch", 8, "--optimizer", "sgd", "-o", place)
    assert done.status == 0
    assert first < set(Profile.load(place).costs)


@pytest.mark.parametrize(
    ("model", "batch", "arguments", "words"),
    [
        ("lenet5", 4, (), "say where to write it with -o FILE"),
        ("lenet5", 4, ("-o", "p.json", "--strategy", "baseline"), "leave out --strategy"),
        ("lenet5", 8, ("-o", "p.json"), "another batch or image size than --batch 8"),
        ("alexnet_cifar", 4, ("-o", "p.json"), "is not a training step of alexnet_cifar"),
    ],
)
def test_an_unusable_request_is_one_line(schedcast, trace, tmp_path, model, batch, arguments, words):
    job = ("--model", model, "--batch", batch, "--optimizer", "sgd")
    done = schedcast.call("calibrate", "--from-trace", trace, *job, *arguments, cwd=tmp_path)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err
    assert not (tmp_path / "p.json").exists()


def test_a_profile_of_another_machine_is_kept(schedcast, trace, tmp_path):
    other = Recorder(Job("lenet5", 4, optimizer="sgd"))
    other.trace.gpus = [{**other.trace.gpus[0], "name": "Tesla V100-DGXS-32GB"}]
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", other.steps(2).trace.save(tmp_path / "other.json"), *JOB, "-o", place)
    before = place.read_bytes()
    done = schedcast.call("calibrate", "--from-trace", trace, *JOB, "-o", place)
    assert (done.status, place.read_bytes() == before) == (2, True)
    assert "is of another machine" in done.err
