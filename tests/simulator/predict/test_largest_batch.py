"""The largest batch that fits: divisible, just small enough, and found with few plans."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.model.job import Job
from simulator.predict.answers import Answers, answers, prediction
from simulator.predict.forecast import Forecast
from simulator.predict.largest_batch import MOST_PLANS, largest_batch, largest_fitting, would_fit
from simulator.predict.target import preset_target
from traces.errors import Code, Refusal
from ui.present.predictions import fit_words


def asked(job: Job, text: str, gigabytes: float, machine: str = "h200") -> Answers:
    """The answers on a machine with this much memory."""
    return answers(job, [text], preset_target(job, machine, limit_bytes=gigabytes * 1e9))


def forecast_of(job: Job, text: str, gigabytes: float, machine: str = "h200") -> Forecast | Refusal:
    return asked(job, text, gigabytes, machine).forecasts[text]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "accumulate"), [("baseline", 1), ("turbodl", 1), ("baseline", 8)])
def test_the_next_larger_batch_does_not_fit(text, accumulate):
    gigabytes = 0.05 / accumulate
    job = Job("lenet5", 4096, accumulate=accumulate)
    own = asked(job, text, gigabytes)
    assert not own.forecast(text).fits
    largest = largest_batch(job, text, own.forecast(text), own.target)
    assert largest % accumulate == 0
    sizes = (largest, largest + accumulate)
    assert [forecast_of(replace(job, batch=size), text, gigabytes).fits for size in sizes] == [True, False]


def test_replicas_divide_the_batch():
    job = Job("lenet5", 4096)
    own = asked(job, "data-parallel", 0.01, "p100x4")
    assert largest_batch(job, "data-parallel", own.forecast("data-parallel"), own.target) % 4 == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "machine", "replicas"),
    [("data-parallel:fold=on", "p100x4", 4), ("fsdp:fold=on", "p100x4", 4), ("1f1b:stages=2,replicas=16,fold=on", "32xh200", 16)],
)
def test_replicas_for_which_one_stands_divide_the_batch(text, machine, replicas):
    job = Job("lenet5", 4096)
    own = asked(job, text, 0.01, machine)
    assert "folded" in own.forecast(text).plan.semantics
    largest = largest_batch(job, text, own.forecast(text), own.target)
    assert 0 < largest < 4096
    assert largest % replicas == 0


def test_without_room_for_the_parameters_no_batch_fits():
    job = Job("lenet5", 64)
    own = asked(job, "baseline", 1e-6)
    document = own.fitted("baseline")
    assert (document.fits, document.largest_batch, document.batch_sought) == (False, None, True)
    assert fit_words(document)[-1] == "No smaller batch is predicted to fit."
    (need,) = document.memories
    assert (need.allocated_bytes, need.size_bytes) == (own.forecast("baseline").memory_bytes[need.name], 1000)


def test_changes_that_are_named_fit_each_alone():
    job = Job("lenet5", 4096, optimizer="adam")
    own = asked(job, "baseline", 0.12)
    document = own.fitted("baseline")
    changed = {
        "--checkpoint full": {"checkpoint": "full"},
        "--accumulate 4": {"accumulate": 4},
        "--optimizer adam:fused": {"form": "fused"},
    }
    fits = {option: forecast_of(replace(job, **change), "baseline", 0.12).fits for option, change in changed.items()}
    assert document.would_fit == tuple(option for option, fitting in fits.items() if fitting)
    assert "--accumulate 4" in document.would_fit
    assert fit_words(document)[-1].startswith("This batch would fit with ")


LAYERS = "lm:form=llama,layers={},d_model=256,heads=4,ffn={},vocab=500"


@pytest.mark.parametrize(("job", "text", "gigabytes", "named"), [
    (Job(LAYERS.format(8, 16384), 8, 16, optimizer="adamw"), "data-parallel", 1.6, "--strategy fsdp"),
    (Job(LAYERS.format(8, 16384), 8, 16, optimizer="adamw"), "pytorch-ddp", 1.6, "--strategy pytorch-fsdp"),
    (Job(LAYERS.format(2, 512), 64, 128), "1f1b:stages=2,microbatches=2", 0.14, "--strategy 1f1b:stages=2,microbatches=8"),
])  # fmt: skip
def test_on_several_devices_shards_and_a_pipeline_s_own_microbatches_are_named(job, text, gigabytes, named):
    own = asked(job, text, gigabytes, "2xh200")
    assert not own.forecast(text).fits
    assert named in would_fit(job, text, own.target)
    assert forecast_of(job, named.removeprefix("--strategy "), gigabytes, "2xh200").fits


def test_a_large_plan_is_not_tried_with_other_changes(monkeypatch):
    """Each takes as long as the plan took, and the user is told so."""
    monkeypatch.setattr("simulator.predict.largest_batch.MOST_TASKS", 10)
    job = Job("lenet5", 4096)
    own = asked(job, "baseline", 0.05)
    document = own.fitted("baseline")
    assert (document.largest_batch is None, document.would_fit, document.changes_sought) == (False, (), False)
    assert fit_words(document)[-1] == "No other changes were tried, each of which takes as long as this prediction."


def test_where_no_batch_was_sought_none_is_said_to_fit():
    own = asked(Job("lenet5", 64), "baseline", 1e-6)
    document = own.prediction("baseline")
    assert not document.batch_sought
    assert not any("batch" in words for words in fit_words(document))


@pytest.mark.parametrize("gigabytes", [1e-6, 1.0])
def test_nothing_is_faster_than_a_step_that_does_not_fit(gigabytes):
    """Whether the step itself fits or not."""
    job = Job("lenet5", 64)
    too_large, own = asked(job, "turbodl", 1e-6), asked(job, "turbodl", gigabytes)
    document = prediction(own.forecast("turbodl"), too_large.forecast("baseline"), "fp32", too_large.forecast("pytorch"))
    assert (document.gain, document.faster_than_pytorch_probability, document.faster_probability) == (None, None, None)
    assert not document.is_at_limit


def test_a_strategy_s_own_microbatches_divide_the_batch():
    """The smallest batch is one sample for each of 32 microbatches of 4 replicas."""
    job, text = Job("lenet5", 8192), "1f1b:stages=2,replicas=4,microbatches=32,fold=on"
    own = asked(job, text, 0.035, "8xh200")
    assert not own.forecast(text).fits
    assert largest_batch(job, text, own.forecast(text), own.target) % 128 == 0


def test_a_plan_that_fits_is_not_searched_for_a_smaller_batch():
    job = Job("lenet5", 64)
    own = asked(job, "baseline", 1.0)
    assert own.fitted("baseline").largest_batch is None


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
    own = asked(job, text, gigabytes)
    refused = own.refusal(text)
    assert refused.code is Code.MEMORY
    named = re.search(r"needs [\d.]+ [MG]iB for its Jacobians, this machine has .*; the largest batch that fits is (\d+)", refused.words)
    largest = int(named[1])
    assert forecast_of(replace(job, batch=largest), text, gigabytes).fits
    larger = forecast_of(replace(job, batch=largest + 1), text, gigabytes)
    assert isinstance(larger, Refusal) or not larger.fits


def test_other_refusals_name_no_batch():
    refused = Refusal(Code.REQUEST, "level is 9")
    assert Answers(Job("lenet5", 4), preset_target(Job("lenet5", 4), "h100"), {"bppsa": refused}).refusal("bppsa") is refused


@pytest.mark.parametrize(
    ("gigabytes", "batch", "named"),
    [
        (0.1, 64, "--machine 4xh100 --strategy fsdp --checkpoint full"),
        (0.08, 4, "--machine 8xh100 --batch 8 --strategy fsdp --checkpoint full"),
    ],
)
def test_a_language_model_that_nothing_else_helps_is_told_on_how_many_gpus_it_fits(gigabytes, batch, named):
    job = Job(LAYERS.format(4, 1024), batch, 16, optimizer="adamw", form="fused")
    own = asked(job, "baseline", gigabytes, "h100")
    assert not own.forecast("baseline").fits
    assert would_fit(job, "baseline", own.target) == (named,)
    options = dict(pair.split(" ") for pair in named.removeprefix("--").split(" --"))
    larger = replace(job, batch=int(options.get("batch", batch)), checkpoint="full")
    assert forecast_of(larger, "fsdp", gigabytes, options["machine"]).fits
    fewer = options["machine"].replace("4x", "2x").replace("8x", "4x")
    assert not forecast_of(replace(job, checkpoint="full"), "fsdp", gigabytes, fewer).fits
