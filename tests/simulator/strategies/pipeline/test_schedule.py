"""Schedules: the order and the times of their actions, their drawing, and what is refused."""

from itertools import pairwise

import pytest

from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import Action, ScheduleError, Span, check, linear, timed
from tests.support.pipelines import OURS, makespan_s, schedule
from tests.support.torch_orders import torch_order


def test_each_action_starts_when_its_rank_is_free_and_its_inputs_are_there():
    spans = timed(schedule("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), lambda action: {"F": 1.0, "B": 2.0}[action.kind], transfer_s=0.5)
    assert {str(action): span for action, span in spans.items()} == {
        "0F0": Span(0.0, 1.0), "0F1": Span(1.0, 2.0), "0B0": Span(5.0, 7.0), "0B1": Span(8.0, 10.0),
        "1F0": Span(1.5, 2.5), "1B0": Span(2.5, 4.5), "1F1": Span(4.5, 5.5), "1B1": Span(5.5, 7.5),
    }  # fmt: skip
    assert makespan_s(spans) == 10.0


def test_stages_of_one_rank_exchange_nothing():
    v = schedule("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0")
    assert makespan_s(timed(v, lambda action: 1.0, transfer_s=10.0)) == 8.0 + 4 * 10.0  # 0-1, 2-3, and back


def test_only_the_gradient_by_the_input_is_waited_for():
    spans = timed(schedule("0F0 0I0 0W0", "1F0 1I0 1W0"), lambda action: 1.0)
    assert spans[Action(0, "I", 0)] == spans[Action(1, "W", 0)] == Span(3.0, 4.0)


def test_an_overlapped_pair_starts_when_both_of_its_actions_can():
    order = torch_order("DualPipeV", 2, 4)
    spans = timed(order, lambda action: 1.0)
    for rank in order.ranks:
        for forward, backward in pairwise(rank):
            if forward in order.overlapped:
                assert spans[forward].start_s >= max(spans[need].end_s for need in order.needs(backward) if need != forward)


@pytest.mark.parametrize("name", OURS)
def test_the_linear_order_keeps_the_ranks_orders_and_follows_the_needs(name):
    order = OURS[name](3, 7)
    actions = linear(order)
    position = {action: place for place, action in enumerate(actions)}
    assert len(position) == len(actions) == sum(map(len, order.ranks))
    assert all(sorted(rank, key=position.__getitem__) == list(rank) for rank in order.ranks)
    assert all(position[need] < position[action] for action in actions for need in order.needs(action))


def test_the_linear_order_is_that_of_unit_times():
    assert " ".join(map(str, linear(orders.one_f_one_b_order(2, 3)))) == "0F0 0F1 1F0 1B0 0B0 1F1 0F2 1B1 0B1 1F2 1B2 0B2"


def test_a_deadlock_names_the_ranks_that_wait_for_each_other():
    with pytest.raises(ScheduleError) as caught:
        check(schedule("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))
    assert str(caught.value) == (
        "deadlock: rank 0 waits at 0B0 for 1B0, rank 1 waits at 1F1 for 0F1; let one of the ranks run what the other waits for first"
    )
    assert caught.value.details.split("\n") == [
        "rank 0  0F0 0B0 -   0F1 0B1 -", "            ^ here", "rank 1  .   1F0 1F1 1B0 -   1B1 -",
    ]  # fmt: skip


def test_an_order_of_a_deadlock_is_refused():
    with pytest.raises(ScheduleError, match="deadlock"):
        linear(schedule("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))
    with pytest.raises(ScheduleError, match="rank 1 waits at 1F1 for 0F1, which no rank runs; add it before"):
        linear(schedule("0F0 0B0", "1F0 1F1 1B0 1B1"))


FAULTS = {
    "no ranks": ((), "the schedule has no actions"),
    "an idle rank": (("0F0 0B0", ""), "rank 1 has no actions; expected at least one stage a rank"),
    "an unknown kind": (("0F0 0X0",), "rank 0 has the action 0X0; expected a stage, F, I, W or B, and a microbatch"),
    "a stage on two ranks": (("0F0 0B0", "0F1 0B1"), "ranks 0 and 1 both run stage 0; expected one rank a stage"),
    "an action twice": (("0F0 0F0 0B0",), "rank 0 runs 0F0 twice; expected each action once"),
    "a backward first": (("0B0 0F0",), "rank 0 runs 0B0 without 0F0 before it; expected F before its backward"),
    "a weight gradient first": (("0F0 0W0 0I0",), "rank 0 runs 0W0 without 0I0 before it; expected F, then I, then W"),
    "two backwards": (("0F0 0I0 0B0 0W0",), "rank 0 runs 0B0 after 0I0; expected either B, or I and W"),
    "two backwards, whole first": (("0F0 0B0 0I0",), "rank 0 runs 0I0 after 0B0; expected either B, or I and W"),
    "no backward": (("0F0 0B0 0F1",), "rank 0 does not run 0B1; expected F, and either B or I and W, of microbatches 0 to 1"),
    "no weight gradient": (("0F0 0I0",), "rank 0 does not run 0W0; expected F, and either B or I and W"),
    "a microbatch of one stage": (("0F0 0B0 0F1 0B1", "1F0 1B0"), "rank 1 does not run 1F1; expected F, and either B or I and W"),
    "no stage 1": (("0F0 0B0", "2F0 2B0"), "no rank runs stage 1; expected stages 0 to 2, the largest in the schedule"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_schedule_is_refused_in_one_line(fault):
    ranks, message = FAULTS[fault]
    with pytest.raises(ScheduleError) as caught:
        check(schedule(*ranks))
    assert str(caught.value).startswith(message)
    assert ("^ here" in caught.value.details) == bool(ranks)


def test_the_arrow_stands_beneath_the_fault():
    with pytest.raises(ScheduleError) as caught:
        check(schedule("0F0 0B0 0F1 0B1", "1F0 1B0 1B1 1F1"))
    assert caught.value.details.split("\n") == [
        "rank 0  0F0 .   .   .   0B0 -   0F1 0B1 -", "rank 1  .   1F0 1B0 -   1B1 -   1F1", "                        ^ here",
    ]  # fmt: skip


def test_the_details_of_a_long_schedule_show_the_part_around_the_fault():
    order = orders.one_f_one_b_order(8, 64)
    with pytest.raises(ScheduleError) as caught:
        check(type(order)((*order.ranks[:-1], order.ranks[-1][:-1])))
    lines = caught.value.details.split("\n")
    assert str(caught.value).startswith("rank 7 does not run 7B63")
    assert lines[0].startswith("columns ")
    assert lines[0].endswith(" of 212")
    assert max(map(len, lines)) < 140


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (2, 4), (4, 8), (8, 32)])
def test_torchs_own_1f1b_order_lacks_the_last_ranks_first_forward(ranks, microbatches):
    order = torch_order("1F1B", ranks, microbatches)
    last = ranks - 1
    if order.ranks[last][0] == Action(last, "F", 0):
        pytest.skip("this version of torch makes the order right")
    with pytest.raises(ScheduleError) as caught:
        check(order)
    assert f"rank {last} runs {last}B0 without {last}F0 before it" in str(caught.value)
    assert "torch's own 1F1B order leaves out the last rank's F0: number its forwards from 0" in str(caught.value)
    assert "^ here" in caught.value.details
