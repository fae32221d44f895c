"""Alignment, fair shares, and runs between two runs."""

import random
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import permutations
from statistics import fmean

import pytest

from simulator.replay.diff import pairs
from simulator.replay.diff.diff import fair_shares
from simulator.replay.diff.hybrid import Hybrid
from simulator.replay.diff.pairs import aligned, pair, refined
from simulator.replay.diff.run import run_of_replay
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.edit import device_work, with_duration, with_tasks, without
from simulator.replay.whatif.ranking import changed_step_s
from simulator.replay.whatif.replayed import Replayed
from tests.support.small_replays import random_recording


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
    tasks = [with_duration(task, task.body.duration_s * draw.choice((1.0, 0.5, 2.0))) for task in left.plan.tasks]
    return with_tasks(left, tasks)


def run(replay):
    return run_of_replay(Replayed(replace(replay, recorded=simulate_replay(replay)), None, None), "run", len(replay.steps))


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
