"""Searches: the best plan where it is known, the same answer whatever is pruned and whoever evaluates, and what is kept of a search."""

import subprocess
import sys
from dataclasses import replace
from math import inf

import psutil
import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import answer
from simulator.predict.search.evaluation import evaluate, evaluate_packed
from simulator.predict.search.ranking import rank
from simulator.predict.search.search import Cache, candidates, search
from simulator.predict.search.setup import CapturedJob, GraphMissingError, Setup, measured_job
from simulator.predict.search.workers import workers
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support.applicable import core_groups
from tests.support.places import ROOT
from tests.support.refusals import refuses
from traces.documents.measured_step import MeasuredStep, step_name
from traces.documents.profile import Identity, Profile
from traces.documents.search_result import SearchResult
from traces.errors import Code, UnknownNameError

JOB = Job("tests/support/mlp.py:make", 16)
#: A part of what the strategies offer, of every kind.
NAMES = ("baseline", "backward-fusion", "turbodl", "gpipe", "data-parallel", "pipedream")
TEXTS = ("baseline", "turbodl", "gpipe", "gpipe:microbatches=2", "data-parallel", "data-parallel:bucket=1,priorities=on", "pipedream")


def setup_on(machine: Machine, job: Job = JOB) -> Setup:
    return Setup(job, Target.of(CostModel(machine)))


@pytest.fixture(scope="module")
def setup():
    """Two cores that exchange a gigabyte per second."""
    return setup_on(core_groups(2, link_bytes_per_s=1e9))


def here(calls):
    """Evaluate in this process."""
    return (function(*arguments) for function, arguments in calls)


@pytest.fixture(scope="module")
def everything(setup):
    """A search that prunes nothing."""
    return search(setup, candidates(setup, NAMES), here, prune=False)


def test_candidates_are_what_the_strategies_offer_the_defaults_first(setup):
    texts = candidates(setup)
    count = len(strategies.names(2))
    assert texts[:count] == strategies.names(2)
    assert len(texts) == len(set(texts)) > 60
    assert {"turbodl:fuse=backward", "data-parallel:update=forward-fusion", "data-parallel:update=backward-fusion,priorities=on"} <= {
        *texts
    }
    assert candidates(setup, ["gpipe", "turbodl:alpha=2"])[:2] == ["gpipe", "turbodl:alpha=2"]
    assert candidates(setup, ["turbodl:alpha=2"]) == ["turbodl:alpha=2"]
    assert len(candidates(replace(setup, job=Job("resnet50", 32)))) >= 100
    one = candidates(setup_on(core_groups(1)))
    assert {text.partition(":")[0] for text in one} == set(strategies.names(1))


def test_two_devices_win_over_a_fast_link_and_lose_over_a_slow_one():
    wide = Job("tests/support/mlp.py:make", 4096)
    texts = ["baseline", "data-parallel"]
    fast = rank(search(setup_on(core_groups(2, link_bytes_per_s=1e15), wide), texts, here)).result
    slow = rank(search(setup_on(core_groups(2, link_bytes_per_s=1e3), wide), texts, here)).result
    assert (fast.best, slow.best) == ("data-parallel", "baseline")
    assert slow.pruned == () or slow.pruned[0].bound_by == "links"
    (far,) = [plan for plan in fast.plans if plan.plan == "baseline"]
    assert far.behind == far.step_s / fast.winner.step_s > 1


@pytest.mark.thorough
def test_pruning_never_changes_the_best_plan(setup, everything):
    pruned = search(setup, candidates(setup, NAMES), here)
    both = rank(pruned).result, rank(everything).result
    assert both[0].best == both[1].best
    assert both[0].winner.step_s == both[1].winner.step_s == min(plan.step_s for plan in both[1].fitting)
    assert both[0].pruned
    assert not both[1].pruned
    steps = {plan.plan: plan.step_s for plan in both[1].plans}
    assert all(plan.bound_s <= steps[plan.plan] * 1.002 for plan in both[0].pruned)
    assert all(steps[plan.plan] >= both[0].winner.step_s for plan in both[0].pruned)
    assert all(plan.bound_s == pytest.approx(plan.over * steps[plan.beaten_by]) and plan.over > 1 for plan in both[0].pruned)


