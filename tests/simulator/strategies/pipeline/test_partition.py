"""Chains are cut where the longest stage is shortest, and a stage fits its device's memory."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.strategies.pipeline.partition import balanced, balanced_unfolded, in_flight_1f1b, stages_of
from traces.errors import SchedcastError


def every_placement(count: int, stages: int) -> list[tuple[int, ...]]:
    return list(combinations(range(1, count), stages - 1))


def sums(seconds, placement) -> list[float]:
    return [sum(seconds[unit] for unit in stage) for stage in stages_of(placement, len(seconds))]


chains = st.lists(st.integers(0, 20), min_size=1, max_size=9)


def test_the_longest_stage_is_as_short_as_it_can_be():
    assert balanced([1, 2, 3, 4, 5, 6], 3) == (3, 5)  # 6, 9, 6
    assert balanced([9, 1, 1, 1], 2) == (1,)
    assert balanced([1, 1, 1, 9], 2) == (3,)


def test_among_placements_with_the_same_longest_stage_the_most_even_one_is_taken():
    assert balanced([9, 1, 1, 1, 1], 3) == (1, 3)  # 9, 2, 2 rather than 9, 1, 3


def test_among_equally_even_placements_the_earliest_cuts_are_taken():
    assert balanced([0.1] * 7, 3) == (2, 4)  # so that as few weights as possible are stale


def test_one_stage_has_no_cut_and_as_many_stages_as_units_have_all():
    assert balanced([3, 1, 2], 1) == ()
    assert balanced([0, 0, 0], 3) == (1, 2)


@settings(derandomize=True, max_examples=200)
@given(chains, st.data())
def test_no_other_placement_is_better(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    best = min((max(s), sum(x * x for x in s)) for s in (sums(seconds, p) for p in every_placement(len(seconds), stages)))
    chosen = sums(seconds, balanced(seconds, stages))
    assert (max(chosen), sum(x * x for x in chosen)) == pytest.approx(best)


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8), st.data())
def test_unfolded_stages_have_two_accelerators_and_the_last_one_has_one(pairs, data):
    forward, backward = [f for f, _ in pairs], [b for _, b in pairs]
    stages = data.draw(st.integers(1, len(pairs)))

    def cycle(placement) -> float:
        both = list(zip(sums(forward, placement), sums(backward, placement), strict=True))
        return max([max(pair) for pair in both[:-1]] + [sum(both[-1])])

    assert cycle(balanced_unfolded(forward, backward, stages)) == min(map(cycle, every_placement(len(pairs), stages)))


def test_backward_of_twice_the_forward_gains_one_and_a_half_per_pair_at_best():
    """2K + 1 accelerators: the bound 1.5 K + 1 of PAPERS, reached by a chain fine enough."""
    for pairs in (1, 2, 3):
        units = 3 * pairs + 2
        placement = balanced_unfolded([1.0] * units, [2.0] * units, pairs + 1)
        spans = stages_of(placement, units)
        cycle = max([2.0 * len(span) for span in spans[:-1]] + [3.0 * len(spans[-1])])
        assert 3.0 * units / cycle == pytest.approx(1.5 * pairs + 1)


@pytest.mark.parametrize(
    ("stages", "said"), [(4, "cannot cut 3 units into 4 stages: take at most 3"), (0, "0 stages: a pipeline has at least 1")]
)
def test_a_number_of_stages_that_cannot_be(stages, said):
    with pytest.raises(SchedcastError, match=said):
        balanced([1, 1, 1], stages)


@pytest.mark.parametrize(
    ("placement", "said"),
    [((0,), "out of range: a cut lies after one of the units 1 to 4 of 5"), ((5,), "out of range"), ((-1, 2), "out of range"),
     ((3, 2), "out of order"), ((2, 2), "out of order")],
)  # fmt: skip
def test_a_vector_that_is_no_placement(placement, said):
    with pytest.raises(SchedcastError, match=said):
        stages_of(placement, 5)


def test_a_placement_names_each_stages_units():
    assert stages_of((2, 3), 5) == (range(2), range(2, 3), range(3, 5))
    assert stages_of((), 2) == (range(2),)


def test_first_stages_keep_more_micro_batches():
    assert in_flight_1f1b(4, 8) == (4, 3, 2, 1)
    assert in_flight_1f1b(4, 2) == (2, 2, 2, 1)


def test_thousands_of_units_are_no_matter():
    seconds = np.random.default_rng(0).uniform(0.1, 1, 2000)
    placement = balanced(seconds, 16)
    assert max(sums(seconds, placement)) <= sum(seconds) / 16 + 1
