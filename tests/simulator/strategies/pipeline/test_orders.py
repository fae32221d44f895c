"""The schedules' makespans and memory against closed forms, torch's own orders, DeepSpeed's, and an exact search."""

from fractions import Fraction

import pytest

from simulator.strategies import interleaved_1f1b, zero_bubble
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import BACKWARD, BY_WEIGHT, FORWARD, UNITS, Action, Schedule, check, timed
from tests.support.exact_schedules import shortest
from tests.support.pipelines import OURS, excess, makespan_s, units
from tests.support.refusals import refuses
from tests.support.torch_orders import SIZES, torch_order
from traces.errors import Code

#: Units of time beyond the work of a rank, by torch's name of the schedule, for p ranks.
EXCESS = {
    "GPipe": lambda p: 3 * (p - 1), "LoopedBFS": lambda p: 3 * (p - 1), "Interleaved1F1B": lambda p: 3 * (p - 1),
    "InterleavedZeroBubble": lambda p: p - 1, "ZBVZeroBubble": lambda p: p - 1, "DualPipeV": lambda p: 2 * (p - 1),
}  # fmt: skip
#: Ours of the same name, for p ranks with m microbatches in the memory of torch's.
SAME = {
    "GPipe": orders.gpipe_order,
    "Interleaved1F1B": interleaved_1f1b.order,
    "ZBVZeroBubble": lambda p, m: zero_bubble.order(2 * p, m, most_alive=2 * p, shape="v"),
}


def peak_forwards(schedule: Schedule) -> list[int]:
    """The most forwards of each rank whose activations are alive at once: from the forward to the end of its backward by the weights."""
    peaks = []
    for actions in schedule.ranks:
        live = peak = 0
        for action in actions:
            live += action.kind == FORWARD
            peak = max(peak, live)
            live -= action.kind in (BACKWARD, BY_WEIGHT)
        peaks.append(peak)
    return peaks


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("ranks", [*range(1, 9)])
def test_no_schedule_is_refused_or_deadlocks(name, ranks):
    for microbatches in range(1, 33) if "zero" not in name else (1, 2, 3, 7, 8, 9, 16, 32):
        order = OURS[name](ranks, microbatches)
        check(order)
        assert (len(order.ranks), order.microbatches) == (ranks, microbatches)


@pytest.mark.parametrize("per_rank", [1, 3, 4])
def test_interleaved_schedules_of_any_depth_run(per_rank):
    for ranks in range(1, 9):
        for microbatches in (1, 2, 5, 8, 13, 32):
            order = interleaved_1f1b.order(ranks, microbatches, per_rank)
            check(order)
            assert order.stages == ranks * per_rank
            if microbatches >= ranks:
                assert excess(order) == 3 * (ranks - 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXCESS)
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_torchs_orders_have_the_bubbles_of_the_closed_forms(name, ranks, microbatches):
    order = torch_order(name, ranks, microbatches)
    check(order)
    assert excess(order) == EXCESS[name](ranks)


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_ours_are_as_short_as_torchs_and_keep_no_more_forwards(name, ranks, microbatches):
    ours, theirs = SAME[name](ranks, microbatches), torch_order(name, ranks, microbatches)
    assert units(ours) <= units(theirs)
    assert max(peak_forwards(ours)) <= max(peak_forwards(theirs))


@pytest.mark.parametrize(("ranks", "microbatches", "per_rank"), [(2, 4, 2), (4, 8, 3), (4, 10, 2), (4, 3, 2), (8, 32, 4)])
def test_interleaved_orders_are_torchs(ranks, microbatches, per_rank):
    assert interleaved_1f1b.order(ranks, microbatches, per_rank) == torch_order("Interleaved1F1B", ranks, microbatches, per_rank)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_torchs_v_shaped_zero_bubble_is_not_shorter_than_ours(ranks):
    for microbatches in (1, 2, 3, 5, 9, 17, 32):
        theirs = torch_order("ZBVZeroBubble", ranks, microbatches)
        ours = zero_bubble.order(2 * ranks, microbatches, most_alive=max(2, *peak_forwards(theirs)), shape="v")
        assert units(ours) <= units(theirs)


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 7, 32])
def test_the_bubble_of_gpipe(stages, microbatches):
    for order in (orders.gpipe_order, orders.one_f_one_b_order):
        total = stages * units(order(stages, microbatches))
        bubble = 1 - Fraction(stages * microbatches * 3, total)
        assert bubble == Fraction(stages - 1, microbatches + stages - 1)


