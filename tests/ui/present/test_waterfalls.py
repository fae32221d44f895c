"""Waterfalls in words and bars: numbers that add up, one sentence, and no phase with a gain and a loss."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.page_samples import prediction, result, validation
from traces import units
from traces.documents.comparison import Change
from ui.present import charts
from ui.present.blocks import Bar
from ui.present.terminal import BAR_WIDTH, show


def changes(**seconds: float) -> tuple[Change, ...]:
    """Changes by part; underscores stand for blanks."""
    return tuple(Change(part=name.replace("_", " "), seconds=value) for name, value in seconds.items())


def sentence(step_s: float, **seconds: float) -> str:
    """The sentence about a step that was 50 ms in the baseline."""
    (text,) = charts.prediction_words(prediction(step_s=step_s, waterfall=changes(**seconds)))
    return text


def test_a_shorter_step():
    assert sentence(0.0444, overlap_of_backward=-0.0066, contention=0.001) == (
        "The step is 5.6 ms shorter than the baseline's: 6.6 ms because backward tasks run beside other tasks,"
        " less 1.0 ms because tasks that run at the same time slow each other down more."
    )


def test_a_longer_step_for_several_reasons():
    assert sentence(0.0561, update=0.003, communication=0.004, launches=-0.001, idle=0.0001) == (
        "The step is 6.1 ms longer than the baseline's: 4.0 ms because transfers and collectives take more time,"
        " 3.0 ms because updates take more time and 0.1 ms in smaller parts, less 1.0 ms because issuing tasks takes less time."
    )


def test_gains_that_make_up_for_losses():
    assert sentence(0.05, overlap_of_update=-0.002, contention=0.002) == (
        "The step takes as long as the baseline's: 2.0 ms because updates run beside other tasks make up for"
        " 2.0 ms because tasks that run at the same time slow each other down more."
    )
    assert sentence(0.05, idle=1e-6, update=-1e-6) == "The step takes as long as the baseline's."


def test_parts_too_small_to_name_are_one_part():
    assert sentence(0.0497, idle=-0.00015, launches=-0.00015) == "The step is 0.3 ms shorter than the baseline's: 0.3 ms in smaller parts."


def test_the_baseline_has_nothing_to_explain():
    assert charts.prediction_words(prediction(strategy="baseline")) == []


def test_a_measurement_says_what_task_times_do_not_explain():
    row = result(predicted=0.040, measured=0.042, waterfall=changes(backward=0.003, waiting_between_tasks=-0.002, **REST))
    assert charts.validation_words(validation(row)) == [
        "The measured step of turbodl is 2.0 ms longer than predicted: 3.0 ms because backward tasks take more time and"
        " 1.0 ms that task times do not explain, less 2.0 ms because less time passes between tasks."
    ]
    assert charts.validation_words(validation(result())) == [], "a document of before there were waterfalls"


REST = {"not_explained_by_task_times": 0.001}


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
