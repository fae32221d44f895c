"""The engine plays plans: exact tiny simulations first, then properties that hold for every plan."""

from simulator.engine import simulate
from tests.tiny import build, chain, cpu, rows, task


def test_a_chain_runs_one_after_another():
    plan, costs = chain(1.0, 2.0, 3.0)
    timeline = simulate(plan, cpu(), costs, iterations=1)
    assert rows(timeline) == [("t0", 0.0, 1.0), ("t1", 1.0, 3.0), ("t2", 3.0, 6.0)]
    assert timeline.step_s == 6.0


def test_two_streams_overlap_where_nothing_orders_them():
    plan, costs = build(
        task("a", 1.0, reads="x", writes="y"), task("b", 2.0, reads="x", writes="z", stream=1), task("c", 1.0, reads="y z", writes="q")
    )
    assert rows(simulate(plan, cpu(cores=2), costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 0.0, 2.0), ("c", 2.0, 3.0)]
    assert rows(simulate(plan, cpu(cores=1), costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 1.0, 3.0), ("c", 3.0, 4.0)]


def test_the_steady_state_of_a_chain_is_its_sum():
    plan, costs = chain(1.0, 2.0)
    timeline = simulate(plan, cpu(overhead_s=0.5), costs)
    assert (timeline.step_s, timeline.settled, timeline.window_s) == (4.0, True, (8.0, 12.0))
