"""The discrepancy of predictions is estimated from the errors of validations."""

import math
from pathlib import Path

import pytest

from simulator.predict.discrepancy import LEAST, discrepancy
from tests.support.sample_runs import comparisons, sample_validation
from traces.shipped import shipped_validations


def off_by(error: float, model: str = "a", spread: float = 0.0, rows: int = LEAST):
    """A validation in which every prediction is too high by `error`."""
    validation = sample_validation([item.result for item in comparisons()])
    row = validation.ran[0].model_copy(update={"error": error})
    seen = {"model": model, "aa_spread": spread, "device": {"kind": "cpu"}, "mode": "eager"}
    return validation.model_copy(update={**seen, "results": (row,) * rows})


def test_it_is_the_rms_error_less_the_noise():
    assert discrepancy([off_by(math.expm1(0.05), spread=0.03)], "cpu", "eager") == pytest.approx(0.04)
    assert discrepancy([off_by(0.01, spread=0.03)], "cpu", "eager") == 0.0


def test_another_kind_of_device_another_mode_or_too_few_results_say_nothing():
    validations = [off_by(0.05)]
    assert discrepancy(validations, "gpu", "eager") == discrepancy(validations, "cpu", "graph") == 0.0
    assert discrepancy([off_by(0.05, rows=LEAST - 1)], "cpu", "eager") == 0.0


def test_a_model_can_be_scored_by_the_others():
    validations = [off_by(0.5, "a"), off_by(math.expm1(0.02), "b")]
    assert discrepancy(validations, "cpu", "eager", but="a") == pytest.approx(0.02)


def test_a_damaged_validation_is_named_and_left_out(tmp_path: Path, caplog):
    folder = tmp_path / "a-machine" / "validations"
    off_by(0.05).save(folder / "good.json")
    (folder / "bad.json").write_text("{")
    assert [v.model for v in shipped_validations(tmp_path)] == ["a"]
    assert "bad.json" in caplog.text
