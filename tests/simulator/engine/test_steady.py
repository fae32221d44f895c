"""The steady state: schedules that repeat themselves after one period or more, leads that hide it, and long runs of what never repeats."""

from dataclasses import replace

import pytest

from simulator.engine.capacity import sharing_lanes
from simulator.engine.simulation import simulate
from simulator.engine.steady import FEWEST, LongRun, long_run
from simulator.machine.machine import Link
from tests.support.tiny import build, chain, copy, cpu, gpu, task


def test_a_chain_repeats_itself_at_once():
    plan, costs = chain(1.0, 2.0)
    timeline = simulate(plan, cpu(), costs)
    assert (timeline.step_s, timeline.settled, timeline.period_lengths_s, timeline.window_s) == (3.0, True, (3.0,) * 3, (6.0, 9.0))


def test_a_schedule_may_repeat_itself_after_two_periods():
    """Every second period begins with a and c at once: u, which a reads, works on the iteration before the last one, and takes 3 s."""
    plan, costs = build(task("a", 1.0, reads="x w", writes="y", on="p"), task("u", 3.0, reads="y", mutates="w", on="q", lag=2))
    timeline = simulate(plan, gpu("p", "q"), costs)
    assert (timeline.step_s, timeline.settled) == (simulate(plan, gpu("p", "q"), costs, iterations=200).step_s, True)


def test_a_lead_that_lasts_for_many_periods_does_not_hide_the_slower_lane():
    """z ends last for 400 periods, because y takes 5 s before it in the first; but p needs 1 % longer for a period than q and r."""
    plan, costs = build(
        task("a", 1.01, mutates="w1", on="p"), task("y", 1.0, writes="v", on="q"), task("z", 1.0, reads="v", mutates="w2", on="r", lag=5)
    )
    timeline = simulate(plan, gpu("p", "q", "r"), costs)
    assert (timeline.step_s, timeline.settled) == (pytest.approx(1.01), True)
    assert set(timeline.period_lengths_s[-3:]) != {1.01}


def test_periods_of_equal_length_prove_nothing():
    """The urgent lane runs ahead: periods of the other one are equal, first beside it and then alone. A long run has both."""
    plan, costs = build(
        task("urgent", 1.0, stream=1, priority=-1, grid=5, compute_share=1.0), task("other", 2.0, grid=10, compute_share=1.0)
    )
    timeline = simulate(plan, gpu(sms=10), costs)
    run_s = [n * simulate(plan, gpu(sms=10), costs, iterations=n).step_s for n in (100, 200)]
    assert timeline.step_s == pytest.approx((run_s[1] - run_s[0]) / 100, rel=0.01)
    assert timeline.settled


def test_a_lane_that_ran_every_period_before_the_other_began_is_part_of_the_step():
    """A worker stays with its own stream while that has tasks. The other stream repeats itself only once the first has ended."""
    plan, costs = build(task("first", 1.75), task("second", 1.75, stream=1))
    timeline = simulate(plan, cpu(cores=1, overhead_s=0.25), costs)
    assert (timeline.step_s, timeline.settled) == (4.0, True)


def test_a_long_run_is_what_is_left_without_prologue_and_drain():
    runs = []

    def seconds_of(iterations):
        runs.append(iterations)
        return 7.0 + 3.0 * iterations

    assert long_run(seconds_of, size=10, per_window=1, fewest=0) == LongRun(3.0, True)
    assert runs == [FEWEST, 2 * FEWEST, 4 * FEWEST, 8 * FEWEST, 16 * FEWEST, 32 * FEWEST]
    assert long_run(seconds_of, size=10, per_window=3, fewest=20).step_s == 3.0
    assert runs[6:] == [21, 42, 84, 168], "whole graphs, in which every queue has filled"
    runs.clear()
    assert long_run(seconds_of, size=1000, per_window=1, fewest=0) == LongRun(3.0, True)
    assert runs == [FEWEST, 2 * FEWEST, 4 * FEWEST], "what can be afforded"


def test_a_step_that_longer_runs_contradict_is_not_settled():
    slower = long_run(lambda iterations: iterations + max(0, iterations - 100), size=10, per_window=1, fewest=0)
    assert slower == LongRun(2.0, False), "the longest run tells most"
    once = long_run(lambda iterations: iterations + 0.1 * min(iterations, 20), size=10, per_window=1, fewest=0)
    assert once == LongRun(1.0, True), "it settles later"


def test_a_step_that_changes_with_every_longer_run_is_not_settled():
    assert not long_run(lambda iterations: iterations**1.5, size=1000, per_window=1, fewest=0).agrees
    assert long_run(lambda iterations: iterations**1.001, size=1000, per_window=1, fewest=0).agrees


def test_lanes_share_sms_bandwidth_and_links():
    plan, costs = build(
        task("a", 1.0, on="p", memory_share=0.4),
        task("b", 1.0, on="p", stream=1, memory_share=0.4),
        task("c", 1.0, writes="y", on="q", memory_share=0.1),
        copy("send", "q", "p", "y", "z"),
        copy("again", "q", "p", "y", "v", on="p", stream=8),
    )
    assert groups(plan, costs, memory="") == [[0, 1], [3, 4]]
    assert groups(plan, costs, memory="one") == [[0, 1], [3, 4]], "all kernels together draw 0.9 of the bandwidth"
    more = [*costs[:2], replace(costs[2], memory_share=0.3), *costs[3:]]
    assert groups(plan, more, memory="one") == [[0, 1, 2], [3, 4]]


def groups(plan, costs, memory):
    """`sharing_lanes` of a plan on two GPUs that a link joins, with or without one memory."""
    from simulator.engine.clock import Clock
    from simulator.engine.links import Links
    from simulator.engine.recipes import recipes_of
    from simulator.engine.scenario import Scenario

    machine = gpu("p", "q", memory=memory, links=(Link("q", "p", 0.0, 100.0),))
    scenario = Scenario(plan, machine, costs)
    recipes = recipes_of(scenario, Links(Clock(), machine))
    lanes = {}
    for index, each in enumerate(plan.tasks):
        lanes.setdefault(each.lane, []).append(index)
    return sharing_lanes(scenario, recipes, lanes, {"p", "q"})
