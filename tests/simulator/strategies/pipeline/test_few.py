"""Schedules with few microbatches are those of so many, and schedules that do not repeat themselves stay as they are."""

import pytest

from simulator.strategies import zero_bubble
from simulator.strategies.interleaved_1f1b import order as interleaved
from simulator.strategies.pipeline.orders import gpipe_order, one_f_one_b_order, with_few
from simulator.strategies.pipeline.schedule import check


@pytest.mark.parametrize("microbatches", [24, 25, 47, 128])
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_f_one_b_without_the_middle_is_that_of_fewer_microbatches(ranks, microbatches):
    shown = with_few(one_f_one_b_order(ranks, microbatches))
    assert 3 * ranks < shown.microbatches <= 4 * ranks + 1
    assert (microbatches - shown.microbatches) % ranks == 0
    assert shown == one_f_one_b_order(ranks, shown.microbatches)


@pytest.mark.parametrize("per_rank", [1, 2, 4])
def test_interleaved_rounds_of_equal_length(per_rank):
    shown = with_few(interleaved(4, 64, per_rank))
    assert shown.microbatches < 32
    assert shown == interleaved(4, shown.microbatches, per_rank)


@pytest.mark.parametrize("shape", ["straight", "v"])
def test_zero_bubble_begins_and_ends_as_with_all_microbatches(shape):
    whole = zero_bubble.order(8, 96, most_alive=8, shape=shape)
    shown = with_few(whole)
    check(shown)
    assert shown.microbatches < 96
    for own, actions in zip(shown.ranks, whole.ranks, strict=True):
        left_out = 96 - shown.microbatches
        assert own[:4] == actions[:4]
        assert own[-4:] == tuple(action._replace(microbatch=action.microbatch - left_out) for action in actions[-4:])


@pytest.mark.parametrize("schedule", [gpipe_order(4, 64), one_f_one_b_order(4, 12), interleaved(4, 7)])
def test_what_does_not_repeat_itself_stays(schedule):
    assert with_few(schedule) is schedule
