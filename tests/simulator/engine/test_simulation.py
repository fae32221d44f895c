"""The engine: exact tiny simulations first, then properties that hold for every plan."""

import subprocess
import sys
from dataclasses import replace
from heapq import heappop

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine import clock
from simulator.engine.scenario import Scenario
from simulator.engine.simulation import Simulation, simulate
from simulator.machine.machine import HOST, HostLane, Link, Machine
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.plan.bodies.copy import Copy
from simulator.plan.bodies.host import Host, Synchronize
from simulator.plan.check import PlanError
from simulator.plan.dependencies import Dependencies
from tests.support.places import ROOT
from tests.support.random_plans import MACHINES, plans
from tests.support.random_runs import random_run
from tests.support.reference_engine import Reference, long_run_step_s, random_small_run
from tests.support.refusals import refuses
from tests.support.tiny import build, chain, copy, cpu, gpu, host, rows, starts, task
from traces.documents.timeline import Cause
from traces.errors import Code


def test_a_chain_runs_one_after_another():
    plan, costs = chain(1.0, 2.0, 3.0)
    timeline = simulate(plan, cpu(), costs, iterations=1)
    assert rows(timeline) == [("t0", 0.0, 1.0), ("t1", 1.0, 3.0), ("t2", 3.0, 6.0)]
    assert timeline.step_s == 6.0


def fork():
    return build(
        task("a", 1.0, reads="x", writes="y"), task("b", 2.0, reads="x", writes="z", stream=1), task("c", 1.0, reads="y z", writes="q")
    )


def test_memory_is_that_of_the_timeline():
    plan, costs = fork()
    simulation = Simulation(Scenario(plan, cpu(cores=2), costs)).play()
    assert simulation.memory == simulation.timeline().memory != {}


def test_two_streams_overlap_where_nothing_orders_them():
    plan, costs = fork()
    assert rows(simulate(plan, cpu(cores=2), costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 0.0, 2.0), ("c", 2.0, 3.0)]
    assert rows(simulate(plan, cpu(cores=1), costs, iterations=1)) == [("a", 0.0, 1.0), ("b", 1.0, 3.0), ("c", 3.0, 4.0)]


def test_a_stream_is_first_in_first_out():
    # c could run at once, but it is queued behind b, which waits for a.
    plan, costs = build(
        task("a", 2.0, reads="x", writes="y"),
        task("b", 1.0, reads="y", writes="z", stream=1),
        task("c", 1.0, reads="x", writes="q", stream=1),
    )
    assert rows(simulate(plan, cpu(cores=2), costs, iterations=1)) == [("a", 0.0, 2.0), ("b", 2.0, 3.0), ("c", 3.0, 4.0)]


def test_pure_ordering_counts():
    plan, costs = build(task("a", 2.0, reads="x", writes="y"), task("b", 1.0, reads="x", writes="z", stream=1, after="a"))
    assert rows(simulate(plan, cpu(cores=2), costs, iterations=1)) == [("a", 0.0, 2.0), ("b", 2.0, 3.0)]


def test_every_task_on_a_cpu_pays_the_overhead():
    plan, costs = chain(1.0, 2.0)
    timeline = simulate(plan, cpu(overhead_s=0.5), costs)
    assert (timeline.step_s, timeline.settled, timeline.window_s) == (4.0, True, (8.0, 12.0))


def forward_fused():
    """The update, of the previous iteration's gradient, comes before the forward; it can overlap with the input's preparation."""
    return build(
        task("u", 1.0, reads="g", mutates="w", lag=1),
        task("f", 1.0, reads="x w", writes="y"),
        task("b", 2.0, reads="y w", writes="g"),
    )


def test_lags_skip_the_first_periods_and_drain_the_last():
    plan, costs = forward_fused()
    timeline = simulate(plan, cpu(), costs, iterations=2)
    assert [(s.task, s.period, s.iteration, s.start_s) for s in timeline.spans] == [
        ("f", 0, 0, 0.0), ("b", 0, 0, 1.0), ("u", 1, 0, 3.0), ("f", 1, 1, 4.0), ("b", 1, 1, 5.0), ("u", 2, 1, 7.0),
    ]  # fmt: skip
    assert timeline.period_lengths_s == (3.0, 4.0, 1.0)
    assert timeline.step_s == 4.0


def test_n_iterations_run_every_task_n_times():
    plan, costs = build(*(task(f"t{i}", 1.0, reads="x", writes=f"y{i}", lag=i % 3, stream=i % 2) for i in range(5)))
    spans = simulate(plan, cpu(cores=2), costs, iterations=4).spans
    assert sorted((s.task, s.iteration) for s in spans) == [(f"t{i}", n) for i in range(5) for n in range(4)]


def test_the_steady_step_is_the_slowest_lane():
    # Two pipeline stages: the second works one period behind the first, on the other device.
    plan, costs = build(
        task("first", 2.0, reads="x wa", writes="y", on="p"),
        task("second", 3.0, reads="y wb", writes="z", on="q", lag=1),
    )
    timeline = simulate(plan, cpu("p", "q"), costs)
    assert (timeline.step_s, timeline.settled) == (3.0, True)


