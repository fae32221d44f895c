"""Predictions that do not fit, in sentences."""

from simulator.engine.memory.contents import shortfall_words
from tests.support.page_samples import prediction
from traces import units
from traces.documents.comparison import MemoryNeed
from traces.documents.timeline import AtPeak, Holder
from ui.present import predictions

PEAK = AtPeak(
    device="gpu0", bytes=22870672384, time_s=0.01, task="b", layer="conv1", phase="backward", by_kind={"activation": 21 * 2**30},
    largest=(Holder(storage="y", kind="activation", layer="bn1", bytes=3 * 2**30),),
)  # fmt: skip


def need(name: str, needed_gib: float, size_gib: float) -> MemoryNeed:
    return MemoryNeed(name=name, needed_bytes=round(needed_gib * 2**30), size_bytes=round(size_gib * 2**30))


def test_by_how_much_what_holds_it_and_what_fits():
    document = prediction(fits=False, memories=(need("hbm", 21.3, 16),), at_peak=(PEAK,), largest_batch=176)
    assert predictions.fit_words(document) == [
        "turbodl does not fit: needs 21.3 GiB, 16 GiB there, 5.30 GiB too much.",
        "Memory: peak of 21.3 GiB on gpu0 at 10.0 ms in conv1 backward: activations 21 GiB (largest: bn1 3 GiB).",
        "The largest batch that fits is 176.",
    ]


def test_no_batch_may_fit():
    assert predictions.fit_words(prediction(fits=False))[-1] == "No batch is predicted to fit."


def test_a_prediction_that_fits_needs_no_words():
    assert predictions.fit_words(prediction()) == []


def test_the_memory_that_is_exceeded_most_is_named_if_there_are_several():
    needs = [need("a", 10, 8), need("b", 12, 8), need("c", 1, 8)]
    assert shortfall_words(needs) == "needs 12 GiB in b, 8 GiB there, 4 GiB too much; 1 other memory is too small as well"


def test_limits_in_gigabytes_are_shown_as_they_were_given():
    assert units.capacity(8 * 10**9) == "7.45 GiB (8 GB)"
    assert units.capacity(16 * 2**30) == "16 GiB"
