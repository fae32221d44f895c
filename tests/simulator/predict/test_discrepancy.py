"""The discrepancy of predictions is estimated from the errors of validations."""

import math
import shutil
from pathlib import Path

import pytest

from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.discrepancy import (
    LEAST,
    PIPELINES,
    discrepancy,
    family,
    shipped_discrepancy,
    shipped_speedup_discrepancy,
    speedup_discrepancy,
)
from simulator.predict.forecast import answer
from simulator.predict.intervals import EXACT, Sensitivity, step_interval
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from simulator.strategies.options import option_names
from tests.support.jobs import MLP
from tests.support.sample_runs import comparisons, sample_validation
from traces.documents.shipped import default_folder, shipped_validations


def off_by(error: float, model: str = "a", spread: float = 0.0, rows: int = LEAST, signs: tuple[int, ...] = (1, -1)):
    """A validation in which one prediction after the other is off by `error`, a logarithm, too high and too low in turn (`signs`)."""
    validation = sample_validation([item.result for item in comparisons()])
    results = [validation.ran[0].model_copy(update={"error": math.expm1(signs[n % len(signs)] * error)}) for n in range(rows)]
    seen = {"model": model, "aa_spread": spread, "device": {"kind": "cpu"}, "mode": "eager"}
    return validation.model_copy(update={**seen, "results": tuple(results)})


def test_it_is_the_rms_error_less_the_noise_of_one_step():
    """An A/A spread has the noise of two."""
    assert discrepancy([off_by(0.05, spread=0.03 * math.sqrt(2))], "baseline", "cpu", "eager") == pytest.approx(0.04)
    assert discrepancy([off_by(0.01, spread=0.03)], "baseline", "cpu", "eager") == 0.0


def test_what_the_rows_of_a_model_have_in_common_says_as_little_as_one_model():
    """Ten rows of two models were taken for ten models. Student's t is 2.92 with two, 1.72 with twenty and 1.645 with many."""
    few = [off_by(0.04, model, signs=(sign,)) for model, sign in (("a", 1), ("b", -1))]
    many = [off_by(0.04, str(number), signs=(1 - 2 * (number % 2),)) for number in range(20)]
    assert discrepancy(few, "baseline", "cpu", "eager") == pytest.approx(0.04 * 2.920 / 1.645, rel=1e-3)
    assert discrepancy(many, "baseline", "cpu", "eager") == pytest.approx(0.04 * 1.725 / 1.645, rel=1e-3)


def test_with_few_models_no_interval_is_narrower_than_the_worst_error():
    spread = [off_by(0.01, str(number), rows=20) for number in range(4)]
    worst = off_by(0.2, "0", rows=1)
    assert discrepancy([*spread, worst], "baseline", "cpu", "eager") == pytest.approx(0.2 / Z_90)
    assert discrepancy([*spread, off_by(0.01, "4"), worst], "baseline", "cpu", "eager") < 0.05, "of five models, one may be far off"


def test_the_measurements_of_a_gpu_lie_in_the_intervals_that_they_teach():
    """TurboDL's step of ResNet-50 in a graph was predicted 26.7 ms (25.7 to 27.7), and had been measured at 28.46."""
    for validation in (v for v in shipped_validations() if v.device.get("kind") == "gpu"):
        for row in validation.ran:
            alone = Sensitivity(row.predicted_step_s, [{EXACT: row.predicted_step_s}], {})
            low, high = step_interval(alone, shipped_discrepancy(row.strategy, "gpu", validation.mode))
            assert low * (1 - 1e-9) <= row.measured_step_s <= high * (1 + 1e-9)


def test_another_kind_of_device_another_mode_or_too_few_results_say_nothing():
    validations = [off_by(0.05)]
    assert discrepancy(validations, "baseline", "gpu", "eager") == discrepancy(validations, "baseline", "cpu", "graph") == 0.0
    assert discrepancy([off_by(0.05, rows=LEAST - 1)], "baseline", "cpu", "eager") == 0.0


def test_a_model_can_be_scored_by_the_others():
    validations = [off_by(0.5, "a"), off_by(0.02, "b")]
    assert discrepancy(validations, "baseline", "cpu", "eager", but="a") == pytest.approx(0.02)


def test_steps_of_several_processes_are_a_group_of_their_own():
    together = off_by(0.4)
    rows = tuple(row.model_copy(update={"strategy": "data-parallel"}) for row in together.results)
    together = together.model_copy(update={"results": rows, "device": {"kind": "cpu", "processes": 2}})
    validations = [together, off_by(0.02)]
    assert discrepancy(validations, "deepa", "cpu", "eager", processes=True) == pytest.approx(0.4)
    for strategy, processes in (("deepa", False), ("baseline", True)):
        assert discrepancy(validations, strategy, "cpu", "eager", processes=processes) == pytest.approx(0.02)