def test_a_bubble_is_the_time_that_devices_do_not_compute():
    plan, costs = build(task("first", 2.0, reads="x", writes="y", on="p"), task("second", 3.0, reads="y", writes="z", on="q"))
    timeline = simulate(plan, cpu("p", "q"), costs, iterations=1)
    assert [(use.name, use.busy_share) for use in timeline.devices] == [("p", 0.4), ("q", 0.6)]
    assert timeline.bubble_share == 0.5


def test_a_lane_that_runs_ahead_does_not_end_the_simulation_early():
    """What it would start after the last period that counts is no part of the timeline."""
    plan, costs = build(task("load", 0.001, reads="x", writes="b", on="p"), task("train", 1.0, reads="q", mutates="w", on="q"))
    timeline = simulate(plan, cpu("p", "q"), costs)
    assert timeline.step_s == 1.0
    assert max(span.start_s for span in timeline.spans) < timeline.window_s[1]


def test_exposed_transfers_are_those_without_computation():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y", on="p"),
        task("side", 2.0, reads="y", writes="s", on="p"),
        copy("send", "p", "q", "y", "z"),
        task("g", 1.0, reads="z", writes="v", on="q"),
    )
    from simulator.machine.machine import Link

    machine = gpu("p", "q", links=(Link("p", "q", 0.0, 100.0),))
    timeline = simulate(plan, machine, costs, iterations=1)
    # 400 bytes take 4 s from 1.0; p computes until 3.0, q does not.
    assert rows(timeline)[1:] == [("side", 1.0, 3.0), ("send", 1.0, 5.0), ("g", 5.0, 6.0)]
    assert timeline.exposed_transfer_s == 4.0


def test_the_host_issues_one_launch_after_another():
    plan, costs = chain(1.0, 1.0, 1.0)
    machine = gpu(host=host(dispatch_s=2.0))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("t0", 2.0, 3.0), ("t1", 4.0, 5.0), ("t2", 6.0, 7.0)]
    assert simulate(plan, machine, costs).step_s == 6.0


def test_launches_ahead_are_free():
    plan, costs = chain(3.0, 3.0)
    machine = gpu(host=host(dispatch_s=1.0))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("t0", 1.0, 4.0), ("t1", 4.0, 7.0)]
    assert simulate(plan, machine, costs).step_s == 6.0


def test_the_host_pays_for_every_launch_of_a_task():
    plan, costs = build(task("u", 1.0, reads="x", writes="y", launches=3), task("v", 1.0, reads="y", writes="z"))
    assert rows(simulate(plan, gpu(host=host(dispatch_s=1.0)), costs, iterations=1)) == [("u", 3.0, 4.0), ("v", 4.0, 5.0)]


def test_a_task_with_a_measured_issue_time_takes_it_and_the_executors_own_time():
    # u takes 0.5 + 2; v, without a measured issue time, 0.5 for each of 3 launches; w 0.5 + 0.25.
    plan, costs = build(
        task("u", 1.0, reads="x", writes="y", launches=3, issue_s=2.0),
        task("v", 1.0, reads="y", writes="z", launches=3),
        task("w", 1.0, reads="z", writes="q", issue_s=0.25),
    )
    machine = gpu(host=host(dispatch_s=0.5))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("u", 2.5, 3.5), ("v", 4.0, 5.0), ("w", 5.0, 6.0)]
    assert simulate(plan, machine, costs).step_s == 4.75, "the host decides"


def test_issue_times_decide_which_bound_holds():
    plan, costs = build(task("t", 3.0, reads="x", writes="y", issue_s=2.0), task("u", 3.0, reads="y", writes="z", issue_s=2.0))
    assert simulate(plan, gpu(host=host(dispatch_s=0.5)), costs).step_s == 6.0, "the GPU's"
    assert simulate(plan, gpu(host=host(dispatch_s=1.5)), costs).step_s == 7.0, "the host's"
    assert simulate(plan, gpu(host=host(dispatch_s=1.5)), costs, mode="graph").step_s == 6.0, "graphs issue nothing"


def test_kernels_that_run_while_the_host_still_issues_them_take_no_time_afterwards():
    """The host issues t in 0.5 + 8, of whose 6 seconds 5 are over by then. A graph has no host to wait for."""
    plan, costs = build(task("t", 6.0, reads="x", writes="y", issue_s=8.0, fed_s=5.0), task("u", 1.0, reads="y", writes="z"))
    machine = gpu(host=host(dispatch_s=0.5))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("t", 8.5, 9.5), ("u", 9.5, 10.5)]
    assert simulate(plan, machine, costs).step_s == 9.0
    assert simulate(plan, machine, costs, mode="graph").step_s == 7.0
    assert simulate(plan, gpu(), costs).step_s == 7.0


def test_records_and_waits_are_added_to_issue_times():
    plan, costs = build(task("a", 1.0, reads="x", writes="y", issue_s=1.0), task("b", 1.0, reads="y", writes="z", stream=1, issue_s=1.0))
    machine = gpu(sms=2, host=host(dispatch_s=0.5, record_s=0.25, wait_s=0.125))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("a", 1.75, 2.75), ("b", 3.375, 4.375)]


