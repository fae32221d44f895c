"""The rule loader: on recordings small enough to work out by hand, and on recorded pairs of traces without and with workers."""

from dataclasses import replace

import pytest

from simulator.plan.bodies.host import Host, Recorded
from simulator.plan.task import Task
from simulator.replay.replay import RecordedStep, Replay, simulate_replay
from simulator.replay.steady import pace_s
from simulator.replay.whatif import loader
from simulator.replay.whatif.loader import WorkerCosts, paced_by_workers, with_workers
from simulator.replay.whatif.ranking import Before, changed_step_s
from simulator.replay.whatif.registry import apply_rules, parse
from simulator.replay.whatif.replayed import ask, ranked, replayed
from tests.support.loader_traces import OF_PAIR
from tests.support.shared_data import shared_folder
from tests.support.small_replays import launched, load_replay, recording, rows
from traces.errors import SchedcastError

IN_MAIN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FROM_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
FREE = WorkerCosts(0.0, 0.0, 0.0, 0.0)


def load(number: int, seconds: float, op: str = IN_MAIN) -> Task:
    return Task(f"load {number}", Host(seconds, "gap", op), "host", 0)


def job(loading: list[float], kernel_s: float, op: str = IN_MAIN) -> Replay:
    """Each step loads, then launches a kernel for one second."""
    tasks = [[load(n, seconds, op), *launched(f"k{n}", kernel_s)] for n, seconds in enumerate(loading)]
    steps = tuple(RecordedStep(f"step {n}", f"k{n}", f"k{n}", 0.0) for n in range(len(loading)))
    replay = recording(*tasks, steps=steps)
    return replace(replay, recorded=simulate_replay(replay))


@pytest.fixture
def free_workers(monkeypatch):
    """Workers cost the main process nothing, so that sums are exact."""
    monkeypatch.setattr(loader, "COSTS", FREE)


def test_a_free_loader_takes_no_time():
    replay = job([5.0] * 4, 2.0)
    assert changed_step_s(replay) == 6.0
    assert changed_step_s(apply_rules(replay, ["loader free"])[0]) == 2.0
    assert changed_step_s(apply_rules(replay, ["loader 2x faster"])[0]) == 3.5


@pytest.mark.parametrize(("workers", "step_s"), [(1, 12.0), (2, 6.0), (3, 4.0), (6, 2.0), (12, 2.0)])
def test_workers_deliver_a_batch_per_loading_time_over_their_number_until_the_gpu_is_slower(workers, step_s):
    assert changed_step_s(with_workers(job([12.0] * 6, 2.0), workers, FREE)) == step_s


def test_what_workers_cost_the_main_process_is_added_once_per_batch():
    """Getting a batch takes a second, its 5 bytes 0.2 s each to unmap and 0.1 s each longer to copy; launches take half as long again."""
    copy = replace(launched("copy", 3.0)[1], body=Recorded("Memcpy HtoD (Pageable -> Device)", "memcpy", 3.0, 5.0))
    replay = recording(load(0, 9.0), [launched("copy", 3.0)[0], copy], launched("k", 2.0), steps=(RecordedStep("step", "copy", "k", 0.0),))
    assert rows(with_workers(replay, 3, WorkerCosts(1.0, 0.2, 0.1, 0.5))) == [
        ("load batch 1", 0.0, 3.0), ("load 0", 3.0, 5.0), ("l.copy", 5.0, 6.5), ("copy", 6.5, 10.0), ("l.k", 6.5, 8.0), ("k", 10.0, 12.0),
    ]  # fmt: skip


def test_pinned_memory_costs_nothing_per_byte():
    copy = replace(launched("copy", 3.0)[1], body=Recorded("Memcpy HtoD (Pinned -> Device)", "memcpy", 3.0, 5.0))
    replay = recording(load(0, 9.0), [launched("copy", 3.0)[0], copy], steps=(RecordedStep("step", "copy", "copy", 0.0),))
    assert rows(with_workers(replay, 9, WorkerCosts(0.0, 0.2, 0.1, 0.0)))[-1] == ("copy", 2.0, 5.0)


def test_workers_make_no_more_than_two_batches_each_ahead():
    after = {task.name: task.after for task in with_workers(job([1.0] * 4, 9.0), 1, FREE).plan.tasks}
    assert [after[f"load batch {number}"] for number in (1, 2, 3, 4)] == [(), (), ("load 0",), ("load 1",)]


def test_workers_that_the_job_waits_for_deliver_faster():
    """A batch every 6 s sets the pace; made in 3 s it still does, made in 1.5 s the kernel of 2 s does."""
    replay = job([5.0] * 5, 2.0, FROM_WORKERS)
    assert changed_step_s(replay) == 6.0
    getting_s = loader.HAND_OVER_S
    assert changed_step_s(apply_rules(replay, ["loader 2x faster"])[0]) == pytest.approx(3.0)
    assert changed_step_s(apply_rules(replay, ["loader 4x faster"])[0]) == pytest.approx(2.0, abs=getting_s)
    with pytest.raises(
        SchedcastError, match="already has workers, whose number is not recorded, and waits 5000 ms for a batch; 'loader 2x faster'"
    ):
        apply_rules(replay, ["loader workers=4"])


