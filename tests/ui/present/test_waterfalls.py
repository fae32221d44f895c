"""Waterfalls in words and bars: numbers that add up, one sentence, and no phase with a gain and a loss."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.golden import check_words
from tests.support.page_samples import prediction, result, validation
from traces import units
from traces.documents.comparison import Change
from ui.present import charts
from ui.present.blocks import Bar
from ui.present.terminal import BAR_WIDTH, show


def changes(**seconds: float) -> tuple[Change, ...]:
    """Changes by part; underscores stand for blanks."""
    return tuple(Change(part=name.replace("_", " "), seconds=value) for name, value in seconds.items())


REST = {"not_explained_by_task_times": 0.001}


def test_why_a_step_is_shorter_or_longer():
    """The baseline's step is 50 ms."""
    cases = {
        "shorter": (0.0444, changes(overlap_of_backward=-0.0066, contention=0.001)),
        "longer, for several reasons": (0.0561, changes(update=0.003, communication=0.004, launches=-0.001, idle=0.0001)),
        "gains that make up for losses": (0.05, changes(overlap_of_update=-0.002, contention=0.002)),
        "as long, but for rounding": (0.05, changes(idle=1e-6, update=-1e-6)),
        "parts too small to name": (0.0497, changes(idle=-0.00015, launches=-0.00015)),
    }
    said = {case: charts.prediction_words(prediction(step_s=step_s, waterfall=parts)) for case, (step_s, parts) in cases.items()}
    row = result(predicted=0.040, measured=0.042, waterfall=changes(backward=0.003, waiting_between_tasks=-0.002, **REST))
    check_words("reasons of a step", {**said, "measured, longer than predicted": charts.validation_words(validation(row))})


def test_the_baseline_and_documents_without_reasons_have_nothing_to_explain():
    assert charts.prediction_words(prediction(strategy="baseline")) == []
    assert charts.validation_words(validation(result())) == [], "a document of before there were waterfalls"


def test_bars_hang_on_one_another():
    bars = charts.prediction_bars(prediction(step_s=0.0444, waterfall=changes(overlap_of_backward=-0.0066, contention=0.001)))
    assert bars == [
        Bar("baseline", "50.0", 0.0, 0.05, True),
        Bar("overlap of backward", "-6.6", 0.05, pytest.approx(0.0434)),
        Bar("contention", "+1.0", pytest.approx(0.0434), pytest.approx(0.0444)),
        Bar("turbodl", "44.4", 0.0, 0.0444, True),
    ]


def printed(bars: list[Bar]) -> list[str]:
    """The lines of the bars on a terminal of 100 columns."""
    screen = io.StringIO()
    show(Console(file=screen, width=100), charts.waterfall(bars, "Why"))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_bars_for_a_terminal_are_as_long_as_their_times():
    bars = charts.prediction_bars(prediction(step_s=0.040, waterfall=changes(overlap_of_backward=-0.020, contention=0.010)))
    rows = printed(bars)
    assert [row.split("ms")[0].split() for row in rows] == [
        ["baseline", "50.0"], ["overlap", "of", "backward", "-20.0"], ["contention", "+10.0"], ["turbodl", "40.0"],
    ]  # fmt: skip
    assert [row.count("█") + row.count("▓") for row in rows] == [50, 20, 10, 40]


@given(st.floats(1e-6, 1e3), st.lists(st.floats(-1.0, 1.0), max_size=8))
def test_rounded_numbers_add_up(before_s, shares):
    seconds = [share * before_s / 10 for share in shares]
    before, parts, after = units.adding_up(before_s, seconds, before_s + sum(seconds))
    if parts:
        assert round(float(before) + sum(map(float, parts)), 6) == round(float(after), 6)
    assert all(
        abs(float(part) - exact * 1e3) <= 2.01 * 10 ** -len(after.partition(".")[2]) for part, exact in zip(parts, seconds, strict=True)
    )


def test_numbers_of_a_damaged_document_that_do_not_add_up_are_shown_at_once():
    """What is missing here is 5e17 ticks, shared out evenly."""
    before, parts, after = units.adding_up(0.1, [0.01, -0.01], 1e14)
    assert (before, after) == ("100.0", "100000000000000000.0")
    assert sum(map(float, parts)) == pytest.approx(1e17)


def test_a_bar_that_ends_before_0_is_no_longer_than_the_terminal_allows():
    _, damaged, _ = printed(charts.bars("baseline", 0.05, [Change(part="contention", seconds=-1e12)], "turbodl", 0.04))
    assert 0 < damaged.count("▓") <= BAR_WIDTH
