"""Chains are cut where the longest stage is shortest, and a stage fits its device's memory."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.stages.partition import Load, balanced, balanced_unfolded, fitting, in_flight_1f1b, in_flight_gpipe, stage_bytes, stages_of
from traces.errors import StepcastError

KB = 1000


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
    with pytest.raises(StepcastError, match=said):
        balanced([1, 1, 1], stages)


@pytest.mark.parametrize(
    ("placement", "said"),
    [((0,), "out of range: a cut lies after one of the units 1 to 4 of 5"), ((5,), "out of range"), ((-1, 2), "out of range"),
     ((3, 2), "out of order"), ((2, 2), "out of order")],
)  # fmt: skip
def test_a_vector_that_is_no_placement(placement, said):
    with pytest.raises(StepcastError, match=said):
        stages_of(placement, 5)


def test_a_placement_names_each_stages_units():
    assert stages_of((2, 3), 5) == (range(2), range(2, 3), range(3, 5))
    assert stages_of((), 2) == (range(2),)


def loads(*rows: tuple[float, int, int]) -> list[Load]:
    """Seconds, kilobytes of state, kilobytes of activations per micro-batch."""
    return [Load(seconds, state * KB, activations * KB) for seconds, state, activations in rows]


def test_first_stages_keep_more_micro_batches():
    assert in_flight_1f1b(4, 8) == (4, 3, 2, 1)
    assert in_flight_1f1b(4, 2) == (2, 2, 2, 1)
    assert in_flight_gpipe(4, 8) == (8, 8, 8, 8)


def test_memory_moves_a_cut_away_from_balance():
    chain = loads((1, 1, 5), (1, 1, 5), (1, 1, 1), (1, 1, 1))
    assert fitting(chain, 2, 30 * KB, in_flight_1f1b(2, 8)) == (2,)  # the first stage: 2 + 2 x 10 = 22
    assert fitting(chain, 2, 20 * KB, in_flight_1f1b(2, 8)) == (1,)  # 1 + 2 x 5 = 11, and 3 + 7
    assert stage_bytes(chain, (1,), in_flight_1f1b(2, 8)) == (11 * KB, 10 * KB)


def test_a_stage_also_keeps_what_it_receives_and_further_versions_of_its_weights():
    chain = [Load(1, 10, 100, parameter_bytes=4, output_bytes=1000), Load(1, 20, 200, parameter_bytes=5)]
    assert stage_bytes(chain, (1,), (2, 1)) == (10 + 2 * 100, 20 + 200 + 1000)
    assert stage_bytes(chain, (1,), (2, 1), versions=(3, 1)) == (10 + 2 * 100 + 2 * 4, 20 + 200 + 1000)


def test_a_refusal_names_the_smallest_limit_that_fits():
    chain = loads((1, 1, 5), (1, 1, 5), (1, 1, 1), (1, 1, 1))
    with pytest.raises(
        StepcastError, match=r"no cut into 2 stages fits 9.77 KiB a device: the smallest limit that fits is 10.7 KiB \(11,000 bytes\)"
    ):
        fitting(chain, 2, 10 * KB, in_flight_1f1b(2, 8))
    assert fitting(chain, 2, 11 * KB, in_flight_1f1b(2, 8)) == (1,)


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(*[st.integers(0, 9)] * 5), min_size=2, max_size=7), st.integers(1, 4), st.integers(0, 200), st.data())
def test_no_other_placement_that_fits_is_better(rows, microbatches, memory_bytes, data):
    chain = [Load(*row) for row in rows]
    stages = data.draw(st.integers(1, len(chain)))
    in_flight, versions = in_flight_1f1b(stages, microbatches), in_flight_1f1b(stages, stages)
    needs = {p: max(stage_bytes(chain, p, in_flight, versions)) for p in every_placement(len(chain), stages)}
    times = {p: max(sums([load.seconds for load in chain], p)) for p, need in needs.items() if need <= memory_bytes}
    if times:
        chosen = fitting(chain, stages, memory_bytes, in_flight, versions)
        assert chosen in times
        assert times[chosen] == min(times.values())
    else:
        with pytest.raises(StepcastError, match=rf"\({min(needs.values()):,} bytes\)"):
            fitting(chain, stages, memory_bytes, in_flight, versions)


def test_thousands_of_units_are_no_matter():
    seconds = np.random.default_rng(0).uniform(0.1, 1, 2000)
    placement = balanced(seconds, 16)
    assert max(sums(seconds, placement)) <= sum(seconds) / 16 + 1
