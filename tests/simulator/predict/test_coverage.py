"""The coverage of intervals counts the measured steps that lie in them."""

import pytest

from simulator.predict.coverage import WANTED, by_group, by_strategy, coverage, judged, worst
from tests.support.page_samples import skipped
from tests.support.sample_runs import comparisons, sample_validation
from tools.coverage import covered_by_others
from traces.documents.shipped import shipped_validations


def validation(*measured_s: float, **changes):
    """Steps predicted to take 1 s (0.9 to 1.2) that took as long as given."""
    row = sample_validation([item.result for item in comparisons()]).ran[0]
    predicted = {"predicted_step_s": 1.0, "predicted_interval_s": (0.9, 1.2), "strategy": "turbodl"}
    rows = tuple(row.model_copy(update={**predicted, "measured_step_s": seconds}) for seconds in measured_s)
    sample = sample_validation([item.result for item in comparisons()])
    return sample.model_copy(update={"results": rows, "pytorch": None, "device": {"kind": "cpu"}, **changes})


def test_the_ends_of_an_interval_belong_to_it():
    steps = judged([validation(0.9, 1.2, 0.899, 1.201)])
    assert [step.inside for step in steps] == [True, True, False, False]
    assert coverage(steps) == 0.5


def test_only_steps_with_intervals_on_that_kind_of_device_count():
    ran = validation(1.0)
    without = ran.model_copy(update={"results": (ran.results[0].model_copy(update={"predicted_interval_s": None}), skipped("owt"))})
    gpu = validation(2.0, device={"kind": "gpu"})
    assert [step.ratio for step in judged([ran, without, gpu], "cpu")] == [1.0]
    assert [step.ratio for step in judged([ran, gpu])] == [1.0, 2.0]
    with pytest.raises(ValueError, match="no steps"):
        coverage([])


def test_steps_of_several_processes_are_shown_apart():
    steps = judged([validation(1.0), validation(1.1, 1.5, device={"kind": "cpu", "processes": 2})])
    assert {name: len(own) for name, own in by_strategy(steps).items()} == {"turbodl": 1, "turbodl, in processes": 2}


def test_pipelines_and_processes_are_groups_of_their_own():
    """The baseline of a validation of several processes runs in one of them."""
    pipeline = validation(1.3)
    pipeline = pipeline.model_copy(update={"results": (pipeline.results[0].model_copy(update={"strategy": "gpipe"}),)})
    together = validation(1.1, device={"kind": "cpu", "processes": 2})
    base = together.model_copy(update={"results": (together.results[0].model_copy(update={"strategy": "baseline"}),)})
    groups = by_group(judged([validation(1.0), pipeline, together, base]))
    assert {name: [step.ratio for step in own] for name, own in groups.items()} == {
        "one process, no stages": [1.0, 1.1], "pipelines": [1.3], "several processes": [1.1],
    }  # fmt: skip
    assert list(by_group(judged([together]))) == ["several processes"]


def test_every_gpu_is_a_group_of_its_own():
    steps = judged([validation(1.0), validation(1.1, device={"kind": "gpu", "name": "NVIDIA H100"})])
    assert {name: [step.ratio for step in own] for name, own in by_group(steps).items()} == {
        "one process, no stages": [1.0], "NVIDIA H100": [1.1],
    }  # fmt: skip


def test_the_worst_step_is_the_furthest_either_way():
    assert worst(judged([validation(1.0, 0.5, 1.9)])).ratio == 0.5
    assert worst(judged([validation(1.0, 0.5, 2.1)])).ratio == 2.1


def test_a_model_is_judged_by_the_errors_of_the_others():
    """Model b is off by 10 % in six rows, a threefold: the errors of one model, b, do not reach those of a, and those of a reach b."""
    of_a = validation(*[3.0] * 6, model="a")
    of_b = validation(*[1.1] * 6, model="b")
    errors = [v.model_copy(update={"results": tuple(row.model_copy(update={"error": 1 / row.measured_step_s - 1}) for row in v.results)})
              for v in (of_a, of_b)]  # fmt: skip
    assert covered_by_others(errors, "cpu") == {"one process, no stages": [False] * 6 + [True] * 6}
    assert covered_by_others(errors, "gpu") == {}


def test_the_committed_validations_are_covered_as_often_as_a_90_percent_interval_should_be():
    low, high = WANTED
    assert low <= coverage(judged(shipped_validations(), "cpu")) <= high
