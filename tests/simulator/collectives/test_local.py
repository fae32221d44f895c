"""One device's part of a plan: its tasks, its operands of collectives, and the dependencies that follow from those."""

import pytest

from executors.distributed.ranks import Ranks, launched
from simulator.bodies.collective import Collective
from simulator.collectives.local import ProcessGroup, groups_of, local_plan
from simulator.plan.dependencies import Dependencies
from tests.support.tiny import build, copy, task
from traces.errors import StepcastError

SUM = Collective("all-reduce", ("a", "b"))


def replicas(**sum_fields):
    """Two devices: backward writes a gradient, the sum changes both, an update reads its own one period later."""
    return build(
        task("backward.a", reads="xa wa", writes="ga", on="a"),
        task("backward.b", reads="xb wb", writes="gb", on="b"),
        task("sum", mutates="ga gb", on="a", stream=1, body=SUM, **sum_fields),
        task("update.a", reads="ga", mutates="wa", on="a"),
        task("update.b", reads="gb", mutates="wb", on="b"),
    )[0]


def names(operands):
    return [operand.value for operand in operands]


def test_a_part_has_the_devices_tasks_and_the_collective_with_its_own_operands():
    plan = replicas()
    parts = [local_plan(plan, device) for device in ("a", "b")]
    assert [[t.name for t in part.tasks] for part in parts] == [["backward.a", "sum", "update.a"], ["backward.b", "sum", "update.b"]]
    assert [part.numbers for part in parts] == [(0, 2, 3), (1, 2, 4)]
    sums = [part.tasks[1] for part in parts]
    assert [(t.lane, names(t.mutates)) for t in sums] == [(("a", 1), ["ga"]), (("b", 1), ["gb"])]
    assert [set(part.values) for part in parts] == [{"xa", "wa", "ga"}, {"xb", "wb", "gb"}]
    assert [set(part.storages) for part in parts] == [set(part.values) for part in parts]
    assert [part.carried for part in parts] == [{"wa"}, {"wb"}]


def test_what_follows_a_collective_waits_for_it_through_its_own_operands():
    part = local_plan(replicas(), "b")
    first = Dependencies(part).edges(0)
    assert [[(edge.index, edge.kind) for edge in edges] for edges in first] == [[], [(0, "raw")], [(0, "war"), (1, "raw")]]


def test_losses_and_gradients_are_those_of_the_device():
    from dataclasses import replace

    plan = replicas()
    plan = replace(plan, losses=("ga", "gb"), gradients={"w": plan.values["ga"].operand()})
    assert [local_plan(plan, device).losses for device in ("a", "b")] == [("ga",), ("gb",)]
    assert [list(local_plan(plan, device).gradients) for device in ("a", "b")] == [["w"], []]


def test_orders_between_devices_are_left_out():
    plan, _ = build(task("f", writes="p", on="a"), task("g", writes="q", on="b", after="f"), task("h", writes="r", on="b", after="g"))
    assert [t.after for t in local_plan(plan, "b").tasks] == [(), ("g",)]


def test_a_device_without_tasks_has_an_empty_part():
    plan, _ = build(task("f", reads="x", writes="y", on="a"))
    part = local_plan(plan, "b")
    assert part.empty
    assert (part.values, part.numbers, part.devices) == ({}, (), ())


def test_a_copy_between_devices_is_refused_by_name():
    plan, _ = build(task("f", reads="x", writes="y", on="a"), copy("move", "a", "b", "y", "z"), task("g", reads="z", writes="u", on="b"))
    with pytest.raises(StepcastError, match=r"task move copies from a to b: .*use image-parallel"):
        local_plan(plan, "a")


def test_every_stream_with_collectives_has_a_circle_in_one_order():
    plan, _ = build(
        task("late", mutates="wa wb", on="a", stream=3, body=SUM),
        task("f", reads="x", writes="y", on="a"),
        task("early", mutates="wc wd", on="a", stream=1, body=SUM),
    )
    assert groups_of(plan) == (ProcessGroup(("a", "b"), 1), ProcessGroup(("a", "b"), 3))


def test_the_launcher_says_which_process_this_is():
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched(given) == Ranks(3, 4, 1, 2)
    assert not launched(given).one_node
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [({"LOCAL_RANK": None}, "LOCAL_RANK is not set"), ({"RANK": "one"}, "expected whole numbers"), ({"RANK": "4"}, "which cannot be")],
)
def test_variables_that_no_launcher_sets_are_refused(change, words):
    given = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"} | change
    with pytest.raises(StepcastError, match=words):
        launched({name: value for name, value in given.items() if value is not None})