def test_a_damaged_validation_is_named_and_left_out(tmp_path: Path, caplog):
    folder = tmp_path / "a-machine" / "validations"
    off_by(0.05).save(folder / "good.json")
    (folder / "bad.json").write_text("{")
    assert [v.model for v in shipped_validations(tmp_path)] == ["a"]
    assert "bad.json" in caplog.text


def gained(strategy: str, factor: float, rows: int):
    """A validation whose speed-ups of a strategy are predicted too high and too low in turn by `factor`."""
    row = off_by(0.0).ran[0].model_copy(update={"strategy": strategy, "measured_speedup": 1.0})
    results = [row.model_copy(update={"predicted_speedup": factor ** (1 - 2 * (n % 2))}) for n in range(rows)]
    return off_by(0.0).model_copy(update={"results": tuple(results)})


def test_a_speed_up_has_the_error_of_its_strategys_family():
    validations = [gained("turbodl", math.exp(0.12), LEAST), gained("forward-fusion", math.exp(0.04), 4), gained("backward-fusion", 1.0, 4)]
    assert speedup_discrepancy(validations, "turbodl:async=off", "cpu", "eager") == pytest.approx(0.12)
    assert speedup_discrepancy(validations, "backward-fusion", "cpu", "eager") == pytest.approx(0.04 / math.sqrt(2))
    everything = math.sqrt((6 * 0.12**2 + 4 * 0.04**2) / 14)
    assert speedup_discrepancy(validations, "new", "cpu", "eager") == pytest.approx(everything)
    assert speedup_discrepancy(validations, "new", "gpu", "eager") == 0.0


def test_pipelines_have_an_error_of_their_own():
    """Their devices wait for each other, as those of no other strategy do."""
    steps, gains = off_by(0.2).results, gained("gpipe", math.exp(0.3), LEAST).results
    pipelines = off_by(0.2).model_copy(
        update={"results": tuple(gain.model_copy(update={"error": step.error}) for step, gain in zip(steps, gains, strict=True))}
    )
    validations = [off_by(0.05), pipelines]
    assert discrepancy(validations, "1f1b", "cpu", "eager") == pytest.approx(0.2)
    assert discrepancy(validations, "turbodl", "cpu", "eager") == pytest.approx(0.05)
    assert discrepancy(validations[:1], "1f1b", "cpu", "eager") == pytest.approx(0.05)
    assert speedup_discrepancy([*validations, gained("turbodl", 1.1, LEAST)], "new", "cpu", "eager") == pytest.approx(math.log(1.1))
    assert speedup_discrepancy(validations, "1f1b", "cpu", "eager") == pytest.approx(0.3)


def test_every_strategy_with_stages_is_a_pipeline():
    staged = [name for name in strategies.names() if "stages" in option_names(strategies.get(name).options_type)]
    assert staged
    assert {family(name) for name in staged} == {PIPELINES}


def test_gpus_without_validations_have_the_discrepancy_of_cpus(tmp_path, monkeypatch):
    """It was 0, as if a GPU that nobody has validated were predicted without error."""
    shutil.copytree(default_folder() / "cpu-amd-epyc-2", tmp_path / "cpu")
    monkeypatch.setenv("SCHEDCAST_SHIPPED", str(tmp_path))
    assert shipped_discrepancy("baseline", "gpu", "graph") == shipped_discrepancy("baseline", "cpu", "eager") > 0.03
    assert shipped_speedup_discrepancy("turbodl", "gpu", "graph") == shipped_speedup_discrepancy("turbodl", "cpu", "eager") > 0.03
    assert shipped_speedup_discrepancy("backward-fusion", "cpu", "eager") < shipped_speedup_discrepancy("turbodl", "cpu", "eager")


def test_gpus_have_the_discrepancy_of_the_gpus_that_were_validated_but_one_gpu_says_nothing_of_several():
    for mode in ("eager", "graph"):
        assert 0 < shipped_discrepancy("baseline", "gpu", mode) < shipped_discrepancy("baseline", "cpu", "eager")
        assert shipped_discrepancy("fsdp", "gpu", mode) == shipped_discrepancy("fsdp", "cpu", "eager")
        assert shipped_speedup_discrepancy("fsdp", "gpu", mode) == shipped_speedup_discrepancy("fsdp", "cpu", "eager")
        assert shipped_discrepancy("pytorch-graph", "gpu", mode) == shipped_discrepancy("baseline", "gpu", mode), "it is of one device"


def test_a_device_that_stands_for_several_has_the_interval_of_several():
    machine = load_machine("2xh100")
    folded, whole = (answer(Job(MLP, 4), f"data-parallel:fold={fold}", Target.of(CostModel(machine))).interval_s for fold in ("on", "off"))
    assert folded == pytest.approx(whole)