def test_a_host_waits_for_no_event_of_another_process():
    """The message is issued in 0.5 + 0.25, and g, which waits for it, in 0.5 + 0.125."""
    plan, costs = build(
        task("a", 0.25, reads="x", writes="y", on="p"),
        copy("send", "p", "q", "y", "z", on="q", stream=1),
        task("g", 1.0, reads="z", writes="v", on="q"),
        lengths={"y": 1, "z": 1},
    )
    hosts = tuple(replace(host(name, dispatch_s=0.5, record_s=0.25, wait_s=0.125), name=f"of {name}") for name in "pq")
    machine = replace(gpu("p", "q", links=(Link("p", "q", 0.0, 400.0),)), hosts=hosts)
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("a", 0.75, 1.0), ("send", 1.0, 1.01), ("g", 1.375, 2.375)]


def test_a_host_task_blocks_its_stream_but_not_the_issuing_thread():
    # The host issues the call in 0.5 + 0.125, whatever its cost. The call takes 0.25 + 0.5 of its stream. Issuing f and g takes 2.5 each.
    plan, costs = build(
        task("call", reads="x", writes="y", body=Host(0.5), issue_s=9.0),
        task("f", 1.0, reads="y", writes="z", issue_s=2.0),
        task("g", 1.0, reads="x", writes="q", stream=1, issue_s=2.0),
    )
    machine = gpu(sms=2, host=host(dispatch_s=0.5, callback_s=0.25, call_s=0.125))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("call", 0.625, 1.375), ("f", 3.125, 4.125), ("g", 5.625, 6.625)]


def test_the_host_issues_nothing_before_a_task_that_it_waits_for_has_ended():
    # a and b are issued in 0.5 each. The host waits for both, until 5.5, and then issues c; of the next step, a.
    plan, costs = build(
        task("a", 5.0, reads="x", writes="y"),
        task("b", 1.0, reads="x", writes="z", stream=1),
        task("wait", after="a", stream=1, body=Synchronize()),
        task("c", 1.0, reads="x", writes="q", stream=1),
    )
    machine = gpu(sms=2, host=host(dispatch_s=0.5))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("a", 0.5, 5.5), ("b", 1.0, 2.0), ("wait", 5.5, 5.5), ("c", 6.0, 7.0)]
    assert simulate(plan, machine, costs).step_s == 6.0, "0.5 for c, 0.5 for a and 5 until the host goes on: c and b run beside a"
    free = replace(plan, tasks=tuple(t for t in plan.tasks if t.name != "wait"))
    assert simulate(free, machine, [costs[0], costs[1], costs[3]]).step_s == 5.0, "with no wait the host runs ahead"
    with refuses(Code.PLAN, "the host waits for wait, which a CUDA graph cannot"):
        simulate(plan, machine, costs, mode="graph")


def test_a_host_task_is_a_node_of_a_graph():
    plan, costs = build(
        task("call", reads="x", writes="y", body=Host(0.5)),
        task("f", 1.0, reads="y", writes="z"),
        task("g", 1.0, reads="x", writes="q", stream=1),
    )
    machine = gpu(host=host(callback_s=0.25, node_gap_s=0.125, graph_iterations=1))
    assert rows(simulate(plan, machine, costs, iterations=1, mode="graph")) == [("call", 0.0, 0.75), ("g", 0.0, 1.0), ("f", 0.875, 1.875)]


def test_host_tasks_take_places_in_the_queue_of_their_stream():
    plan, costs = build(*(task(f"c{i}", after=f"c{i - 1}" if i else "", body=Host(1.0)) for i in range(3)))
    machine = gpu(host=host(dispatch_s=0.25, queue_depth=1))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("c0", 0.25, 1.25), ("c1", 1.5, 2.5), ("c2", 2.75, 3.75)]


def test_streams_pay_for_records_and_waits():
    plan, costs = fork()
    machine = gpu(sms=2, host=host(dispatch_s=1.0, record_s=0.25, wait_s=0.5))
    # a takes 1, b 1 and a record, c 1 and a wait for b.
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("a", 1.0, 2.0), ("b", 2.25, 4.25), ("c", 4.25, 5.25)]


def test_the_host_pays_for_every_change_of_the_lane_and_for_each_period():
    plan, costs = build(
        task("a", 0.5, reads="x", writes="y"),
        task("late", 0.5, reads="x", writes="z", stream=1, lag=1),
        task("b", 0.5, reads="x", writes="q"),
    )
    machine = gpu(sms=2, host=host(dispatch_s=1.0, switch_s=0.25))
    # Without `late`, the first period has one change of the lane. The second has three, and the drain one.
    assert starts(simulate(plan, machine, costs, iterations=2)) == {"a": [1.25, 3.5], "b": [2.25, 6.0], "late": [4.75, 7.25]}
    assert simulate(plan, machine, costs).step_s == 3.75


