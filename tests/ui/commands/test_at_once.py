"""A prediction for this machine says how little of it was measured, gives no verdict then, and measures what is missing."""

import json

import pytest

from calibrate.identity import cpu_identity
from calibrate.planned import calibration_seconds
from calibrate.profiles import target_for
from simulator.model.job import Job
from simulator.predict.answers import answers, prediction
from tests.support.own_profiles import profile_with
from tests.support.refusals import refused
from traces.documents.comparison import Prediction
from traces.documents.profile import KeyCost, Profile, Stats
from traces.documents.profile_files import default_path
from traces.errors import Refusal
from ui.commands import at_once
from ui.request import JobRequest

JOB, REQUEST = Job("lenet5", 2), JobRequest("lenet5", 2, precision="fp32")
ASKED = ("predict", "--model", "lenet5", "--batch", 2, "--strategy", "baseline")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Makes this machine's profile, with that share of the job's keys; all take 1 ms. Returns its path."""

    def make(share: float):
        monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
        profile_with(share, JOB).save(default_path(cpu_identity().name))
        return default_path(cpu_identity().name)

    return make


def test_little_measured_has_no_verdict_and_the_first_line_says_so(schedcast, measured, tmp_path):
    measured(0.3)
    done = schedcast.call(*ASKED, "--no-calibrate", SCHEDCAST_DATA=str(tmp_path))
    first = done.out.splitlines()[0]
    assert first.startswith("No verdict: ")
    assert first.endswith(" of the predicted time was measured on this machine; the rest is estimated from other ops.")
    assert not any(word in done.out for word in ("faster", "slower", "cannot tell"))
    document = schedcast.call(*ASKED, "--no-calibrate", "--json", SCHEDCAST_DATA=str(tmp_path)).document
    answer = Prediction.model_validate(document)
    assert (answer.measured_share < 0.5, answer.gain_over_pytorch.verdict, answer.faster_than_pytorch_probability) == (
        True, "no verdict", None,
    )  # fmt: skip
    assert answer.against_pytorch_interval[0] < answer.against_pytorch < answer.against_pytorch_interval[1]
    several = schedcast.call(*ASKED, "--strategy", "turbodl", "--no-calibrate", SCHEDCAST_DATA=str(tmp_path))
    assert several.out.startswith("No verdict: ")


def test_enough_measured_has_verdicts_and_measures_nothing(schedcast, measured, tmp_path):
    place = measured(1.0)
    before = place.read_bytes()
    done = schedcast.call(*ASKED, SCHEDCAST_DATA=str(tmp_path))
    assert (done.status, done.err) == (0, "")
    assert "No verdict" not in done.out
    assert place.read_bytes() == before


def test_without_a_profile_there_is_a_verdict_and_nothing_is_measured(schedcast, tmp_path):
    done = schedcast.call(*ASKED, "--json", SCHEDCAST_DATA=str(tmp_path))
    answer = Prediction.model_validate(done.document)
    assert answer.measured_share is None
    assert answer.gain_over_pytorch.verdict != "no verdict"
    assert "measuring" not in done.err
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.thorough
def test_what_is_missing_is_measured_at_once(schedcast, measured, tmp_path):
    """It is added to this machine's profile, and the next prediction measures nothing."""
    place = measured(0.3)
    done = schedcast.call(*ASKED, "--json", SCHEDCAST_DATA=str(tmp_path))
    assert done.status == 0
    assert done.err.startswith("schedcast: measuring this job, about ")
    assert "(--no-calibrate forbids it)" in done.err
    assert done.document["measured_share"] == 1.0
    assert len(Profile.load(place).costs) > 50
    again = schedcast.call(*ASKED, "--json", SCHEDCAST_DATA=str(tmp_path))
    assert (again.err, again.document["step_s"]) == ("", done.document["step_s"])


def test_only_this_machine_is_measured(schedcast):
    refused(schedcast.call(*ASKED, "--machine", "h100", "--calibrate"), "--calibrate measures this machine's CPU, and h100 is another")
    refused(schedcast.call(*ASKED, "--scale", "memory=2", "--calibrate"), "--scale memory=2 makes another of it")


class Counting:
    """A testbed that measures one key at each second of a clock."""

    identity = cpu_identity()

    def __init__(self):
        self.now, self.profile_keys = 0.0, 0

    def measure_machine(self, profile):
        """It is known."""

    def close(self):
        """It has no process."""

    def machine(self, profile):
        return target_for(JOB, None, None).machine

    def calibrate(self, plans, machine, profile, save_to, progress):
        keys = [key for plan in plans for key in plan.keys(machine)]
        for number, key in enumerate(keys):
            progress(number, len(keys), key)
            profile.costs[key] = KeyCost(Stats.from_samples([1e-3]), None, "matmul", 1.0, 1.0, model=profile.measured_model)
            profile.save(save_to)
            self.now += 1.0
        return len(keys)


@pytest.fixture
def testbed(monkeypatch):
    bed = Counting()
    monkeypatch.setattr("calibrate.testbeds.cpu_testbed", lambda *placement: bed)
    monkeypatch.setattr(at_once.time, "monotonic", lambda: bed.now)
    return bed


def asked(wanted: bool | None) -> bool:
    target = target_for(JOB, None, None)
    return at_once.measured_at_once([answers(JOB, ["baseline"], target)], REQUEST, wanted, quiet=True)


def test_measuring_stops_in_time_and_keeps_what_it_has(testbed, measured, capsys):
    place = measured(0.1)
    before = len(Profile.load(place).costs)
    assert asked(None)
    kept = Profile.load(place)
    assert before < len(kept.costs) <= before + at_once.MOST_S + 1
    assert {cost.model for cost in kept.costs.values()} == {"lenet5"}
    assert "stopped measuring after" in capsys.readouterr().err


def test_what_would_take_long_is_measured_on_request_only(testbed, measured, monkeypatch, capsys):
    place = measured(0.1)
    monkeypatch.setattr(at_once, "AT_ONCE_S", 1e-3)
    assert not asked(None)
    assert "--calibrate measures it in about" in capsys.readouterr().err
    assert asked(True)
    assert len(Profile.load(place).costs) > at_once.MOST_S
    assert not asked(False)


def test_the_estimate_is_of_missing_keys(measured):
    measured(1.0)
    target = target_for(JOB, None, None)
    known = answers(JOB, ["baseline"], target).forecasts
    assert calibration_seconds(known.values(), 9) == 0
    measured(0.5)
    target = target_for(JOB, None, None)
    missing = target.costs.missing(known["baseline"].plan)
    half = answers(JOB, ["baseline"], target).forecasts
    assert calibration_seconds([half["baseline"]], 9) >= 9 * len(missing) * 1e-3


def test_a_speed_up_over_a_step_that_was_not_measured_has_no_verdict(measured):
    """Whether the strategy itself was measured does not matter then."""
    place = measured(1.0)
    profile = Profile.load(place)
    for key in [key for key in profile.costs if key.endswith("-threads")]:
        profile.costs.pop(key)
    place.write_text("{}")
    profile.save(place)
    target = target_for(JOB, None, None)
    known = answers(JOB, ["baseline"], target).forecasts
    assert not any(isinstance(each, Refusal) for each in known.values())
    answer = prediction(known["baseline"], known["baseline"], "fp32", known["pytorch"])
    assert (answer.shares.measured, answer.measured_share, answer.gain_over_pytorch.verdict) == (1.0, 0.0, "no verdict")
    assert json.loads(json.dumps(answer.document()))["measured_share"] == 0.0
