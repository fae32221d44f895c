"""A search in words and rows."""

import pytest
from rich.console import Console

from simulator.engine.memory.contents import shortfall_words
from tests.support import fake_jobs
from tests.support.golden import check_words
from tests.support.page_samples import prediction
from tests.support.search_samples import of_a_language_model, ranked, search_result, verification
from traces import units
from traces.documents.comparison import Change, MemoryNeed
from traces.documents.measured_step import MeasuredStep
from traces.documents.search_result import PlainStep
from traces.documents.whole_training import WholeTraining
from ui.present import predictions, searches
from ui.present.predictions import gain_words, verdict_line
from ui.present.searches import BETWEEN, FASTEST, SMALLEST
from ui.present.terminal import show
from ui.request import JobRequest


def test_equal_plans_share_a_row_and_misfits_have_no_rank():
    rows = searches.cells(search_result())
    assert [(row[""], row["plan"]) for row in rows] == [
        ("1", "turbodl:fuse=backward"), ("2", "turbodl (and 1 equal one)"), ("3", "backward-fusion"), ("4", "baseline"), ("", "gpipe"),
    ]  # fmt: skip
    assert rows[1]["step over the best"] == "1.01x (0.99 to 1.01)"
    assert rows[-1]["peak allocated"] == "40 GiB, too much"
    verified = searches.cells(search_result(verification=verification(("turbodl", 1, 1, 1.2))))
    assert [row["measured ms"] for row in verified] == ["-", "1.20", "-", "-", "-"]


def test_the_table_for_the_terminal_ends_with_what_it_leaves_out():
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(console, searches.table(search_result(), 2))
    text = console.export_text()
    assert "fuse=backward" in text
    assert "and 3 others; --out writes them all" in text
    console.file.close()


def test_plain_pytorch_is_the_first_row_and_what_was_measured_stands_beside_what_is_predicted():
    """A plan that was measured to be slower is not told to be a gain."""
    measured = MeasuredStep(step_s=0.025, against_pytorch=0.77, against_pytorch_interval=(0.7, 0.8), date="2026-01-31")
    plain = PlainStep(step_s=0.018, interval_s=(0.017, 0.02), peak_bytes=2**30, measured=measured.model_copy(update={"step_s": 0.0192}))
    result = search_result(pytorch=plain)
    first, *others = result.plans
    result = result.model_copy(update={"plans": (first.model_copy(update={"measured": measured}), *others)})
    rows = searches.cells(result)
    assert (rows[0]["plan"], rows[0]["against PyTorch"], rows[0]["measured ms"], rows[0][""]) == ("plain PyTorch", "1.00x", "19.2", "")
    assert (rows[1]["plan"], rows[1]["against PyTorch"], rows[1]["measured ms"]) == ("turbodl:fuse=backward", "1.80x", "25.0")
    assert rows[2]["measured ms"] == "-"
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert "measured ms" not in searches.cells(search_result())[0]


def test_loops_of_several_devices_stand_below_plain_pytorch():
    """They are what people run, and so have no rank. What does not fit is said, as for plans."""
    steps = {"pytorch": (0.03, True), "pytorch-ddp": (0.02, False), "pytorch-fsdp": (0.024, True)}
    plain, *parallel = (
        PlainStep(strategy=strategy, step_s=step_s, interval_s=(0.017, 0.04), peak_bytes=2**30, fits=fits)
        for strategy, (step_s, fits) in steps.items()
    )
    rows = searches.cells(search_result(pytorch=plain, parallel=tuple(parallel)))
    assert [(row[""], row["plan"], row["against PyTorch"], row["peak allocated"]) for row in rows[:3]] == [
        ("", "plain PyTorch", "1.00x", "1 GiB"),
        ("", "PyTorch's DDP", "1.50x", "1 GiB, too much"),
        ("", "PyTorch's FSDP2", "1.25x", "1 GiB"),
    ]


def test_a_search_on_costs_that_were_not_measured_tells_no_gain():
    result = search_result(measured_share=0.1, machine="this-cpu")
    assert "over the baseline" not in searches.headline(result)
    assert not any("No verdict" in line for line in searches.words(search_result(measured_share=0.9)))


def test_no_plan_is_called_faster_than_a_baseline_that_does_not_fit():
    """Or that has so little room that its step is not known."""
    best, *_ = search_result().plans
    for unfit in ({"fits": False}, {"at_limit": True}):
        result = search_result(plans=(best, ranked("baseline", 0.020, 15.9, **unfit)))
        assert searches.headline(result).startswith("turbodl:fuse=backward is predicted fastest of 8 candidates: 10.0 ms (9.00 to 11.0);")
    assert "(9.00 to 11.0), 2.00x over the baseline; it fits" in searches.headline(search_result())


def test_a_rival_that_is_the_baseline_is_explained_once():
    change = (Change(part="overlap of backward", seconds=-0.01),)
    result = search_result(rival="baseline", waterfall=change, rival_waterfall=change)
    assert [name for name, _ in searches.waterfalls(result)] == ["baseline"]
    assert sum(line.startswith("The best step is") for line in searches.words(result)) == 1