def test_a_full_queue_blocks_the_host():
    # At most two launches are outstanding: t2 is issued when t0 ends, t3 when t1 ends.
    plan, costs = build(
        *(task(f"t{i}", 1.0, reads="x", writes=f"y{i}") for i in range(4)), task("other", 1.0, reads="x", writes="z", stream=1)
    )
    machine = gpu(sms=2, host=host(dispatch_s=0.25, queue_depth=2))
    assert starts(simulate(plan, machine, costs, iterations=1)) == {"t0": [0.25], "t1": [1.25], "t2": [2.25], "t3": [3.25], "other": [2.75]}


def test_a_queue_that_never_fills_changes_nothing():
    plan, costs = build(*(task(f"t{i}", 1.0, reads="x", writes=f"y{i}", stream=i % 2) for i in range(8)))
    ends = [simulate(plan, gpu(sms=2, host=host(dispatch_s=0.25, queue_depth=depth)), costs) for depth in (50, 10**6)]
    assert ends[0].step_s == ends[1].step_s


def test_a_graph_is_one_launch_and_a_barrier():
    plan, costs = build(task("a", 1.0, reads="x", writes="y"), task("b", 2.0, reads="x", writes="z", stream=1))
    machine = gpu(sms=2, host=host(dispatch_s=9.0, graph_launch_s=0.5, graph_iterations=2))
    # b keeps each graph of two iterations running for 4 s. a could run ahead, but waits for the graph before.
    timeline = simulate(plan, machine, costs, iterations=4, mode="graph")
    assert starts(timeline) == {"a": [0.5, 1.5, 4.5, 5.5], "b": [0.5, 2.5, 4.5, 6.5]}
    assert timeline.mode == "graph"
    assert simulate(plan, machine, costs, mode="graph").step_s == 2.0


def test_short_graphs_are_bound_by_their_launches():
    plan, costs = chain(1.0)
    assert simulate(plan, gpu(host=host(graph_launch_s=3.0, graph_iterations=2)), costs, mode="graph").step_s == 1.5


def test_the_launch_of_a_graph_grows_with_its_nodes_and_branches():
    # Two periods of 3 + 1 kernels take 0.5 + 8 x 0.125 + 0.25. The lane of the alias has no node, so it is no branch.
    plan, costs = build(
        task("a", 1.0, reads="x", writes="y", launches=3),
        task("b", 1.0, reads="x", writes="z", stream=1),
        task("alias", 0.0, reads="z", writes="q", stream=2, body=Copy("d", "e", means="alias"), phase="transfer"),
    )
    times = {"graph_launch_s": 0.5, "graph_node_s": 0.125, "graph_branch_s": 0.25}
    machine = gpu(sms=2, host=host(**times, graph_iterations=2))
    assert starts(simulate(plan, machine, costs, iterations=2, mode="graph"))["a"] == [1.75, 2.75]


def test_graph_nodes_have_gaps():
    plan, costs = fork()
    machine = gpu(sms=2, host=host(node_gap_s=0.25, cross_gap_s=0.5, graph_iterations=1))
    assert rows(simulate(plan, machine, costs, iterations=1, mode="graph")) == [("a", 0.0, 1.0), ("b", 0.0, 2.0), ("c", 2.5, 3.5)]
    plan, costs = chain(1.0, 1.0)
    assert rows(simulate(plan, machine, costs, iterations=1, mode="graph")) == [("t0", 0.0, 1.0), ("t1", 1.25, 2.25)]


@pytest.mark.parametrize(("launch_gap_s", "ends"), [(0.5, (2.0, 3.5)), (-0.25, (1.25, 2.0)), (-9.0, (0.5, 1.0))])
def test_launched_kernels_have_a_gap_of_their_own(launch_gap_s, ends):
    """Costs include the gap between two nodes of a graph. A chain takes that much more or less per kernel, and never less than nothing."""
    plan, costs = chain(1.0, 1.0)
    machine = gpu(host=host(dispatch_s=0.5, launch_gap_s=launch_gap_s))
    timeline = simulate(plan, machine, costs, iterations=1)
    assert tuple(span.end_s for span in timeline.spans) == ends
    graph = simulate(plan, gpu(host=host(launch_gap_s=launch_gap_s, graph_iterations=1)), costs, iterations=1, mode="graph")
    assert rows(graph) == [("t0", 0.0, 1.0), ("t1", 1.0, 2.0)]


def test_a_launched_call_of_the_host_has_that_gap_too():
    plan, costs = build(task("call", body=Host(0.5)))
    machine = gpu(host=host(callback_s=0.25, launch_gap_s=-0.125))
    assert rows(simulate(plan, machine, costs, iterations=1)) == [("call", 0.0, 0.625)]


