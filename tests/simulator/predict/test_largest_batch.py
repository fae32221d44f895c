"""The largest batch that fits: divisible, just small enough, and found with few plans."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.model.job import Job
from simulator.predict.forecast import Forecast, forecast_many, prediction
from simulator.predict.largest_batch import MOST_PLANS, largest_batch, largest_fitting, with_fitting, with_fitting_words, would_fit
from simulator.predict.preset import preset_costs
from traces.errors import Code, Refusal
from ui.present.predictions import fit_words


def forecast_of(job: Job, text: str, gigabytes: float, machine: str = "h100") -> tuple[Forecast, object]:
    """The forecast on a machine with this much memory, and the cost model."""
    target, model = preset_costs(job, machine, limit_bytes=gigabytes * 1e9)
    return dict(forecast_many(job, [text], {}, target, model))[text], model


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "accumulate"), [("baseline", 1), ("turbodl", 1), ("baseline", 8)])
def test_the_next_larger_batch_does_not_fit(text, accumulate):
    gigabytes = 0.05 / accumulate
    job = Job("lenet5", 4096, accumulate=accumulate)
    too_large, model = forecast_of(job, text, gigabytes)
    assert not too_large.fits
    largest = largest_batch(job, text, {}, too_large, model)
    assert largest % accumulate == 0
    sizes = (largest, largest + accumulate)
    assert [forecast_of(replace(job, batch=size), text, gigabytes)[0].fits for size in sizes] == [True, False]


def test_replicas_divide_the_batch():
    job = Job("lenet5", 4096)
    too_large, model = forecast_of(job, "data-parallel", 0.01, "p100x4")
    assert largest_batch(job, "data-parallel", {}, too_large, model) % 4 == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "machine", "replicas"),
    [("data-parallel:fold=on", "p100x4", 4), ("fsdp:fold=on", "p100x4", 4), ("1f1b:stages=2,replicas=16,fold=on", "32xh100", 16)],
)
def test_replicas_for_which_one_stands_divide_the_batch(text, machine, replicas):
    job = Job("lenet5", 4096)
    too_large, model = forecast_of(job, text, 0.01, machine)
    assert "folded" in too_large.plan.semantics
    largest = largest_batch(job, text, {}, too_large, model)
    assert 0 < largest < 4096
    assert largest % replicas == 0


def test_without_room_for_the_parameters_no_batch_fits():
    job = Job("lenet5", 64)
    too_large, model = forecast_of(job, "baseline", 1e-6)
    document = with_fitting(prediction(too_large, None, "fp32"), job, "baseline", {}, too_large, model)
    assert (document.fits, document.largest_batch, document.batch_sought) == (False, None, True)
    assert fit_words(document)[-1] == "No smaller batch is predicted to fit."
    (need,) = document.memories
    assert (need.allocated_bytes, need.size_bytes) == (too_large.memory_bytes[need.name], 1000)


def test_changes_that_are_named_fit_each_alone():
    job = Job("lenet5", 4096, optimizer="adam")
    too_large, model = forecast_of(job, "baseline", 0.12)
    document = with_fitting(prediction(too_large, None, "fp32"), job, "baseline", {}, too_large, model)
    changed = {
        "--checkpoint full": {"checkpoint": "full"},
        "--accumulate 4": {"accumulate": 4},
        "--optimizer adam:fused": {"form": "fused"},
    }
    fits = {option: forecast_of(replace(job, **change), "baseline", 0.12)[0].fits for option, change in changed.items()}
    assert document.would_fit == tuple(option for option, fitting in fits.items() if fitting)
    assert "--accumulate 4" in document.would_fit
    assert fit_words(document)[-1].startswith("This batch would fit with ")


LAYERS = "lm:form=llama,layers={},d_model=256,heads=4,ffn={},vocab=500"


@pytest.mark.parametrize(("job", "text", "gigabytes", "named"), [
    (Job(LAYERS.format(8, 16384), 8, 16, optimizer="adamw"), "data-parallel", 1.6, "--strategy fsdp"),
    (Job(LAYERS.format(8, 16384), 8, 16, optimizer="adamw"), "pytorch-ddp", 1.6, "--strategy pytorch-fsdp"),
    (Job(LAYERS.format(4, 512), 64, 128), "1f1b:stages=2,microbatches=2", 0.25, "--strategy 1f1b:stages=2,microbatches=8"),
])  # fmt: skip
def test_on_several_devices_shards_and_a_pipeline_s_own_microbatches_are_named(job, text, gigabytes, named):
    too_large, model = forecast_of(job, text, gigabytes, "2xh100")
    assert not too_large.fits
    assert named in would_fit(job, text, {}, model)
    assert forecast_of(job, named.removeprefix("--strategy "), gigabytes, "2xh100")[0].fits


def test_a_large_plan_is_not_tried_with_other_changes(monkeypatch):
    """Each takes as long as the plan took, and the user is told so."""
    monkeypatch.setattr("simulator.predict.largest_batch.MOST_TASKS", 10)
    job = Job("lenet5", 4096)
    too_large, model = forecast_of(job, "baseline", 0.05)
    document = with_fitting(prediction(too_large, None, "fp32"), job, "baseline", {}, too_large, model)
    assert (document.largest_batch is None, document.would_fit, document.changes_sought) == (False, (), False)
    assert fit_words(document)[-1] == "No other changes were tried, each of which takes as long as this prediction."


def test_where_no_batch_was_sought_none_is_said_to_fit():
    too_large, _ = forecast_of(Job("lenet5", 64), "baseline", 1e-6)
    document = prediction(too_large, None, "fp32")
    assert not document.batch_sought
    assert not any("batch" in words for words in fit_words(document))


def test_a_strategy_s_own_microbatches_divide_the_batch():
    """The smallest batch is one sample for each of 32 microbatches of 4 replicas."""
    job, text = Job("lenet5", 8192), "1f1b:stages=2,replicas=4,microbatches=32,fold=on"
    too_large, model = forecast_of(job, text, 0.035, "8xh100")
    assert not too_large.fits
    assert largest_batch(job, text, {}, too_large, model) % 128 == 0


def test_a_plan_that_fits_is_not_searched_for_a_smaller_batch():
    job = Job("lenet5", 64)
    fitting, model = forecast_of(job, "baseline", 1.0)
    assert with_fitting(prediction(fitting, None, "fp32"), job, "baseline", {}, fitting, model).largest_batch is None


@given(
    st.lists(st.tuples(st.integers(-(10**9), 0), st.integers(1, 10**6)), min_size=1, max_size=2),
    st.integers(1, 16),
    st.integers(2, 10**6),
)
@example([(-9, 1), (-134443, 13446)], 1, 39)
def test_interpolation_needs_few_plans(lines, unit, batch):
    """Memory is the higher of at most two moments, each of which grows linearly with the batch."""
    sizes: list[int] = []

    def excess(size: int) -> int:
        sizes.append(size)
        return max(start + slope * size for start, slope in lines)

    largest = (
        max((size for size in range(unit, batch, unit) if max(s + g * size for s, g in lines) <= 0), default=None) if batch < 10**4 else 0
    )
    at_batch = max(start + slope * batch for start, slope in lines)
    if at_batch <= 0:
        return
    result = largest_fitting(unit, batch, at_batch, excess)
    assert len(sizes) <= MOST_PLANS
    assert all(size % unit == 0 for size in sizes)
    if batch < 10**4:
        assert result == largest
    assert result is None or (result < batch and max(start + slope * result for start, slope in lines) <= 0)


def test_batches_that_cannot_be_planned_are_passed_over():
    assert largest_fitting(1, 100, 50, lambda size: None if size == 1 else size - 50) == 50, "batch-norm needs two samples"
    assert largest_fitting(1, 100, 50, lambda size: None) is None
    assert largest_fitting(1, 100, 50, lambda size: size - 50 if size < 20 else None) == 1, "the rest is unknown"


@pytest.mark.parametrize(("model", "size", "batch", "text", "gigabytes"), [
    ("lenet5", None, 4096, "bppsa:jacobian=dense,level=0", 1.0), ("rnn_bitstream", 200, 512, "bppsa:level=2", 0.02),
])  # fmt: skip
def test_a_scan_whose_jacobians_are_too_large_names_the_largest_batch_that_fits(model, size, batch, text, gigabytes):
    job = Job(model, batch, image_size=size)
    refused, costs = forecast_of(job, text, gigabytes)
    assert refused.code is Code.MEMORY
    told = with_fitting_words(refused, job, text, {}, costs).words
    named = re.search(r"needs [\d.]+ [MG]iB for its Jacobians, this machine has .*; the largest batch that fits is (\d+)", told)
    largest = int(named[1])
    assert forecast_of(replace(job, batch=largest), text, gigabytes)[0].fits
    larger = forecast_of(replace(job, batch=largest + 1), text, gigabytes)[0]
    assert isinstance(larger, Refusal) or not larger.fits


def test_other_refusals_name_no_batch():
    refused = Refusal(Code.REQUEST, "level is 9")
    assert with_fitting_words(refused, Job("lenet5", 4), "bppsa", {}, None) is refused
