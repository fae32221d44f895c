"""Many ranks of one job: those that are replayed, and what is kept of the others."""

import gc

import pytest

from simulator.replay import ranks
from simulator.replay.diff.stragglers import stragglers
from simulator.replay.ranks import choose, lateness, read_ranks
from simulator.replay.whatif.replayed import replayed
from tests.support.small_traces import rank
from traces.formats.reading import load_ranks
from traces.formats.recording import COLLECTIVE, Recording, Work

#: When each of sixteen ranks arrives at their collective, in microseconds: ranks 5 and 11 are late.
ARRIVALS = [95.0 if number == 5 else 85.0 if number == 11 else 40.0 + number for number in range(16)]


@pytest.fixture
def traces(tmp_path):
    return [rank(number, arrive).save(tmp_path / f"rank{number}.json") for number, arrive in enumerate(ARRIVALS)]


def collective(start_s: float, end_s: float) -> Work:
    return Work("nccl", COLLECTIVE, 0, 0, start_s, end_s)


def test_lateness_counts_from_the_median_rank_on_one_clock():
    own = [[collective(1.0, 5.0)], [collective(3.0, 5.0)], [collective(14.0, 15.0)]]
    assert lateness(own, [0.0, 0.0, -10.0]) == [0.0, 0.0, 1.0]


def test_the_latest_ranks_and_some_of_the_others_are_replayed():
    late = [float(number) for number in range(40)]
    assert choose(late) == [0, 9, 18, 27, 36, 37, 38, 39]


def test_up_to_eight_ranks_are_all_replayed(traces):
    recordings, notes = read_ranks(traces[:8])
    assert ([recording.rank for recording in recordings], notes) == (list(range(8)), ())


def test_of_many_ranks_those_that_others_wait_for_are_replayed_with_what_they_cost(traces):
    recorded = replayed(traces)
    assert recorded.result.notes[0] == (
        "16 ranks read, 8 of them replayed: those that arrive at collectives last, in all of the recording later than the median rank"
        " (rank 5 by 0.0465 ms, 11 by 0.0365 ms, 15 by 0.0065 ms), and 5 that stand for the others"
    )
    costs = {cost.rank: cost.seconds for cost in stragglers(recorded) if cost.kind is None and cost.rank is not None}
    assert len(costs) == 8
    assert max(costs, key=costs.__getitem__) == 5


def test_memory_does_not_grow_with_the_number_of_ranks(traces, monkeypatch):
    alive = []

    def load(path):
        alive.append(sum(type(each) is Recording for each in gc.get_objects()))
        return load_ranks(path)

    monkeypatch.setattr(ranks, "load_ranks", load)
    read_ranks(traces)
    assert len(alive) == 16 + 8
    assert max(alive[:16]) <= 1
    assert max(alive) <= 8
