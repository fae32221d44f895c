"""Many ranks of one job: those that are replayed, and what is kept of the others."""

import gc

import pytest

from simulator.replay import ranks
from simulator.replay.diff.stragglers import stragglers
from simulator.replay.ranks import choose, lateness, read_ranks
from simulator.replay.whatif.replayed import replayed
from tests.support.shared_data import shared_folder
from tests.support.small_traces import rank
from tests.support.training_traces import TrainingJob, write_ranks
from traces.formats.reading import load_ranks
from traces.formats.recording import COLLECTIVE, Recording, Work
from ui.present.replays import headline, words

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
    costs = {cost.rank: cost.seconds for cost in stragglers(recorded.replay) if cost.kind is None and cost.rank is not None}
    assert len(costs) == 8
    assert max(costs, key=costs.__getitem__) == 5


def blamed(traces) -> list[str]:
    """What is said of the ranks, and of the median step."""
    recorded = replayed(traces)
    step_s = recorded.result.gpu_period_simulated_s
    return [*words(stragglers(recorded.replay), step_s), headline(recorded.result)]


@pytest.mark.parametrize("ahead", [0.0, 50.0, 500.0, 20_000.0, 3e6])
def test_ranks_on_clocks_apart_get_the_answers_of_one_clock(tmp_path, ahead):
    traces = write_ranks(tmp_path, [TrainingJob(), TrainingJob(forward=300.0)], ahead=ahead)
    assert blamed(traces) == [
        "With the median rank's times on rank 1 alone, a step would be 0.300 ms shorter (17.5 %): kernels 0.300.",
        "The GPU waits for other ranks 8.7 % of the median step. All wait for rank 1: 0.150 of these 0.150 ms.",
    ]
    notes = replayed(traces).result.notes
    assert "4 collectives joined between ranks, 0 without a partner" in notes
    assert any("rank 1's is" in note and "ahead of rank 0's (4 collectives" in note for note in notes) == (ahead > 0)


def test_what_ranks_wait_for_is_doubted_if_their_collectives_have_no_partners(tmp_path):
    """The two are of different runs, so that no one time brings the ends of their collectives together."""
    runs = []
    for loader in (100.0, 300.0):
        (tmp_path / f"{loader}").mkdir()
        runs.append(write_ranks(tmp_path / f"{loader}", [TrainingJob(loader=loader)] * 2))
    doubt = "What ranks wait for is not certain: 8 of 8 collectives have no partner on another rank, so their clocks may be apart. The GPU"
    assert doubt in blamed([runs[0][0], runs[1][1]])[-1]


@pytest.mark.skipif(not shared_folder("cases"), reason="no shared/data/cases beside the repository")
@pytest.mark.parametrize("apart", ["0ms", "0.5ms", "20ms"])
def test_the_rank_that_is_waited_for_does_not_depend_on_the_clocks(apart):
    traces = [shared_folder("cases") / "traces" / f"01_skew_{apart}_rank{number}.json.gz" for number in range(2)]
    assert blamed(traces) == [
        "With the median rank's times on rank 1 alone, a step would be 0.850 ms shorter (8.9 %): kernels 0.850.",
        "The GPU computes 94.5 % of the median step: what helps is faster kernels.",
    ]


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
