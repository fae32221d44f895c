"""Reordering by rank: the lowest rank first, and no task before its dependencies."""

from simulator.plan.dependencies import Dependencies
from simulator.strategies.turbodl import by_rank
from tests.support import tiny

RANKS = {"a": 2, "b": 1, "c": 0, "d": 0, "e": 1}


def test_by_rank():
    plan, _ = tiny.build(
        tiny.task("a", reads="x", writes="u"),
        tiny.task("b", reads="x", writes="v"),
        tiny.task("c", reads="u", writes="z"),
        tiny.task("d", reads="x", writes="q"),
        tiny.task("e", mutates="q", after="b"),
    )
    assert [task.name for task in by_rank(plan.tasks, Dependencies(plan), lambda task: RANKS[task.name])] == ["d", "b", "e", "a", "c"]


def test_equal_ranks_keep_their_order():
    plan, _ = tiny.build(*(tiny.task(name, reads="x", writes=f"v{name}") for name in "abc"))
    assert by_rank(plan.tasks, Dependencies(plan), lambda task: 0) == list(plan.tasks)
