"""Runs of tasks that share nothing take no events. That changes nothing: `simulate(..., merge=False)` is the oracle."""

from heapq import heappop

import pytest

from simulator.engine import clock
from simulator.engine.simulation import Simulation, simulate, simulated_step_s
from simulator.plan.dependencies import Dependencies
from tests.support.random_runs import random_run
from tests.support.reference_engine import Reference, long_run_step_s, random_small_run
from tests.support.tiny import build, chain, cpu, gpu, host, task

# The engine against a second one that shares no code with it (`reference_engine`), on random plans.


@pytest.mark.parametrize("seed", range(20))
def test_a_run_takes_as_long_as_in_the_reference(seed):
    run = random_small_run(seed)
    if run is not None:
        plan, machine, costs = run
        seconds = 3 * simulate(plan, machine, costs, iterations=3, use_cache=False).step_s
        assert seconds == pytest.approx(Reference(plan, machine, costs, 3).seconds, rel=1e-7)


def test_a_settled_step_is_that_of_a_long_run_of_the_reference():
    """`python -m tests.benchmarks settle` tries many more plans, and larger ones, in longer runs."""
    settled = tried = 0
    for seed in range(14):
        run = random_small_run(seed, tasks=5)
        if run is not None:
            timeline = simulate(*run, use_cache=False)
            tried += 1
            settled += timeline.settled
            assert not timeline.settled or timeline.step_s == pytest.approx(long_run_step_s(*run, 16), rel=0.02), f"seed {seed}"
    assert settled >= 0.9 * tried


def both(run):
    """The timeline of a run with merging and without."""
    return (simulate(run.plan, run.machine, run.costs, merge=merge, **run.options) for merge in (True, False))


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_merging_changes_no_bit_of_any_timeline(first):
    """Spans, step time, memory, busy shares and the critical path with its causes, of plans that use every mechanism of the engine."""
    for seed in range(first, first + 20):
        merged, plain = both(random_run(seed))
        assert merged == plain, f"seed {seed}"


def test_the_random_runs_use_every_mechanism():
    runs = [random_run(seed) for seed in range(300)]
    bodies = {task.body.kind for run in runs for task in run.plan.tasks}
    assert {"op", "copy", "collective", "host"} <= bodies
    assert {run.options["mode"] for run in runs} == {"eager", "graph"}
    causes = {span.cause.value for run in runs for span in next(both(run)).critical_path}
    assert causes == {"dependency", "lane", "launch", "link", "sms", "start"}


def events(plan, machine, costs, monkeypatch, **options):
    """Events that a simulation processes."""
    count = 0

    def counted(queue):
        nonlocal count
        count += 1
        return heappop(queue)

    with monkeypatch.context() as patch:
        patch.setattr(clock, "heappop", counted)
        Simulation(plan, machine, costs, "eager", None, Dependencies(plan), True, None, **options).play()
    return count


@pytest.mark.parametrize("machine", [cpu(), gpu(host=host(dispatch_s=0.25, queue_depth=4)), gpu(host=host(dispatch_s=2.0))])
def test_a_lane_by_itself_takes_few_events_per_period(machine, monkeypatch):
    plan, costs = chain(*[1.0] * 200)
    assert events(plan, machine, costs, monkeypatch) < 10
    assert events(plan, machine, costs, monkeypatch, merge=False) >= 600, "three periods of 200 tasks"


def test_a_task_that_another_lane_waits_for_does_not_end_the_run(monkeypatch):
    """Two devices, and a hundred tasks on each, the middle one of which waits for the other device."""
    timed = [task(f"p{i}", 1.0, reads=f"p{i - 1}" if i else "x", writes=f"p{i}", on="p") for i in range(100)]
    timed += [task(f"q{i}", 1.0, reads="p49" if i == 50 else f"q{i - 1}" if i else "z", writes=f"q{i}", on="q") for i in range(100)]
    plan, costs = build(*timed)
    assert events(plan, gpu("p", "q"), costs, monkeypatch) < 20
    merged, plain = (simulate(plan, gpu("p", "q"), costs, merge=merge) for merge in (True, False))
    assert merged == plain


def test_a_lane_that_is_ahead_leaves_nothing_behind_when_the_simulation_stops():
    """The first device could go on for ever. What it would start after the last period that counts is no part of the timeline."""
    plan, costs = build(task("load", 0.001, reads="x", writes="b", on="p"), task("train", 1.0, reads="q", mutates="w", on="q"))
    timeline = simulate(plan, cpu("p", "q"), costs)
    assert max(span.start_s for span in timeline.spans) < timeline.window_s[1]


def test_an_instant_has_one_outcome_whatever_ends_first():
    """Both producers end at 2.0: the one that is issued last is the one that the reader waited for, however they are ordered in time."""
    first, second = task("a", 2.0, reads="x", writes="y", stream=1), task("b", 1.0, reads="x", writes="v", stream=2)
    third, reader = task("c", 1.0, reads="v", writes="z", stream=2), task("d", 1.0, reads="y z", writes="q", stream=0)
    for timed in ([first, second, third, reader], [second, third, first, reader]):
        plan, costs = build(*timed)
        path = simulate(plan, cpu(cores=3), costs, iterations=1).critical_path
        assert path[-2].task == timed[2].task.name


def test_a_launch_that_came_in_time_is_not_what_a_task_waited_for():
    """The host blocks on the full queue of s0 to s7, and s0 ends at 0.75, so `b` is launched at 1.0, whenever the engine computes that."""
    plan, costs = build(
        task("a", 1.5, reads="x", writes="y", stream=1),
        *(task(f"s{i}", 0.5, reads="x", writes=f"v{i}") for i in range(9)),
        task("b", 9.0, reads="x", writes="z", stream=1),
    )
    path = simulate(plan, gpu(sms=40, host=host(dispatch_s=0.125, queue_depth=8)), costs, iterations=1).critical_path
    assert [(span.task, span.start_s, span.cause.value) for span in path[-2:]] == [("a", 0.125, "launch"), ("b", 1.625, "lane")]


def test_the_step_time_alone_is_that_of_the_timeline():
    plan, costs = build(task("a", 1.5, reads="x", writes="y"), task("b", 1.0, reads="x", writes="z", stream=1))
    assert simulated_step_s(plan, cpu(cores=2), costs) == simulate(plan, cpu(cores=2), costs).step_s