@pytest.mark.thorough
def test_the_answer_is_the_same_to_the_bit_in_one_process_and_in_two(setup):
    alone = search(setup, TEXTS, here)
    with workers(2) as run:
        shared = search(setup, TEXTS, run)
    assert rank(alone).result.document() == rank(shared).result.document()
    assert all(a == b for a, b in zip(alone.evaluations, shared.evaluations, strict=True))


def test_probabilities_add_up_and_intervals_are_paired(everything):
    result = rank(everything).result
    assert sum(plan.probability for plan in result.plans) == pytest.approx(1)
    assert result.winner.behind == 1
    assert result.winner.verdict is None
    for plan in result.fitting[1:]:
        assert plan.behind_interval[0] <= plan.behind <= plan.behind_interval[1]
        assert plan.interval_s[0] <= plan.step_s <= plan.interval_s[1]
    assert result.bound_s <= result.winner.step_s * 1.002
    assert result.gap == result.winner.step_s / result.bound_s - 1
    assert sum(change.seconds for change in result.waterfall) == pytest.approx(result.winner.step_s - result.baseline_step_s)


def test_a_search_has_the_loops_that_people_run():
    """Their predictions are those of `predict`."""
    two = load_machine("2xh100")
    result = rank(search(setup_on(two), ["data-parallel"], here)).result
    steps = {text: answer(JOB, text, Target.of(CostModel(two))).timeline.step_s for text in ("pytorch-ddp", "pytorch-fsdp")}
    assert {loop.strategy: loop.step_s for loop in result.parallel} == steps
    assert rank(search(setup_on(load_machine("h100")), ["turbodl"], here)).result.parallel == ()


def test_a_row_has_the_step_and_the_interval_of_a_prediction():
    """Of processes on several GPUs too, whose steps vary more than those of one."""
    own = setup_on(load_machine("2xh100"))
    predicted = answer(own.job, "data-parallel", own.target)
    row = evaluate(own, "data-parallel").result
    assert (row.step_s, row.interval_s) == (predicted.timeline.step_s, predicted.interval_s)


def test_equal_plans_are_a_tie(setup):
    result = rank(search(setup, ["data-parallel", "data-parallel:bucket=100"], here)).result
    assert result.plans[1].behind_interval == (1.0, 1.0)
    assert result.plans[1].verdict == "same"
    assert [plan.probability for plan in result.plans] == [0.5, 0.5]
    assert [plan.tied for plan in result.plans] == [False, True]


def test_plans_beyond_the_memory_come_last_with_the_reason(setup):
    needs = {each.text: each.simulated.memories[0].needed_bytes for each in search(setup, TEXTS, here, prune=False).evaluations}
    least = min(needs.values())
    small = setup_on(setup.target.machine.with_memory_limit(least))
    result = rank(search(small, TEXTS, here, prune=False)).result
    assert {plan.plan for plan in result.fitting} == {text for text, needed in needs.items() if needed == least}
    assert "too much" in result.plans[-1].why_not
    assert not result.plans[-1].fits
    none = rank(search(setup_on(setup.target.machine.with_memory_limit(1000)), TEXTS, here)).result
    assert (none.best, none.winner, none.bound_s, none.gap) == (None, None, None, None)


def test_a_candidate_that_cannot_be_planned_says_why(setup):
    job = replace(JOB, batch=15)
    answered = search(setup_on(setup.target.machine, job), ["baseline", "data-parallel", "gpipe:microbatches=2"], here)
    assert [plan.plan for plan in rank(answered).result.refused] == ["data-parallel", "gpipe:microbatches=2"]
    assert [each.refusal.code for each in answered.evaluations if each.refusal] == [Code.BATCH, Code.BATCH]


def test_the_models_own_code_runs_in_this_process_alone(setup):
    shipped = setup.captured([setup.first])
    assert isinstance(shipped.job, CapturedJob)
    with pytest.raises(GraphMissingError):
        evaluate(shipped, "gpipe:microbatches=2")
    assert evaluate_packed(shipped.packed(), "gpipe:microbatches=2", inf) == (8, 2, False)