# Predictions that do not fit, in sentences.


def need(name: str, needed_gib: float, size_gib: float) -> MemoryNeed:
    return MemoryNeed(name=name, needed_bytes=round(needed_gib * 2**30), size_bytes=round(size_gib * 2**30))


def test_a_prediction_that_fits_needs_no_words():
    assert predictions.fit_words(prediction()) == []


def test_limits_in_gigabytes_are_shown_as_they_were_given():
    assert units.capacity(8 * 10**9) == "7.45 GiB (8 GB)"
    assert units.capacity(16 * 2**30) == "16 GiB"


# The line that sums a prediction up, and its words.


def test_a_prediction_in_one_line():
    (answer,) = fake_jobs.predict_many(JobRequest("resnet50", 32, strategies=("turbodl",))).values()
    known = {"against_pytorch": 1.16, "against_pytorch_interval": (1.08, 1.22), "faster_than_pytorch_probability": 0.9}
    better = answer.prediction.model_copy(update=known)
    (large,) = fake_jobs.predict_many(JobRequest("resnet50", fake_jobs.TOO_LARGE, strategies=("turbodl",))).values()
    assert (better.gain.verdict, answer.prediction.gain.verdict, large.prediction.fits) == ("faster", "cannot tell", False)
    assert gain_words(None, None) == ""
    check_words("verdict of a prediction", {
        "against plain PyTorch": verdict_line(better),
        "over the baseline": verdict_line(answer.prediction),
        "too large": verdict_line(large.prediction),
        "the gain alone": gain_words((1.08, 1.22), 0.9),
        "of three memories, two too small": shortfall_words([need("a", 10, 8), need("b", 12, 8), need("c", 1, 8)]),
        "batches that were not sought": predictions.fit_words(prediction(fits=False)),
    })  # fmt: skip


def test_a_verdict_names_what_it_compares_with_if_that_is_not_plain_pytorch():
    """Nothing is said below "against PyTorch" of a step whose plain PyTorch is not predicted."""
    over_baseline = prediction(speedup=1.5, speedup_interval=(1.4, 1.6), against_pytorch=None, against_pytorch_interval=None)
    cells = predictions.prediction_cells(over_baseline, here=True)
    assert (cells["against PyTorch"], cells["verdict"]) == ("-", "faster (over the baseline)")
    folded = predictions.folded_prediction(cells)
    assert (folded["against PyTorch"], folded["over baseline"].splitlines()[0]) == ("-", "faster")


def test_a_prediction_at_the_limit_of_its_memory_has_no_verdict():
    need = MemoryNeed(name="hbm", needed_bytes=72 << 30, size_bytes=80 << 30, allocated_bytes=69 << 30, reserved_bytes=71 << 30)
    limited = prediction(memories=(need,), at_limit=("turbodl",), against_pytorch=1.5, against_pytorch_interval=(1.4, 1.6))
    assert limited.gain.verdict == "no verdict"
    assert predictions.prediction_cells(limited, here=True)["fits"] == "at its limit"


def test_the_fastest_the_smallest_and_what_lies_between_them():
    known = searches.worth_knowing(of_a_language_model())
    assert [(each.why, each.plan.checkpoint, each.plan.accumulate) for each in known] == [
        (FASTEST, "none", 8), (BETWEEN, "selective", 8), (SMALLEST, "full", 8),
    ]  # fmt: skip
    assert searches.worth_knowing(search_result(fits=False)) == []
    (only,) = searches.worth_knowing(search_result(plans=(ranked("baseline", 0.01, 3.0),), best="baseline", rival=None))
    assert only.why == FASTEST


def test_its_speed_its_memory_and_what_a_training_costs():
    result = of_a_language_model()
    fastest = searches.worth_knowing(result)[0]
    assert searches.rate_words(result, fastest) == "100,000 tokens/s"
    assert fastest.memory_words == "activations 40 GiB, optimizer state 12 GiB"
    training = WholeTraining.at(fastest.plan, result.tokens, result.devices, (3.6e9, 2.5))
    assert (training.hours, training.cost) == (pytest.approx(10), pytest.approx(1600))
    said = "\n".join(searches.words(result.model_copy(update={"training": training})))
    assert "3.6 billion take 10.0 hours" in said
    assert "640 GPU hours, $1,600 at $2.5 for a GPU and hour." in said
    images = search_result()
    assert searches.rate_words(images, searches.worth_knowing(images)[0]) == "3,200 samples/s"


def test_every_row_says_its_microbatches_and_checkpointing():
    rows = searches.cells(of_a_language_model())
    assert [(row["plan"], row["microbatches"], row["checkpointing"]) for row in rows[:2]] == [
        ("fsdp", "8", "none"),
        ("fsdp", "4", "selective"),
    ]
    assert (rows[0]["tokens/s"], rows[0]["MFU"]) == ("100,000", "46.0 %")
    assert "microbatches" not in searches.cells(search_result())[0]
