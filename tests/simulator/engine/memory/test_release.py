"""When instances may be freed on a GPU: after their last access, once the lane that allocated them is ordered after the other lanes."""

from simulator.engine.memory.release import drain_releases, releases
from simulator.plan.bodies.copy import ALIAS, Collective, Copy
from simulator.plan.dependencies import Dependencies
from tests.support.tiny import build, task


def released(*tasks) -> dict[str, list[tuple[str, int]]]:
    """Task -> (storage, age) pairs that may be freed after it in the steady state; `never`: storages that are never released."""
    plan, _ = build(*tasks)
    rule = releases(plan, Dependencies(plan))
    freed = {t.name: list(pairs) for t, pairs in zip(plan.tasks, rule.steady, strict=True) if pairs}
    return freed | ({"never": sorted(rule.never_released)} if rule.never_released else {})


def test_on_one_lane_the_last_access_releases():
    assert released(task("f", reads="x", writes="a"), task("g", reads="a", writes="b"), task("h", reads="a b", writes="c")) == {
        "h": [("a", 0), ("b", 0), ("c", 0)]
    }


def test_another_lanes_read_counts_when_the_allocating_lane_waits_for_it():
    tasks = [
        task("f", reads="x", writes="a"), task("side", reads="a", writes="b", stream=1), task("g", reads="a", writes="c"),
        task("join", reads="b c", writes="d"),
    ]  # fmt: skip
    freed = released(*tasks)
    assert freed["join"] == [("a", 0), ("c", 0), ("d", 0)]
    assert ("b", 1) in freed["side"], "b belongs to the side lane: freed once that lane is ordered after the join, an iteration later"


def test_a_storage_read_by_a_lane_nobody_waits_for_is_never_released():
    assert released(task("f", reads="x", writes="a"), task("side", reads="a", writes="b", stream=1)) == {"side": [("b", 0)], "never": ["a"]}


def test_a_reader_that_lags_releases_an_iteration_later():
    freed = released(task("update", reads="g", mutates="w", lag=1), task("f", reads="x w", writes="g"))
    assert freed == {"update": [("g", 1)]}


def test_a_second_name_is_freed_by_the_lane_that_allocated_the_memory():
    """The send is ordered after the reader of what it sent; the lane whose memory that is, an iteration later."""
    tasks = [
        task("f", reads="x", writes="a"),
        task("send", reads="a", writes="b", stream=1, body=Copy("d", "d", means=ALIAS)),
        task("reader", reads="b", writes="c", stream=2),
        task("next", reads="c", writes="e", stream=1),
        task("join", reads="e", writes="g"),
    ]
    freed = released(*tasks)
    assert [name for name, pairs in freed.items() for storage, _ in pairs if storage in ("a", "b")] == ["join", "join"]


def test_each_device_runs_its_part_of_a_collective_and_frees_its_memory_after_it():
    """The collective is a task of device a. Device b's next task on that stream comes after its own part of it all the same."""
    devices = ("a", "b")
    tasks = [
        *(task(f"pack {d}", reads=f"x{d}", writes=f"p{d}", on=d, stream=1) for d in devices),
        task("sum", mutates="pa pb", on="a", stream=1, body=Collective("all-reduce", devices)),
        *(task(f"next {d}", reads=f"x{d}", writes=f"q{d}", on=d, stream=1) for d in devices),
    ]
    assert released(*tasks) == {"sum": [("pa", 0), ("pb", 0)], "next a": [("qa", 0)], "next b": [("qb", 0)]}


def test_a_drain_releases_only_what_its_own_tasks_order():
    """Usually the send is ordered after the reader of what it sent by the reply, which comes an iteration later. The last reply is missing.

    All lanes are waited for before the drain, so that what they have read for the last time is free at once.
    """
    tasks = [
        task("reply", reads="c", writes="r", stream=1),
        task("send", reads="x", writes="a", stream=1, lag=1),
        task("reader", reads="a", writes="c", stream=2, lag=1),
    ]
    plan, _ = build(*tasks)
    assert ("a", 2) in released(*tasks)["reply"]
    freed = drain_releases(plan, Dependencies(plan), 10)
    assert {(plan.tasks[index].name, period) for period, index in freed} <= {("send", 10), ("reader", 10)}
    assert ("a", 9) not in [pair for pairs in freed.values() for pair in pairs]
    assert drain_releases(build(task("f", reads="x", writes="a"))[0], Dependencies(build(task("f", reads="x", writes="a"))[0]), 3) == {}
