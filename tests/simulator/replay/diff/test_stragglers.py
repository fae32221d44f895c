"""What each rank and each kind of work costs a job of several ranks."""

from dataclasses import replace

import pytest

from simulator.replay.diff.run import KERNELS, PYTHON
from simulator.replay.diff.stragglers import START, stragglers
from simulator.replay.whatif.replayed import replayed
from tests.support.shared_data import shared_folder
from tests.support.training_traces import TrainingJob, write_ranks
from ui.present import replays as words

JOB = TrainingJob()
SLOW = replace(JOB, backward=(("wgrad_a", 150.0), ("wgrad_b", 150.0), ("wgrad_c", 300.0)))


def costs(tmp_path, *jobs):
    """Costs in microseconds by rank and kind, without those of nothing."""
    result = stragglers(replayed(write_ranks(tmp_path, list(jobs))).replay)
    return {(cost.rank, cost.kind): round(cost.seconds * 1e6, 3) for cost in result if round(cost.seconds * 1e6, 3)}


def test_a_rank_with_a_slow_kernel_costs_the_others_what_it_is_slower(tmp_path):
    assert costs(tmp_path, JOB, JOB, SLOW, JOB) == {(2, KERNELS): 50.0, (2, None): 50.0, (None, KERNELS): 50.0, (None, None): 50.0}


def test_of_two_ranks_the_slower_one_is_the_straggler(tmp_path):
    assert costs(tmp_path, SLOW, JOB) == {(0, KERNELS): 50.0, (0, None): 50.0, (None, KERNELS): 50.0, (None, None): 50.0}


def test_a_rank_that_loads_data_slowly(tmp_path):
    slow = costs(tmp_path, JOB, replace(JOB, loader=170.0), JOB)
    assert slow == {(1, PYTHON): 70.0, (1, None): 70.0, (None, PYTHON): 70.0, (None, None): 70.0}


def test_two_slow_ranks_cost_something_only_together(tmp_path):
    slow = costs(tmp_path, JOB, SLOW, SLOW, JOB, JOB)
    assert slow == {(None, KERNELS): 50.0, (None, None): 50.0}


def test_equal_ranks_cost_nothing_and_one_rank_has_no_others(tmp_path):
    assert costs(tmp_path, JOB, JOB) == {}
    assert stragglers(replayed(write_ranks(tmp_path, [JOB])).replay) == ()


def test_the_sentence_names_the_rank_and_the_kind(tmp_path):
    recorded = replayed(write_ranks(tmp_path, [JOB, JOB, replace(SLOW, loader=160.0)]))
    step_s = recorded.result.gpu_period_simulated_s
    assert words.words(stragglers(recorded.replay), step_s) == [
        f"With the median rank's times on rank 2 alone, a step would be 0.110 ms shorter ({100 * 110e-6 / step_s:.1f} %):"
        " Python between launches 0.06, kernels 0.05."
    ]
    assert [row["rank"] for row in words.cells(stragglers(recorded.replay))] == ["0", "1", "2", "all ranks"]
    equal = stragglers(replayed(write_ranks(tmp_path, [JOB, JOB])).replay)
    assert words.words(equal, step_s)[0].startswith("No rank alone costs the others more than 0.0")


FOLDER = shared_folder("kineto")


@pytest.mark.skipif(FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
def test_the_rank_of_a_real_job_that_begins_its_step_late():
    """Both ranks leave the first collective at the same time; rank 0 begins its step 5.5 ms later than rank 1."""
    recorded = replayed([FOLDER / f"v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    late = {(cost.rank, cost.kind): cost.seconds for cost in stragglers(recorded.replay)}
    assert late[0, START] == pytest.approx(5.5e-3, rel=0.02)
    assert late[0, None] == pytest.approx(late[0, START], rel=0.02)
    assert abs(late[1, None]) < 1e-5


MORE = shared_folder("kineto_more")


@pytest.mark.thorough
@pytest.mark.skipif(MORE is None, reason="no shared/data/kineto_more beside the repository; SCHEDCAST_SHARED may name another place")
def test_the_rank_that_all_wait_for_is_in_the_first_line():
    """Its collectives take 23 ms in all, because it comes last to them; those of the others 48 to 59 ms."""
    result = replayed([MORE / f"h100_nanogpt_compiled_rank{rank}of8.json.gz" for rank in (0, 1, 3)]).result
    first = words.headline(result)
    assert first.startswith("The GPU waits for other ranks")
    assert "All wait for rank 1: " in first
    for step in result.steps[1:]:
        assert step.ranks[0].rank == 1
        assert step.ranks[0].seconds > 0.8 * sum(each.seconds for each in step.ranks)
