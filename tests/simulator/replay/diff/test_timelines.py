"""Differences of timelines, and of a validation's predicted and measured step."""

import random
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import permutations
from statistics import fmean

import pytest

from simulator.predict.waterfall import UNEXPLAINED, WAITING
from simulator.replay.diff import pairs
from simulator.replay.diff.diff import difference, fair_shares
from simulator.replay.diff.hybrid import Hybrid
from simulator.replay.diff.pairs import aligned, pair, refined
from simulator.replay.diff.run import ORDER, run_of_replay
from simulator.replay.diff.traces import compare_timelines, compare_validated, run_of_timeline
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.edit import device_work, with_durations, without
from simulator.replay.whatif.ranking import changed_step_s
from tests.support.page_samples import result, skipped
from tests.support.refusals import refuses
from tests.support.small_replays import random_recording
from traces.documents.comparison import Change, Comparison
from traces.documents.timeline import Cause, CriticalSpan, Span, Timeline
from traces.errors import Code


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


@pytest.mark.parametrize("tasks", [[], [("x", "0", 0, 6, "forward"), ("y", "0", 6, 10, "backward")]], ids=["none", "another model's"])
def test_timelines_without_tasks_in_common_are_refused(tmp_path, tasks):
    with refuses(Code.REQUEST):
        compared(tmp_path, timeline(*tasks), BEFORE)


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
    with refuses(Code.REQUEST, "validate again with --out DIR"):
        compare_validated(row, "turbodl", None)
    with refuses(Code.REQUEST):
        compare_validated(skipped(), "bppsa", None)


def test_a_step_that_takes_no_time_is_refused():
    """As that of a damaged trace may."""
    usual = run_of_timeline(BEFORE, "usual")
    at_once = replace(usual, name="at once", step_s=0.0)
    for a, b in ((usual, at_once), (at_once, usual)):
        with refuses(Code.REQUEST):
            difference(a, b, "traces", UNEXPLAINED)


# Alignment, fair shares, and runs between two runs.


def test_inserted_removed_and_replaced_items_do_not_shift_the_others():
    assert aligned("abcdef", "abXcef") == [(0, 0), (1, 1), (2, 3), (4, 4), (5, 5)]
    assert aligned("", "abc") == aligned("abc", "") == aligned("abc", "xyz") == []


@pytest.mark.parametrize("cells", [pairs.MOST_CELLS, 8], ids=["by a table", "divided"])
def test_as_many_items_are_aligned_as_possible(monkeypatch, cells):
    monkeypatch.setattr(pairs, "MOST_CELLS", cells)
    for seed in range(60):
        draw = random.Random(seed)
        first, second = ("".join(draw.choices("abc", k=draw.randint(0, 14))) for _ in range(2))
        both = aligned(first, second)
        assert all(first[i] == second[j] for i, j in both)
        assert both == sorted(both)
        assert len({i for i, _ in both}) == len({j for _, j in both}) == len(both) == longest(first, second)
        assert len(both) >= sum(block.size for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks())


def longest(first, second):
    """The length of the longest common subsequence, by the textbook's recursion."""
    row = [0] * (len(second) + 1)
    for item in first:
        new = [0]
        for j, other in enumerate(second):
            new.append(row[j] + 1 if item == other else max(row[j + 1], new[j]))
        row = new
    return row[-1]


def test_what_is_left_between_two_pairs_is_aligned_by_the_next_key():
    first, second = ["a1", "b1", "c1"], ["a1", "b2", "c1", "b3"]
    keys = [(first.__getitem__, second.__getitem__), (lambda i: first[i][0], lambda j: second[j][0])]
    assert refined([0, 1, 2], [0, 1, 2, 3], keys) == [(0, 0), (1, 1), (2, 2)]


def test_a_fair_share_is_the_mean_over_all_orders():
    draw = random.Random(1)
    worth = {}

    def value(terms):
        return worth.setdefault(terms, draw.random())

    shares = fair_shares("abcd", value)
    expected = {
        term: fmean(
            value(frozenset(order[: order.index(term) + 1])) - value(frozenset(order[: order.index(term)]))
            for order in permutations("abcd")
        )
        for term in "abcd"
    }
    assert shares == pytest.approx(expected)
    assert sum(shares.values()) == pytest.approx(value(frozenset("abcd")) - value(frozenset()))


def changed(replay, seed):
    """The replay with other durations, and without some kernels."""
    draw = random.Random(seed)
    work = device_work(replay)
    keep = {task.name for step in replay.steps for task in work if task.name in (step.first_task, step.last_task)}
    gone = {task.name for task in work if task.name not in keep and draw.random() < 0.2}
    left = without(replay, gone)
    return with_durations(left, {task.name: task.body.duration_s * draw.choice((1.0, 0.5, 2.0)) for task in left.tasks})


def run(replay):
    return run_of_replay(replace(replay, recorded=simulate_replay(replay)), "run", len(replay.steps))


@pytest.mark.parametrize("seed", range(40))
def test_a_hybrid_with_all_terms_of_one_run_is_that_run(seed):
    replay = random_recording(seed)
    for a, b in ((replay, changed(replay, seed)), (replay, random_recording(seed + 1000))):
        steps = min(len(a.steps), len(b.steps))
        a, b = (replace(each, steps=each.steps[:steps]) for each in (a, b))
        runs = run(a), run(b)
        hybrid = Hybrid(*runs, pair(*runs).of_b)
        everything = hybrid.differing()
        assert hybrid.step_s(()) == pytest.approx(changed_step_s(a), rel=1e-12) == pytest.approx(runs[0].step_s)
        assert hybrid.step_s(everything) == pytest.approx(changed_step_s(b), rel=1e-12) == pytest.approx(runs[1].step_s)


def test_kernels_are_paired_although_some_are_gone():
    replay = random_recording(3)
    runs = run(replay), run(changed(replay, 3))
    pairing = pair(*runs)
    device = [index for index, node in enumerate(runs[1].nodes) if node.on_device]
    assert all(index in pairing.of_b for index in device)
    assert all(runs[0].nodes[pairing.of_b[index]].names == runs[1].nodes[index].names for index in device)