def test_a_second_search_finds_everything_in_the_cache(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    first = search(setup, TEXTS, here, cache=Cache(setup.digest))

    def nobody(calls):
        raise AssertionError(calls)

    again = search(setup, TEXTS, nobody, cache=Cache(setup.digest))
    assert rank(again).result.document() == rank(first).result.document()
    entry = next(tmp_path.rglob("*.json.gz"))
    entry.write_bytes(entry.read_bytes()[:40])
    repaired = search(setup, TEXTS, here, cache=Cache(setup.digest))
    assert rank(repaired).result.document() == rank(first).result.document()
    assert (
        replace(setup, target=replace(setup.target, mode="graph")).digest
        != setup.digest
        != setup_on(setup.target.machine.with_memory_limit(2e9)).digest
    )


def test_ctrl_c_keeps_what_was_evaluated(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    done = []

    def pressed(number, total, text):
        done.append(text)
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(setup, TEXTS, here, pressed, cache=Cache(setup.digest))
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert not any(name.startswith(".") for name in files)
    assert [Cache(setup.digest).load(text) is not None for text in TEXTS] == [text in done for text in TEXTS]


def test_the_document_goes_to_a_file_and_back(everything, tmp_path):
    result = rank(everything).result
    assert SearchResult.load(result.save(tmp_path / "search.json.gz")) == result
    document = result.document()
    assert document["schema"] == "schedcast.search/1"
    assert {"strategy", "options", "step_s", "interval_s", "peak_bytes", "fits", "speedup"} <= document["plans"][0].keys()
    assert document["best"] == document["plans"][0]["plan"]


def test_unknown_strategies_and_clusters_are_refused(setup):
    with pytest.raises(UnknownNameError, match="did you mean 'gpipe'"):
        candidates(setup, ["gpipes"])
    with refuses(Code.REQUEST, r"--cluster tcp://127\.0\.0\.1:1"), workers(1, "tcp://127.0.0.1:1"):
        pass


@pytest.fixture(scope="module")
def cluster():
    """The address of a Dask scheduler on this machine with two workers; skips without Dask."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'schedcast[cluster]'")
    code = (
        "import sys; from distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    c = LocalCluster(n_workers=2, threads_per_worker=1, host='127.0.0.1', dashboard_address=None)\n"
        "    print(c.scheduler_address, flush=True); sys.stdin.read(); c.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def test_a_dask_cluster_gives_the_same_answer_to_the_bit(setup, cluster):
    with workers(1, cluster) as run:
        shared = search(setup, TEXTS, run)
    assert rank(shared).result.document() == rank(search(setup, TEXTS, here)).result.document()


#: Asks for one call, so that one of the two processes gets none, and prints the processes that are there.
ONE_CALL = """
import os, time, psutil
from simulator.predict.search.workers import workers
with workers(2) as run:
    list(run([(os.getpid, ())]))
    print(*(process.pid for process in psutil.Process().children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.thorough
def test_processes_end_when_the_one_that_started_them_is_killed():
    with subprocess.Popen([sys.executable, "-c", ONE_CALL], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
    assert len(children) >= 2
    assert not alive


def test_what_was_measured_of_this_very_job_stands_in_the_ranking(two_cores):
    """Steps of another batch, optimizer or plan do not count, nor those of several devices."""
    own = MeasuredStep(step_s=0.5, against_pytorch=0.7, against_pytorch_interval=(0.6, 0.8), date="2026-01-31")
    steps = {
        step_name(measured_job(job, "eager", 1), strategy, options): own.model_copy(update={"step_s": step_s})
        for job, strategy, options, step_s in (
            (JOB, "pytorch", {}, 0.4), (JOB, "baseline", {}, 0.5), (replace(JOB, batch=8), "backward-fusion", {}, 0.1),
            (replace(JOB, optimizer="sgd"), "forward-fusion", {}, 0.1),
        )
    }  # fmt: skip
    profile = Profile(identity=Identity(kind="cpu", cores=2), steps=steps)
    setup = Setup(JOB, Target.of(CostModel(two_cores, profile)))
    result = rank(search(setup, ["baseline", "backward-fusion", "forward-fusion"], here)).result
    assert {plan.strategy: plan.measured and plan.measured.step_s for plan in result.plans} == {
        "baseline": 0.5, "backward-fusion": None, "forward-fusion": None,
    }  # fmt: skip
    assert (result.pytorch.measured.step_s, result.pytorch.step_s) == (0.4, result.pytorch_step_s)
    assert result.pytorch.interval_s[0] < result.pytorch.step_s < result.pytorch.interval_s[1]
    assert SearchResult.model_validate(result.document()) == result
    assert measured_job(JOB, "eager", 2) == ""