def test_in_a_calibrated_graph_only_edges_between_streams_take_time():
    machine = gpu(sms=2, host=host(cross_gap_s=0.5, graph_iterations=2))
    plan, costs = chain(1.0, 2.0)
    timeline = simulate(plan, machine, costs, iterations=2, mode="graph")
    assert rows(timeline) == [("t0", 0.0, 1.0), ("t1", 1.0, 3.0), ("t0", 3.0, 4.0), ("t1", 4.0, 6.0)]
    # c waits for b of the other stream. The next a, which overwrites y, waits only for its own stream.
    plan, costs = fork()
    timeline = simulate(plan, machine, costs, iterations=1, mode="graph")
    assert rows(timeline) == [("a", 0.0, 1.0), ("b", 0.0, 2.0), ("c", 2.5, 3.5)]
    # A lane that is busy for longer than the gap is not delayed by it.
    plan, costs = build(
        task("a", 1.0, reads="x", writes="y"),
        task("b", 3.0, reads="x", writes="z", stream=1),
        task("c", 1.0, reads="y", writes="q", stream=1),
    )
    assert rows(simulate(plan, machine, costs, iterations=1, mode="graph")) == [("a", 0.0, 1.0), ("b", 0.0, 3.0), ("c", 3.0, 4.0)]


def test_between_two_graphs_there_is_a_barrier_and_no_gap_of_their_nodes():
    # The second iteration's f reads the result of the first iteration's u on the other stream.
    plan, costs = build(task("f", 1.0, reads="x w", writes="g"), task("u", 1.0, reads="g", mutates="w", stream=1))
    one, two = (gpu(sms=2, host=host(cross_gap_s=0.5, graph_iterations=n)) for n in (1, 2))
    assert starts(simulate(plan, one, costs, iterations=3, mode="graph")) == {"f": [0.0, 2.5, 5.0], "u": [1.5, 4.0, 6.5]}
    assert starts(simulate(plan, two, costs, iterations=3, mode="graph")) == {"f": [0.0, 3.0, 5.5], "u": [1.5, 4.5, 7.0]}


@pytest.mark.parametrize("lane", [("p", 0), ("p", 9), ("q", 9), ("q", 0)])
def test_an_alias_in_a_graph_is_one_edge_on_any_stream(lane):
    plan, costs = build(
        task("f", 1.0, reads="x", writes="y", on="p"),
        copy("send", "p", "q", "y", "z", on=lane[0], stream=lane[1]),
        task("g", 1.0, reads="z", writes="v", on="q"),
    )
    machine = gpu("p", "q", memory="hbm", host=host("p", "q", cross_gap_s=0.5))
    assert starts(simulate(plan, machine, costs, iterations=1, mode="graph"))["g"] == [1.5]


