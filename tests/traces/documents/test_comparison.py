"""The documents of predict and validate: round trip, damage, and the figures derived from them."""

import json
import math
from statistics import NormalDist

import pytest
from pydantic import ValidationError

from tests.support.page_samples import PREDICTION, RESULT, VALIDATION, prediction, result, skipped, validation
from traces.documents.comparison import Comparison, PhaseSeconds, Prediction, Validation
from traces.documents.timeline import Span, Timeline
from traces.documents.verdict import Gain
from traces.errors import UnusableFileError


def test_prediction_round_trip_has_exactly_the_documented_fields(tmp_path):
    path = prediction().save(tmp_path / "prediction.json")
    assert Prediction.load(path) == prediction()
    document = json.loads(path.read_text())
    assert set(document) == PREDICTION
    assert document["schema"] == "schedcast.prediction/1"
    assert document["devices"] == [{"name": "gpu0", "busy_share": 0.9, "peak_bytes": 10**9}]
    assert document["critical_path"][0]["cause"] == "start"


def test_documents_from_before_memory_was_kept_by_device_load(tmp_path):
    document = validation(result()).document()
    for name in ("predicted_peak_bytes_by_device", "measured_peak_bytes_by_device"):
        del document["results"][0][name]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert Validation.load(tmp_path / "old.json") == validation(result())
    old = prediction().document()
    del old["at_peak"]
    (tmp_path / "p.json").write_text(json.dumps(old))
    assert Prediction.load(tmp_path / "p.json") == prediction()


def test_validation_round_trip_has_exactly_the_documented_fields(tmp_path):
    original = validation(result(), skipped())
    path = original.save(tmp_path / "validation.json.gz")
    assert Validation.load(path) == original
    document = original.document()
    assert set(document) == VALIDATION
    assert set(document["results"][1]) == RESULT
    assert document["results"][1]["measured_step_s"] is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_are_finite(bad):
    with pytest.raises(ValidationError):
        result(max_grad_error=bad)
    with pytest.raises(ValidationError):
        prediction(critical_path=({"task": "a", "start_s": 0.0, "end_s": bad, "cause": "lane"},))


def test_a_status_is_ok_or_says_why():
    with pytest.raises(ValidationError):
        result(status="skipped")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(schema="schedcast.prediction/1"), "is not a validation"),
        (lambda d: d.update(schema="schedcast.validation/2"), "newer than"),
        (lambda d: d.pop("aa_spread"), "damaged at aa_spread"),
        (lambda d: d["results"][0].update(error="much"), "damaged at results > 0 > error"),
        (lambda d: d.update(results=None), "damaged at results"),
        (lambda d: d["results"][0].update(measured_step_s=None), "damaged at results > 0: .*a strategy that ran"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, damage, message):
    document = validation(result()).document()
    damage(document)
    path = tmp_path / "v.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UnusableFileError, match=message):
        Validation.load(path)


def test_derived_figures():
    rows = (
        result("baseline", 0.05, 0.05, drift=1.0), result("turbodl", 0.04, 0.05, drift=1.0),
        result("gpipe", 0.06, 0.05, drift=1.0), skipped(),
    )  # fmt: skip
    summary = validation(*rows)
    assert summary.ran == rows[:3]
    assert summary.median_abs_error == pytest.approx(0.2)
    assert validation(*rows, result("deepa", 0.06, 0.04, drift=1.0)).worst.strategy == "deepa"


def test_nothing_ran():
    summary = validation(skipped())
    assert summary.median_abs_error is None
    assert summary.worst is None
    assert summary.signs == (0, 0)


@pytest.mark.parametrize(
    ("predicted", "measured", "right"),
    [(1.10, 1.05, True), (0.99, 1.05, False), (0.90, 0.94, True), (1.00, 1.05, False), (0.90, 1.039, None), (1.2, 0.961, None)],
)
def test_sign_of_the_speedup(predicted, measured, right):
    row = result(predicted_speedup=predicted, measured_speedup=measured)
    assert row.sign_right(aa_spread=0.01) is right
    assert validation(row).signs == (int(right is True), int(right is not None))


def test_seconds_within_the_steady_period():
    def timeline(kind, scale):
        spans = (
            Span("f1", "d", "0", 0.0, 2.0 * scale, "forward", "a"),
            Span("b1", "d", "0", 2.0 * scale, 5.0 * scale, "backward", "a"),
            Span("f2", "d", "0", 5.0 * scale, 9.0 * scale, "forward", "b"),
        )
        return Timeline(kind, spans, 5.0 * scale, (1.0 * scale, 6.0 * scale))

    both = Comparison(timeline("predicted", 1.0), timeline("measured", 2.0), result())
    assert both.strategy == "turbodl"
    assert both.phases() == {"forward": PhaseSeconds(2.0, 4.0), "backward": PhaseSeconds(3.0, 6.0)}


def test_gains_of_a_strategy():
    base = result("baseline", measured=0.06, against_pytorch=0.8, against_pytorch_interval=(0.78, 0.82), measured_speedup_interval=None)
    best = result("turbodl", against_pytorch=1.33, against_pytorch_interval=(1.29, 1.37), measured_speedup_interval=(1.6, 1.7))
    document = validation(base, best, skipped())
    assert document.gain_over_pytorch(best) == Gain(1.33, (1.29, 1.37), "faster")
    assert document.gain_over_pytorch(best) == document.headline_gain
    assert (document.gain_over_baseline(best).verdict, document.gain_over_pytorch(base).verdict) == ("faster", "slower")
    assert (document.gain_over_baseline(base), document.gain_over_pytorch(skipped())) == (None, None)


def test_a_busy_machine_gives_no_verdict():
    best = result("turbodl", against_pytorch=0.2, against_pytorch_interval=(0.19, 0.21), measured_speedup_interval=(0.2, 0.3))
    quiet, busy = (validation(best, busy_share=share) for share in (0.1, 0.11))
    assert (quiet.busy, busy.busy) == (False, True)
    assert [document.headline_gain.verdict for document in (quiet, busy)] == ["slower", "no verdict"]
    assert busy.gain_over_baseline(best).verdict == "no verdict"
    assert busy.headline_gain.interval == (0.19, 0.21)


def test_intervals_of_single_rows_are_widened_for_the_choice_of_the_fastest():
    """In documents from before intervals held for all rows at once."""
    rows = [result(f"s{i}", against_pytorch=1.1, against_pytorch_interval=(1.01, 1.2)) for i in range(5)]
    gains = [validation(*rows).model_copy(update={"comparisons": count}).gain_over_pytorch(rows[0]) for count in (5, 1)]
    assert [gain.verdict for gain in gains] == ["faster", "cannot tell"]
    wider = NormalDist().inv_cdf(0.99) / NormalDist().inv_cdf(0.95)
    assert gains[1].interval == pytest.approx((1.1 * (1.01 / 1.1) ** wider, 1.1 * (1.2 / 1.1) ** wider))


def test_a_prediction_has_a_verdict_if_half_of_its_time_was_measured():
    known = {"against_pytorch": 1.2, "against_pytorch_interval": (1.1, 1.3), "speedup_interval": (0.9, 1.3)}
    words = {share: prediction(**known, measured_share=share).gain.verdict for share in (None, 0.5, 0.49)}
    assert words == {None: "faster", 0.5: "faster", 0.49: "no verdict"}
    assert prediction(**known).gain_over_baseline.verdict == "cannot tell"
    assert prediction(**known, strategy="pytorch").gain is None
    assert prediction().gain == prediction().gain_over_baseline
