"""One device's share of a plan: its tasks, its operands of collectives, and the dependencies that follow from them."""

from simulator.engine.collectives.local import ProcessGroup, directions, groups_of, local_plan
from simulator.plan.bodies.copy import Collective, Copy, Message
from simulator.plan.dependencies import Dependencies
from tests.support.refusals import refuses
from tests.support.tiny import build, copy, task
from traces.errors import Code

SUM = Collective("all-reduce", ("a", "b"))


def replicas(**sum_fields):
    """Two devices: backward writes a gradient, the sum mutates both, and each update reads its own."""
    return build(
        task("backward.a", reads="xa wa", writes="ga", on="a"),
        task("backward.b", reads="xb wb", writes="gb", on="b"),
        task("sum", mutates="ga gb", on="a", stream=1, body=SUM, **sum_fields),
        task("update.a", reads="ga", mutates="wa", on="a"),
        task("update.b", reads="gb", mutates="wb", on="b"),
    )[0]


def names(operands):
    return [operand.value for operand in operands]


def test_a_local_plan_has_the_devices_tasks_and_the_collective_with_its_own_operands():
    plan = replicas()
    plans = [local_plan(plan, device) for device in ("a", "b")]
    assert [[t.name for t in local.tasks] for local in plans] == [["backward.a", "sum", "update.a"], ["backward.b", "sum", "update.b"]]
    assert [local.numbers for local in plans] == [(0, 2, 3), (1, 2, 4)]
    sums = [local.tasks[1] for local in plans]
    assert [(t.lane, names(t.mutates)) for t in sums] == [(("a", 1), ["ga"]), (("b", 1), ["gb"])]
    assert [set(local.values) for local in plans] == [{"xa", "wa", "ga"}, {"xb", "wb", "gb"}]
    assert [set(local.storages) for local in plans] == [set(local.values) for local in plans]
    assert [local.carried for local in plans] == [{"wa"}, {"wb"}]


def test_tasks_after_a_collective_wait_for_it_through_their_own_operands():
    local = local_plan(replicas(), "b")
    first = Dependencies(local).edges(0)
    assert [[(edge.index, edge.kind) for edge in edges] for edges in first] == [[], [(0, "raw")], [(0, "war"), (1, "raw")]]


def test_losses_and_gradients_are_those_of_the_device():
    from dataclasses import replace

    plan = replicas()
    plan = replace(plan, losses=("ga", "gb"), gradients={"w": plan.values["ga"].operand()})
    assert [local_plan(plan, device).losses for device in ("a", "b")] == [("ga",), ("gb",)]
    assert [list(local_plan(plan, device).gradients) for device in ("a", "b")] == [["w"], []]


def test_after_edges_between_devices_are_dropped():
    plan, _ = build(task("f", writes="p", on="a"), task("g", writes="q", on="b", after="f"), task("h", writes="r", on="b", after="g"))
    assert [t.after for t in local_plan(plan, "b").tasks] == [(), ("g",)]


def test_a_device_without_tasks_has_an_empty_plan():
    plan, _ = build(task("f", reads="x", writes="y", on="a"))
    local = local_plan(plan, "b")
    assert local.empty
    assert (local.values, local.numbers, local.devices) == ({}, (), ())


def test_a_copy_between_devices_is_sent_by_one_process_and_received_by_the_other_on_a_stream_of_its_own():
    plan, _ = build(task("f", reads="x", writes="y", on="a"), copy("move", "a", "b", "y", "z"), task("g", reads="z", writes="u", on="b"))
    sender, receiver = local_plan(plan, "a"), local_plan(plan, "b")
    assert [(t.name, t.lane, names(t.reads), names(t.writes)) for t in sender.tasks[1:]] == [("move", ("a", 9), ["y"], [])]
    assert [(t.name, t.lane, names(t.reads), names(t.writes)) for t in receiver.tasks[:1]] == [("move", ("b", 10), [], ["z"])]
    assert sender.tasks[1].body == receiver.tasks[0].body == Message("a", "b", 10, ((1,),))
    assert [local.numbers for local in (sender, receiver)] == [(0, 1), (1, 2)]
    assert [[edge.kind for edge in edges] for edges in Dependencies(receiver).edges(0)] == [[], ["raw"]]
    assert local_plan(plan, "c").empty


def test_messages_of_each_direction_and_stream_keep_the_order_of_the_plan_on_both_sides():
    there = [copy(f"there {n}", "a", "b", f"x{n}", f"y{n}", stream=n % 2) for n in range(4)]
    back = [copy(f"back {n}", "b", "a", f"u{n}", f"v{n}", stream=1) for n in range(3)]
    plan, _ = build(*[each for pair in zip(there, back, strict=False) for each in pair], there[3])
    sender, receiver = local_plan(plan, "a"), local_plan(plan, "b")
    assert directions(plan) == {("a", 0, "b"): 2, ("a", 1, "b"): 3, ("b", 1, "a"): 4}
    for sent, received, lane in ((sender, receiver, 2), (sender, receiver, 3), (receiver, sender, 4)):
        halves = [[t for t in local.tasks if t.body.channel == lane] for local in (sent, received)]
        assert [t.name for t in halves[0]] == [t.name for t in halves[1]]
        assert len({t.lane for t in halves[0]}) == len({t.lane for t in halves[1]}) == 1
    assert [(group.devices, group.stream) for group in groups_of(plan)] == [(("a", "b"), 2), (("a", "b"), 3), (("b", "a"), 4)]


def test_all_processes_run_as_many_periods_as_the_whole_plan():
    plan, _ = build(task("f", writes="x", on="a"), copy("move", "a", "b", "x", "y", lag=1), task("g", reads="y", on="b", lag=2))
    assert [Dependencies(local_plan(plan, device)).largest_lag for device in "ab"] == [2, 2]


def test_memory_that_two_devices_share_is_refused_by_name():
    move = task("move", reads="x", writes="y", on="a", body=Copy("a", "b", means="alias"))
    with refuses(Code.PLAN, r"^task move gives memory of a a second name on b, but processes share no memory"):
        local_plan(build(move)[0], "b")


def test_every_stream_with_collectives_has_a_process_group_in_one_order():
    plan, _ = build(
        task("late", mutates="wa wb", on="a", stream=3, body=SUM),
        task("f", reads="x", writes="y", on="a"),
        task("early", mutates="wc wd", on="a", stream=1, body=SUM),
    )
    assert groups_of(plan) == (ProcessGroup(("a", "b"), 1), ProcessGroup(("a", "b"), 3))