def test_host_time_occupies_its_lane():
    plan, costs = build(task("gap", reads="x", writes="y", body=Host(0.5)), task("f", 1.0, reads="y", writes="z"))
    assert rows(simulate(plan, gpu(), costs, iterations=1)) == [("gap", 0.0, 0.5), ("f", 0.5, 1.5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan, costs: (plan, costs[:1]), "got 1 costs for 2 tasks; expected one per task"),
        (lambda plan, costs: (replaced(plan, earlier=(plan,)), costs), "a run follows 1 plans before that of .*; take each"),
        (lambda plan, costs: (replaced(plan, tasks=()), []), "has no tasks"),
        (lambda plan, costs: (plan, [replaced(cost, warm_s=-1.0) for cost in costs]), "task 't0' costs -1.0 s warm"),
        (lambda plan, costs: (plan, [replaced(cost, cold_s=float("nan")) for cost in costs]), "nan s cold; expected finite"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change, message):
    plan, costs = change(*chain(1.0, 1.0))
    with pytest.raises(ValueError, match=message):
        simulate(plan, cpu(), costs)


def replaced(thing, **changes):
    from dataclasses import replace

    return replace(thing, **changes)


def test_modes_and_iterations_are_checked():
    plan, costs = chain(1.0)
    with pytest.raises(ValueError, match="mode 'graph' needs CUDA devices; d of tiny-cpu has no host lane"):
        simulate(plan, cpu(), costs, mode="graph")
    with pytest.raises(ValueError, match="unknown mode 'lazy'; expected 'eager' or 'graph'"):
        simulate(plan, cpu(), costs, mode="lazy")
    with pytest.raises(ValueError, match="iterations is 0"):
        simulate(plan, cpu(), costs, iterations=0)


def test_a_plan_in_reverse_order_names_the_waiting_tasks():
    plan, costs = build(task("a", 1.0, reads="x", writes="y", after="b"), task("b", 1.0, reads="x", writes="z", after="a", stream=1))
    with pytest.raises(ValueError, match="cannot go on: 'a', 'b' wait for tasks that are issued later"):
        simulate(plan, cpu(), costs, iterations=1)


@given(plans(), MACHINES, st.integers(1, 4))
def test_makespans_lie_between_their_bounds(planned, machine, iterations):
    plan, costs = planned
    timeline = simulate(plan, machine, costs, iterations=iterations)
    overhead = machine.device("d").task_overhead_s
    seconds = [cost.warm_s + overhead for cost in costs]
    makespan = timeline.step_s * iterations
    launches = 0.3 * len(costs) * iterations if machine.hosts else 0.0
    assert makespan <= (sum(seconds) * iterations + launches) * (1 + 1e-9)
    lanes = {}
    for t, s in zip(plan.tasks, seconds, strict=True):
        lanes[t.lane] = lanes.get(t.lane, 0.0) + s * iterations
    assert makespan >= max(lanes.values()) * (1 - 1e-9)
    if machine.device("d").kind == "cpu":
        assert makespan >= sum(seconds) * iterations / machine.device("d").sms * (1 - 1e-9)


@given(plans(), MACHINES, st.integers(1, 4))
def test_every_hazard_is_respected(planned, machine, iterations):
    plan, costs = planned

    dependencies = Dependencies(plan)
    spans = {(s.period, s.task): s for s in simulate(plan, machine, costs, iterations=iterations).spans}
    for period in range(iterations + dependencies.largest_lag):
        for t, edges in zip(plan.tasks, dependencies.edges(period, iterations), strict=True):
            for edge in edges:
                earlier = spans[period - edge.delta, plan.tasks[edge.index].name]
                assert earlier.end_s <= spans[period, t.name].start_s


@pytest.mark.thorough
@given(plans(), MACHINES)
def test_the_same_input_gives_the_same_timeline(planned, machine):
    plan, costs = planned
    assert simulate(plan, machine, costs) == simulate(plan, machine, costs)


@given(plans(shared=False), st.integers(0, 9), st.integers(1, 3))
def test_with_nothing_shared_a_shorter_task_delays_no_other(planned, which, iterations):
    plan, costs = planned
    machine = gpu(*(f"d{i}" for i in range(4)))
    which %= len(costs)
    shorter = [replaced(cost, warm_s=cost.warm_s / 2, cold_s=cost.warm_s / 2) if i == which else cost for i, cost in enumerate(costs)]
    before, after = (starts(simulate(plan, machine, c, iterations=iterations)) for c in (costs, shorter))
    assert all(later >= earlier for name in before for later, earlier in zip(before[name], after[name], strict=True))


def test_hash_seeds_change_nothing():
    code = "from tests.support.random_plans import busy_timeline; print(busy_timeline())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}, cwd=ROOT
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_engine_does_not_load_torch():
    code = "import sys, simulator.engine.simulation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


# Receives that hold their stream until the sender arrives. Transfers take 1 s: 400 bytes over links of 400 bytes/s.


def pair(receives: str) -> Machine:
    """Two GPUs with a full-duplex link."""
    return replace(gpu("p", "q", links=(Link("p", "q", 0.0, 400.0),)), receives=receives)


def crossing():
    """Each device sends the other what it has made: q after 1 s, p after 2 s, but the plan has p's first."""
    return [
        task("f", 2.0, reads="x", writes="y", on="p"),
        copy("there", "p", "q", "y", "y'"),
        task("g", 1.0, reads="x2", writes="z", on="q"),
        copy("back", "q", "p", "z", "z'"),
        task("use z", 1.0, reads="z'", writes="v", on="p"),
        task("use y", 1.0, reads="y'", writes="u", on="q"),
    ]


def test_without_blocking_a_message_goes_when_it_is_ready():
    plan, costs = build(*crossing())
    spans = {name: (start, end) for name, start, end in rows(simulate(plan, pair("free"), costs, iterations=1))}
    assert (spans["there"], spans["back"], spans["use z"]) == ((2.0, 3.0), (1.0, 2.0), (2.0, 3.0))


def test_a_posted_receive_holds_up_the_messages_behind_it():
    """q has posted the receive of `there` before it can send `back`, so that `back` comes 2 s later, and the step takes 1 s longer."""
    plan, costs = build(*crossing())
    free, blocking = (simulate(plan, pair(receives), costs, iterations=1) for receives in ("free", "blocking"))
    spans = {name: (start, end) for name, start, end in rows(blocking)}
    assert (spans["there"], spans["back"], spans["use z"]) == ((2.0, 3.0), (3.0, 4.0), (4.0, 5.0))
    assert (free.step_s, blocking.step_s) == (4.0, 5.0)
    assert [(s.task, s.cause) for s in blocking.critical_path][-2:] == [("back", Cause.LINK), ("use z", Cause.DEPENDENCY)]


def test_messages_in_the_order_in_which_they_are_ready_do_not_wait():
    timed = [task("f", 1.0, reads="x", writes="y", on="p"), copy("c1", "p", "q", "y", "y'"), task("g", 1.0, reads="y'", writes="z", on="q")]
    plan, costs = build(*timed, copy("c2", "q", "p", "z", "z'"))
    assert len({tuple(rows(simulate(plan, pair(receives), costs, iterations=1))) for receives in ("free", "blocking", "late")}) == 1


def test_periods_follow_one_another_on_the_stream():
    """The first message of a period waits for the last one of the period before."""
    plan, costs = build(copy("out", "p", "q", "x", "y"), copy("back", "q", "p", "x2", "y2"))
    assert simulate(plan, pair("free"), costs, iterations=4).step_s == 1.0
    assert simulate(plan, pair("blocking"), costs, iterations=4).step_s == 2.0


def test_messages_to_different_devices_do_not_wait_for_each_other():
    machine = gpu("p", "q", "r", links=(Link("p", "q", 0.0, 400.0), Link("p", "r", 0.0, 400.0)))
    plan, costs = build(copy("to q", "p", "q", "x", "y", stream=1), copy("to r", "p", "r", "x", "z", stream=2))
    assert rows(simulate(plan, replace(machine, receives="blocking"), costs, iterations=1)) == [("to q", 0.0, 1.0), ("to r", 0.0, 1.0)]


def test_validation_names_the_two_that_wait_for_each_other():
    """p sends y before it receives z, as it needs z later; q sends z before it receives y for the same reason."""
    plan, _ = build(*crossing())
    for receives in ("free", "blocking"):
        plan.validate(pair(receives))
    with pytest.raises(PlanError) as caught:
        plan.validate(pair("late"))
    assert "task 'there' deadlocks: p waits to send 'there', q to send 'back'" in str(caught.value)
    assert caught.value.details.splitlines() == [
        "p: send 'there' <-- waits here, receive 'back', send 'there', receive 'back'",
        "q: send 'back' <-- waits here, receive 'there', send 'back', receive 'there'",
    ]


def test_two_receives_in_another_order_than_their_sends_deadlock():
    timed = [copy("a", "p", "q", "x1", "a'"), copy("b", "p", "q", "x2", "b'"), task("f", reads="b'", writes="u", on="q")]
    plan, _ = build(*timed, task("g", reads="a'", writes="v", on="q"))
    with pytest.raises(PlanError, match="p waits to send 'a', q to receive 'b'"):
        plan.validate(pair("late"))


def test_a_message_that_overtakes_one_of_an_earlier_period_deadlocks():
    """What q reads of `a` two periods later it receives behind `b` of the next period."""
    timed = [copy("a", "p", "q", "x1", "a'"), copy("b", "p", "q", "x2", "b'"), task("f", reads="b'", writes="u", on="q")]
    later, _ = build(*timed, task("g", reads="a'", writes="v", on="q", lag=2))
    with pytest.raises(PlanError, match="q to receive 'b'"):
        later.validate(pair("late"))


def test_the_link_says_how_messages_are_received():
    assert this_cpu(devices=2, link="copy:0.5").receives == "free"
    assert this_cpu(devices=2, link="copy:0.5,blocking").receives == "blocking"
    assert this_cpu(devices=2, link="copy,late").links == this_cpu(devices=2, link="copy").links
    assert load_machine("p100x4", link="blocking").receives == "blocking"
    with refuses(Code.REQUEST, "share memory send nothing; use copy,blocking"):
        this_cpu(devices=2, link="blocking")
    with refuses(Code.REQUEST):
        load_machine("h100", link="blocking", partitions=2)


# Runs of tasks that share nothing take no events. That changes nothing: `simulate(..., merge=False)` is the oracle.


# The engine against a second one that shares no code with it (`reference_engine`), on random plans.


@pytest.mark.parametrize("seed", range(20))
def test_a_run_takes_as_long_as_in_the_reference(seed):
    run = random_small_run(seed)
    if run is not None:
        plan, machine, costs = run
        seconds = 3 * simulate(plan, machine, costs, iterations=3, use_cache=False).step_s
        assert seconds == pytest.approx(Reference(plan, machine, costs, 3).seconds, rel=1e-7)


def test_a_settled_step_is_that_of_a_long_run_of_the_reference():
    settled = tried = 0
    for seed in range(14):
        run = random_small_run(seed, tasks=5)
        if run is not None:
            timeline = simulate(*run, use_cache=False)
            tried += 1
            settled += timeline.settled
            assert not timeline.settled or timeline.step_s == pytest.approx(long_run_step_s(*run, 16), rel=0.02), f"seed {seed}"
    assert settled >= 0.9 * tried


@pytest.mark.parametrize("seed", [433773510, 100131])
def test_a_pace_that_changes_after_many_iterations_is_not_settled_too_early(seed):
    """Runs of up to 64 iterations agreed within 1 %, and longer ones differed by 2.6 and 6 %."""
    run = random_small_run(seed, tasks=34)
    timeline = simulate(*run, use_cache=False)
    assert not timeline.settled or timeline.step_s == pytest.approx(long_run_step_s(*run, 48), rel=0.02)


def both(run):
    """The timeline of a run with merging and without."""
    return (simulate(run.plan, run.machine, run.costs, merge=merge, **run.options) for merge in (True, False))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_merging_changes_no_bit_of_any_timeline(first):
    """Spans, step time, memory, busy shares and the critical path with its causes, of plans that use every mechanism of the engine."""
    for seed in range(first, first + 20):
        merged, plain = both(random_run(seed))
        assert merged == plain, f"seed {seed}"


@pytest.mark.thorough
def test_the_random_runs_use_every_mechanism():
    runs = [random_run(seed) for seed in range(300)]
    bodies = {task.body.kind for run in runs for task in run.plan.tasks}
    assert {"op", "copy", "collective", "host", "synchronize"} <= bodies
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
        Simulation(Scenario(plan, machine, costs), **options).play()
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
    assert Simulation(Scenario(plan, cpu(cores=2), costs)).play().step_s == simulate(plan, cpu(cores=2), costs).step_s


# Partitions of one GPU, second by second: kernels that copy, kernels that compute, transfers from the host, and one host thread for all.
# Values hold 400 bytes, the link with the host moves 400 bytes/s after 0.25 s, a part has 10 SMs.


#: Every SM of a partition, in one wave.
FULL = 10


def halves(lane: HostLane | None = None) -> Machine:
    """Two partitions of one GPU, which share the link to the host."""
    links = tuple(Link(HOST, name, 0.25, 400.0, channel="bus") for name in "pq")
    return gpu("p", "q", memory="hbm", host=lane, links=links)


def moved(name: str, source: str, target: str, reads: str, mutates: str, seconds: float = 1.0, stream: int = 1, **more):
    """A kernel on the target that adds to the mutated value."""
    return task(name, seconds, reads=reads, mutates=mutates, on=target, stream=stream, body=Copy(source, target, True, "kernel"), **more)


def run(*timed, machine: Machine, mode: str = "eager", iterations: int = 1):
    plan, costs = build(*timed)
    return rows(simulate(plan, machine, costs, iterations=iterations, mode=mode))


def test_sums_overlap_with_computation():
    """q adds p's gradient to its own while both go on computing. The readers of the sum wait for it."""
    timed = [
        task("backward.p", 1.0, reads="x", writes="g", on="p", grid=FULL),
        task("backward.q", 1.0, reads="x'", writes="g'", on="q", grid=FULL),
        moved("add", "p", "q", "g", "g'", 0.5),
        task("more.p", 2.0, reads="x", writes="h", on="p", grid=FULL),
        task("more.q", 2.0, reads="x'", writes="h'", on="q", grid=FULL - 1),
        task("update.q", 1.0, reads="g'", mutates="w'", on="q", grid=FULL),
    ]
    assert run(*timed, machine=halves()) == [
        ("backward.p", 0.0, 1.0), ("backward.q", 0.0, 1.0), ("add", 1.0, 1.5), ("more.p", 1.0, 3.0), ("more.q", 1.0, 3.0),
        ("update.q", 3.0, 4.0),
    ]  # fmt: skip


def test_a_sum_waits_for_sms_of_its_own_partition_only():
    """A kernel that fills q delays the sum; a kernel that fills p does not."""
    timed = [
        task("f.p", 3.0, reads="x", writes="y", on="p", grid=FULL),
        task("g.p", 0.5, reads="x", writes="v", on="p", stream=2, grid=1),
        task("f.q", 2.0, reads="x'", writes="y'", on="q", grid=FULL),
        moved("to q", HOST, "q", "a", "b"),
        moved("to p", HOST, "p", "a", "c", stream=3),
    ]
    spans = run(*timed, machine=gpu("p", "q", memory="hbm"))
    assert spans == [("f.p", 0.0, 3.0), ("f.q", 0.0, 2.0), ("to q", 2.0, 3.0), ("g.p", 3.0, 3.5), ("to p", 3.0, 4.0)]


def test_an_alias_costs_one_event():
    """In a graph it costs the gap between nodes of two lanes, once; in eager mode, one recorded and awaited event."""
    timed = [
        task("f", 1.0, reads="x", writes="y", on="p"),
        task("send", 0.0, reads="y", writes="z", on="q", stream=1, body=Copy("p", "q", means="alias")),
        task("g", 1.0, reads="z", writes="v", on="q"),
    ]
    graph = halves(host("p", "q", cross_gap_s=0.5))
    assert run(*timed, machine=graph, mode="graph") == [("f", 0.0, 1.0), ("send", 1.5, 1.5), ("g", 1.5, 2.5)]
    eager = halves(host("p", "q", dispatch_s=0.125, record_s=0.25, wait_s=0.5))
    assert run(*timed, machine=eager) == [("f", 0.375, 1.375), ("send", 1.375, 1.375), ("g", 1.75, 2.75)]


def test_a_fetch_over_the_link_overlaps_with_computation():
    """The fetch takes no SMs, so it slows no kernel down."""
    timed = [
        task("f", 2.0, reads="x", writes="y", on="p", grid=FULL),
        copy("fetch", HOST, "p", "x1", "z", on="p", stream=1),
        task("g", 1.0, reads="z", writes="v", on="p", stream=1, grid=FULL),
    ]
    assert run(*timed, machine=halves()) == [("f", 0.0, 2.0), ("fetch", 0.0, 1.25), ("g", 2.0, 3.0)]


def test_one_thread_issues_to_both_partitions_in_plan_order():
    timed = [task(f"{name}{turn}", 1.0, reads=f"x{name}", writes=f"y{name}{turn}", on=name) for turn in range(2) for name in "pq"]
    machine = halves(host("p", "q", dispatch_s=0.5))
    assert run(*timed, machine=machine) == [("p0", 0.5, 1.5), ("q0", 1.0, 2.0), ("p1", 1.5, 2.5), ("q1", 2.0, 3.0)]
