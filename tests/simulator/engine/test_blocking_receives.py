"""Receives that hold their stream until the sender arrives. Transfers take 1 s: 400 bytes over links of 400 bytes/s."""

from dataclasses import replace

import pytest

from simulator.engine.simulation import simulate
from simulator.machine.machine import Link, Machine
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.plan.check import PlanError
from tests.support.tiny import build, copy, gpu, rows, task
from traces.documents.timeline import Cause
from traces.errors import SchedcastError


def pair(receives: str) -> Machine:
    """Two GPUs with a full-duplex link."""
    return replace(gpu("p", "q", links=(Link("p", "q", 0.0, 400.0),)), receives=receives)


def crossing():
    """Each device sends the other what it has made: q after 1 s, p after 2 s, but the plan has p's first."""
    return [
        task("f", 2.0, reads="x", writes="y", on="p"),
        copy("there", "p", "q", "y", "y'"),
        task("g", 1.0, reads="x2", writes="z", on="q"),
        copy("back", "q", "p", "z", "z'"),
        task("use z", 1.0, reads="z'", writes="v", on="p"),
        task("use y", 1.0, reads="y'", writes="u", on="q"),
    ]


def test_without_blocking_a_message_goes_when_it_is_ready():
    plan, costs = build(*crossing())
    spans = {name: (start, end) for name, start, end in rows(simulate(plan, pair("free"), costs, iterations=1))}
    assert (spans["there"], spans["back"], spans["use z"]) == ((2.0, 3.0), (1.0, 2.0), (2.0, 3.0))


def test_a_posted_receive_holds_up_the_messages_behind_it():
    """q has posted the receive of `there` before it can send `back`, so that `back` comes 2 s later, and the step takes 1 s longer."""
    plan, costs = build(*crossing())
    free, blocking = (simulate(plan, pair(receives), costs, iterations=1) for receives in ("free", "blocking"))
    spans = {name: (start, end) for name, start, end in rows(blocking)}
    assert (spans["there"], spans["back"], spans["use z"]) == ((2.0, 3.0), (3.0, 4.0), (4.0, 5.0))
    assert (free.step_s, blocking.step_s) == (4.0, 5.0)
    assert [(s.task, s.cause) for s in blocking.critical_path][-2:] == [("back", Cause.LINK), ("use z", Cause.DEPENDENCY)]


def test_messages_in_the_order_in_which_they_are_ready_do_not_wait():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c1", "p", "q", "y", "y'"), task("g", 1.0, reads="y'", writes="z", on="q")]
    plan, costs = build(*timed, copy("c2", "q", "p", "z", "z'"))
    assert len({tuple(rows(simulate(plan, pair(receives), costs, iterations=1))) for receives in ("free", "blocking", "late")}) == 1


def test_periods_follow_one_another_on_the_stream():
    """The first message of a period waits for the last one of the period before."""
    plan, costs = build(copy("out", "p", "q", "x", "y"), copy("back", "q", "p", "x2", "y2"))
    assert simulate(plan, pair("free"), costs, iterations=4).step_s == 1.0
    assert simulate(plan, pair("blocking"), costs, iterations=4).step_s == 2.0


def test_messages_to_different_devices_do_not_wait_for_each_other():
    machine = gpu("p", "q", "r", links=(Link("p", "q", 0.0, 400.0), Link("p", "r", 0.0, 400.0)))
    plan, costs = build(copy("to q", "p", "q", "x", "y", stream=1), copy("to r", "p", "r", "x", "z", stream=2))
    assert rows(simulate(plan, replace(machine, receives="blocking"), costs, iterations=1)) == [("to q", 0.0, 1.0), ("to r", 0.0, 1.0)]


def test_validation_names_the_two_that_wait_for_each_other():
    """p sends y before it receives z, as it needs z later; q sends z before it receives y for the same reason."""
    plan, _ = build(*crossing())
    for receives in ("free", "blocking"):
        plan.validate(pair(receives))
    with pytest.raises(PlanError) as caught:
        plan.validate(pair("late"))
    assert "task 'there' deadlocks: p waits to send 'there', q to send 'back'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.details.splitlines() == [
        "p: send 'there' <-- waits here, receive 'back', send 'there', receive 'back'",
        "q: send 'back' <-- waits here, receive 'there', send 'back', receive 'there'",
    ]


def test_two_receives_in_another_order_than_their_sends_deadlock():
    timed = [copy("a", "p", "q", "x1", "a'"), copy("b", "p", "q", "x2", "b'"), task("f", reads="b'", writes="u", on="q")]
    plan, _ = build(*timed, task("g", reads="a'", writes="v", on="q"))
    with pytest.raises(PlanError, match="p waits to send 'a', q to receive 'b'"):
        plan.validate(pair("late"))


def test_a_message_that_overtakes_one_of_an_earlier_period_deadlocks():
    """What q reads of `a` two periods later it receives behind `b` of the next period."""
    timed = [copy("a", "p", "q", "x1", "a'"), copy("b", "p", "q", "x2", "b'"), task("f", reads="b'", writes="u", on="q")]
    later, _ = build(*timed, task("g", reads="a'", writes="v", on="q", lag=2))
    with pytest.raises(PlanError, match="q to receive 'b'"):
        later.validate(pair("late"))


def test_the_link_says_how_messages_are_received():
    assert this_cpu(devices=2, link="copy:0.5").receives == "free"
    assert this_cpu(devices=2, link="copy:0.5,blocking").receives == "blocking"
    assert this_cpu(devices=2, link="copy,late").links == this_cpu(devices=2, link="copy").links
    assert load_machine("p100x4", link="blocking").receives == "blocking"
    with pytest.raises(SchedcastError, match="share memory send nothing; use copy,blocking"):
        this_cpu(devices=2, link="blocking")
    with pytest.raises(SchedcastError, match="the partitions of one GPU share its memory and send nothing"):
        load_machine("h100", link="blocking", partitions=2)
