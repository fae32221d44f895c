"""When instances may be dropped on a GPU: after their last access, once the lane that allocated them is ordered after the others."""

from simulator.memory.release import releases
from simulator.plan.dependencies import Dependencies
from tests.support.tiny import build, task


def released(*tasks) -> dict[str, list[tuple[str, int]]]:
    """Task -> (storage, age) that may be dropped after it, in the steady state."""
    plan, _ = build(*tasks)
    found = releases(plan, Dependencies(plan))
    return {t.name: list(items) for t, items in zip(plan.tasks, found.steady, strict=True) if items} | (
        {"held": sorted(found.held)} if found.held else {}
    )


def test_on_one_lane_the_last_access_releases():
    assert released(task("f", reads="x", writes="a"), task("g", reads="a", writes="b"), task("h", reads="a b", writes="c")) == {
        "h": [("a", 0), ("b", 0), ("c", 0)]
    }


def test_another_lanes_read_counts_when_the_allocating_lane_waits_for_it():
    tasks = [
        task("f", reads="x", writes="a"),
        task("side", reads="a", writes="b", stream=1),
        task("g", reads="a", writes="c"),
        task("join", reads="b c", writes="d"),
    ]
    found = released(*tasks)
    assert found["join"] == [("a", 0), ("c", 0), ("d", 0)]
    assert ("b", 1) in found["side"], "b is the side lane's: freed when that lane comes after the join, an iteration later"


def test_a_lane_that_is_never_waited_for_holds_what_it_reads():
    assert released(task("f", reads="x", writes="a"), task("side", reads="a", writes="b", stream=1)) == {"side": [("b", 0)], "held": ["a"]}


def test_a_reader_that_lags_releases_an_iteration_later():
    found = released(task("update", reads="g", mutates="w", lag=1), task("f", reads="x w", writes="g"))
    assert found == {"update": [("g", 1)]}