def deepspeed(stage: int, stages: int, microbatches: int) -> list[str]:
    """The order of DeepSpeed's TrainSchedule: in step t, the microbatch that its formulas for even and odd steps and stages give."""
    actions = []
    for t in range(2 * (microbatches + stages - 1)):
        forward = t % 2 == stage % 2
        microbatch = (t - stage) // 2 if forward else (t + stage + 1) // 2 - stages
        if 0 <= microbatch < microbatches:
            actions.append(f"{stage}{'F' if forward else 'B'}{microbatch}")
    return actions


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("microbatches", [1, 2, 7, 8, 32])
def test_1f1b_is_deepspeeds(stages, microbatches):
    order = orders.one_f_one_b_order(stages, microbatches)
    assert [list(map(str, actions)) for actions in order.ranks] == [deepspeed(s, stages, microbatches) for s in range(stages)]
    assert makespan_s(timed(order, lambda action: 1)) == 2 * (microbatches + stages - 1)
    buffers = [max(2, min(stages - s, microbatches)) for s in range(stages)]
    assert [max(2, peak) for peak in peak_forwards(order)] == buffers


def test_live_forwards_on_four_ranks():
    assert peak_forwards(orders.gpipe_order(4, 16)) == [16, 16, 16, 16]
    assert peak_forwards(orders.one_f_one_b_order(4, 16)) == [4, 3, 2, 1]
    assert peak_forwards(interleaved_1f1b.order(4, 16)) == [11, 9, 7, 5]
    assert peak_forwards(torch_order("ZBVZeroBubble", 4, 16)) == [8, 8, 8, 8]
    assert max(peak_forwards(zero_bubble.order(8, 16, most_alive=8, shape="v"))) == 8


@pytest.mark.parametrize("stages", range(1, 5))
@pytest.mark.parametrize("microbatches", range(1, 9))
def test_zero_bubble_is_as_short_as_an_exact_search(stages, microbatches):
    assert units(zero_bubble.order(stages, microbatches)) == shortest(stages, microbatches)
    assert units(zero_bubble.order(stages, microbatches, most_alive=stages)) == shortest(stages, microbatches, stages)


@pytest.mark.parametrize("most_alive", [1, 2])
def test_with_less_memory_than_1f1b_it_is_at_most_one_unit_longer_than_an_exact_search(most_alive):
    for microbatches in range(1, 7):
        order = zero_bubble.order(3, microbatches, most_alive=most_alive)
        assert max(peak_forwards(order)) <= most_alive
        assert units(order) <= shortest(3, microbatches, most_alive) + 1


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("most_alive", [None, 1])
def test_zero_bubble_is_shorter_than_1f1b_in_no_more_memory(stages, most_alive):
    lengths = {"F": 1.0, "I": 1.3, "W": 0.8, "B": 2.1}
    jitter = [1.0, 1.2, 0.9, 1.1, 0.8, 1.0, 1.05, 0.95]

    def seconds(action):
        return lengths[action.kind] * jitter[action.stage]

    most_alive = most_alive and stages
    for microbatches in (2, 8, 16):
        ours = zero_bubble.order(stages, microbatches, seconds, most_alive)
        theirs = orders.one_f_one_b_order(stages, microbatches)
        assert makespan_s(timed(ours, seconds)) < makespan_s(timed(theirs, seconds))
        assert max(peak_forwards(ours)) <= (most_alive or microbatches)


def test_an_unbounded_zero_bubble_schedule_fills_what_a_bounded_one_cannot():
    def seconds(action):
        return {"F": 2.0, "I": 2.0, "W": 1.0}[action.kind]

    lengths = [makespan_s(timed(zero_bubble.order(4, 12, seconds, most_alive), seconds)) for most_alive in (None, 4, 2)]
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 3


def test_the_same_request_gives_the_same_schedule():
    def seconds(action):
        return UNITS[action.kind] + 0.1 * action.stage

    first, second = (zero_bubble.order(4, 6, seconds, 3) for _ in range(2))
    assert first == second


def test_impossible_zero_bubble_schedules_are_refused():
    with refuses(Code.REQUEST, "a v schedule has 2 stages on each rank, got 5 stages; choose a multiple of 2"):
        zero_bubble.order(5, 4, shape="v")
    with refuses(Code.REQUEST, "a rank cannot work with 1 forwards alive; expected at least 2, one for each of its stages"):
        zero_bubble.order(4, 4, shape="v", most_alive=1)


def test_a_single_stage_runs_one_microbatch_after_another():
    assert [str(action) for action in orders.one_f_one_b_order(1, 2).ranks[0]] == ["0F0", "0B0", "0F1", "0B1"]
    assert Action(0, "F", 3) == orders.gpipe_order(1, 4).ranks[0][3]
