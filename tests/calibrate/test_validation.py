"""A validation on this CPU: which error counts when keys are measured in the rounds, and when costs come from another time."""

from statistics import median

import pytest

from calibrate import rounds
from calibrate.cpu import contention
from calibrate.cpu.testbed import CpuTestbed
from calibrate.validation import validate
from executors.cpu.cores import available_cores
from simulator.model.job import Job
from tests.support.jobs import MLP
from tests.support.page_samples import result, skipped, validation
from traces.documents.profile import Profile
from traces.documents.shipped import shipped_validations


def test_drift_corrects_only_costs_from_another_time(monkeypatch):
    for module, name in ((rounds, "ROUNDS"), (contention, "ROUNDS"), (contention, "FEWEST")):
        monkeypatch.setattr(module, name, 2)
    job, profile = Job(MLP, 4), Profile(identity=CpuTestbed().identity)
    interleaved = validate(job, ["forward-fusion"], {}, profile, CpuTestbed(), timelines=False).validation
    assert interleaved.calibration == "interleaved"
    assert [row.strategy for row in interleaved.ran] == ["baseline", "forward-fusion"]
    assert all(row.scored_error == row.error == row.error_drift_corrected for row in interleaved.ran)
    base, fused = interleaved.ran
    assert base.against_pytorch == pytest.approx(interleaved.reference_step_s / base.measured_step_s)
    assert (base.predicted_speedup_interval, base.measured_speedup_interval) == (None, None)
    for value, (low, high) in (
        (fused.predicted_speedup, fused.predicted_speedup_interval),
        (fused.measured_speedup, fused.measured_speedup_interval),
        (fused.against_pytorch, fused.against_pytorch_interval),
        (base.against_pytorch, base.against_pytorch_interval),
    ):
        assert low <= value <= high
    low, high = fused.measured_speedup_interval
    assert min(high / fused.measured_speedup, fused.measured_speedup / low) >= 1 + interleaved.aa_spread - 1e-9
    assert interleaved.reference_threads == len(available_cores())
    assert interleaved.reference_step_s == median(interleaved.reference_runs_s)
    assert interleaved.fastest in interleaved.ran
    assert interleaved.fastest.against_pytorch is not None
    assert profile.costs, "the keys that the rounds measured are in the profile"
    profile.anchor_s = 1.0  # as if the machine were far slower when the profile was measured
    again = validate(job, ["forward-fusion"], {}, profile, CpuTestbed(), calibrate=False, timelines=False).validation
    assert again.calibration == "profile"
    assert 0 < again.anchor_drift < 0.5
    for row in again.ran:
        assert row.scored_error == row.error_drift_corrected == pytest.approx((1 + row.error) * again.anchor_drift - 1)


def test_a_loop_that_cannot_be_predicted_is_a_skipped_row_but_is_timed(monkeypatch):
    """The other rows are validated as ever."""
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    job, profile = Job("rnn_bitstream", 2, 8), Profile(identity=CpuTestbed().identity)
    document = validate(job, [], {}, profile, CpuTestbed(), timelines=False).validation
    assert document.pytorch.status.startswith("skipped: plain PyTorch is not predicted for recurrent layers")
    assert [row.strategy for row in document.ran] == ["baseline"]
    assert document.reference_step_s > 0


@pytest.mark.parametrize(("calibration", "scored"), [("interleaved", 0.1), ("profile", 0.2), (None, 0.2)])
def test_the_error_that_counts(calibration, scored):
    document = validation(result(error=0.1, error_drift_corrected=0.2, calibration=calibration), skipped())
    assert (document.calibration, document.scored_errors, document.median_abs_error) == (calibration, (scored,), scored)
    assert document.worst.scored_error == scored
    assert [row.scored_error for row in document.results if not row.ok] == [None]


def test_the_committed_validations_are_interleaved_so_that_their_raw_error_counts():
    documents = shipped_validations()
    assert {document.calibration for document in documents} == {"interleaved"}
    assert all(row.scored_error == row.error for document in documents for row in document.ran)


def test_only_plans_whose_lanes_wait_for_each_other_are_predicted_round_by_round():
    job, profile = Job(MLP, 4), Profile(identity=CpuTestbed().identity)
    forecasts = validate(job, ["turbodl"], {}, profile, CpuTestbed(), timelines=False, rounds=2).forecasts
    assert forecasts["baseline"].rounds_error == 0
    assert forecasts["turbodl"].rounds_error > 0
