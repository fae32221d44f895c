"""Differences of timelines, and of a validation's predicted and measured step."""

from dataclasses import replace

import pytest

from simulator.predict.waterfall import UNEXPLAINED, WAITING
from simulator.replay.diff.diff import difference
from simulator.replay.diff.run import ORDER
from simulator.replay.diff.traces import compare_timelines, compare_validated, run_of_timeline
from tests.support.page_samples import result, skipped
from traces.documents.comparison import Change, Comparison
from traces.documents.timeline import Cause, CriticalSpan, Span, Timeline
from traces.errors import SchedcastError


def timeline(*spans, step_s=10.0, window_s=(0.0, 10.0), **more):
    """A timeline of (task, lane, start, end, phase) in seconds; a task's layer is its name."""
    rows = tuple(Span(task, "cuda:0", lane, start, end, phase, layer=task) for task, lane, start, end, phase in spans)
    return Timeline("predicted", rows, step_s, window_s, **more)


BEFORE = timeline(("f", "0", 0, 3, "forward"), ("b", "0", 4, 8, "backward"), ("c", "1", 8, 9, "collective"), ("u", "0", 9, 10, "update"))
LONGER = timeline(
    ("f", "0", 0, 3, "forward"), ("b", "0", 6, 11, "backward"), ("c", "1", 11, 12, "collective"), ("u", "0", 12, 13, "update"),
    step_s=13.0, window_s=(0.0, 13.0),
)  # fmt: skip
PARALLEL = timeline(
    ("f", "0", 0, 3, "forward"), ("b", "1", 0, 4, "backward"), ("c", "1", 4, 5, "collective"), ("u", "0", 5, 6, "update"),
    step_s=6.0, window_s=(0.0, 6.0),
)  # fmt: skip


def compared(tmp_path, a, b):
    diff = compare_timelines(a.save(tmp_path / "a.json"), b.save(tmp_path / "b.json.gz")).diff
    assert sum(term.seconds for term in diff.terms) == pytest.approx(diff.difference_s, abs=1e-12)
    return {term.part: term.seconds for term in diff.terms if abs(term.seconds) > 1e-12}


def test_tasks_and_the_time_between_them(tmp_path):
    assert compared(tmp_path, BEFORE, LONGER) == pytest.approx({"backward": 1.0, WAITING: 2.0})


def test_another_order_is_a_term_of_its_own(tmp_path):
    parts = compared(tmp_path, BEFORE, PARALLEL)
    assert parts.keys() == {ORDER, WAITING}
    assert sum(parts.values()) == pytest.approx(-4.0)
    assert parts[ORDER] < -2.9


def test_a_step_time_that_is_not_the_period_shown_leaves_a_remainder(tmp_path):
    assert compared(tmp_path, BEFORE, replace(LONGER, step_s=13.5)) == pytest.approx({"backward": 1.0, WAITING: 2.0, UNEXPLAINED: 0.5})


def test_timelines_of_different_models_are_refused(tmp_path):
    other = timeline(("x", "0", 0, 6, "forward"), ("y", "0", 6, 10, "backward"))
    with pytest.raises(SchedcastError, match=r"have only 0\.0 % of their device time in common"):
        compared(tmp_path, BEFORE, other)


def test_a_timeline_without_tasks_is_refused(tmp_path):
    with pytest.raises(SchedcastError, match=r"a\.json has no task in its steady period"):
        compared(tmp_path, timeline(), BEFORE)


PATH = (CriticalSpan("f", 0, 3, Cause.START, "forward"), CriticalSpan("b", 4, 8, Cause.LANE, "backward"))


def test_a_validation_keeps_its_waterfall_and_names_the_layers():
    changes = (Change(part=UNEXPLAINED, seconds=0.5), Change(part="backward", seconds=1.0), Change(part=WAITING, seconds=2.0))
    row = result("turbodl", 10.0, 13.5).model_copy(update={"waterfall": changes})
    diff = compare_validated(row, "turbodl", Comparison(replace(BEFORE, critical_path=PATH), LONGER, row))
    assert [(term.part, term.seconds) for term in diff.terms] == [(WAITING, 2.0), ("backward", 1.0), (UNEXPLAINED, 0.5)]
    assert [(row.label, row.seconds) for row in diff.terms[1].contributions] == [("b, backward", 1.0)]
    assert (diff.a, diff.b, diff.remainder_s, diff.difference_s) == ("turbodl predicted", "turbodl measured", 0.5, 3.5)


def test_a_validation_without_a_waterfall_is_compared_by_its_timelines():
    row = result("turbodl", 10.0, 13.0).model_copy(update={"waterfall": ()})
    diff = compare_validated(row, "turbodl", Comparison(BEFORE, LONGER, row))
    assert {term.part: term.seconds for term in diff.terms if term.seconds} == pytest.approx({"backward": 1.0, WAITING: 2.0})
    with pytest.raises(SchedcastError, match="validate again with --out DIR"):
        compare_validated(row, "turbodl", None)
    with pytest.raises(SchedcastError, match="did not run"):
        compare_validated(skipped(), "bppsa", None)


def test_a_step_that_takes_no_time_is_refused():
    """As that of a damaged trace may."""
    usual = run_of_timeline(BEFORE, "usual")
    at_once = replace(usual, name="at once", step_s=0.0)
    for a, b in ((usual, at_once), (at_once, usual)):
        with pytest.raises(SchedcastError, match="the step of at once takes no time"):
            difference(a, b, "traces", UNEXPLAINED)