def test_a_job_that_waits_for_its_workers_is_no_faster_with_a_faster_host():
    """A batch comes every 6 s. Workers make none earlier because the main process asks earlier; without them all of that is the host's."""
    replay = paced_by_workers(job([5.0] * 5, 2.0, FROM_WORKERS))
    for rule in ("host 2x faster", "host free", "cuda-graph", "kernel:/k/ free"):
        try:
            changed = apply_rules(replay, [rule])[0]
        except SchedcastError:  # a step has one launch
            assert rule == "cuda-graph"
        else:
            assert pace_s(changed) == pytest.approx(6.0)
    assert pace_s(apply_rules(replay, ["loader 2x faster"])[0]) == pytest.approx(3.0)
    assert pace_s(apply_rules(replay, ["loader free"])[0]) == pytest.approx(2.0)
    in_main = job([5.0] * 5, 2.0)
    assert paced_by_workers(in_main) is in_main
    assert pace_s(apply_rules(in_main, ["host 2x faster"])[0]) == pytest.approx(3.0)


def test_workers_whose_batches_are_ready_gain_nothing():
    replay = job([0.01] * 5, 9.0, FROM_WORKERS)
    for rule in ("loader workers=4", "loader 2x faster"):
        with pytest.raises(
            SchedcastError, match=f"{rule} changes nothing: the job already has workers, and gets a batch in 10.0 ms, as if it was ready"
        ):
            apply_rules(replay, [rule])


def test_a_recording_without_a_loader_is_told_so():
    with pytest.raises(SchedcastError, match="the recording names no data loader"):
        apply_rules(recording(launched("k", 1.0)), ["loader free"])


def test_workers_cannot_be_added_twice():
    with pytest.raises(SchedcastError, match="loader changes nothing more"):
        apply_rules(job([5.0] * 4, 2.0), ["loader workers=4", "loader workers=2"])


@pytest.mark.parametrize("text", ["loader", "loader workers", "loader workers=0", "loader workers=2000", "loader workers=x", "loader 2x"])
def test_texts_that_are_no_request_are_refused(text):
    with pytest.raises(SchedcastError, match=r"expected loader workers=4\|2x faster\|free"):
        parse(text)


CASES = shared_folder("cases")


@pytest.mark.skipif(CASES is None, reason="the shared cases are not there")
def test_workers_that_set_the_pace_come_first_in_the_ranking():
    """20 of 30 ms are a wait for worker processes."""
    result = ranked(replayed([CASES / "traces" / "07_workers_are_the_limit.json"]), seconds=600.0)
    steps_s = {answer.rule: answer.step_s for answer in result.ladder}
    assert result.ladder[0].rule == "loader 2x faster"
    assert (steps_s["cuda-graph"], steps_s["host 2x faster"]) == (pytest.approx(30e-3, rel=1e-3), pytest.approx(30e-3, rel=1e-3))


FOLDER = shared_folder("kineto")
PAIRS = pytest.mark.skipif(FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place")
#: The step with four workers, recorded.
MEASURED_S = {"b": 117.0e-3, "c": 174.2e-3}


def without_workers(pair: str) -> str:
    return str(FOLDER / f"v100_resnet50_bs32_nw0_{pair}.json.gz")


@pytest.mark.thorough
@PAIRS
@pytest.mark.parametrize(("pair", "other"), [("b", "c"), ("c", "b")])
def test_four_workers_are_predicted_with_the_costs_of_the_other_pair(pair, other):
    replay = load_replay(without_workers(pair))
    step_s = Before(replay, changed_step_s(replay)).step_after_s(with_workers(replay, 4, OF_PAIR[other]))
    assert step_s == pytest.approx(MEASURED_S[pair], rel=0.035)


@pytest.mark.thorough
@PAIRS
@pytest.mark.parametrize("pair", ["b", "c"])
def test_workers_lead_the_ranking_of_a_recording_that_waits_for_its_loader(pair):
    result = ranked(replayed([without_workers(pair)]), seconds=600.0)  # a busy machine ranks fewer changes in less
    first = result.ladder[0]
    assert (first.rule, result.bounds[0].rule) == ("loader workers=4", "loader free")
    low_s, high_s = first.step_interval_s
    assert low_s < MEASURED_S[pair] < high_s


@pytest.mark.thorough
@PAIRS
def test_a_recording_with_workers_whose_batches_are_ready_is_not_told_to_use_more():
    answer = ask(replayed([str(FOLDER / "v100_resnet50_bs32_nw4_b.json.gz")]), ["loader workers=8"]).what_if.answers[0]
    assert answer.step_s is None
    assert "already has workers, and gets a batch in 1.4" in answer.reason
