"""The critical path: each task on it, with the reason why the task did not start earlier."""

from itertools import pairwise

import pytest
from hypothesis import given

from simulator.engine.simulation import simulate
from simulator.plan.bodies.host import Host
from tests.support.random_plans import MACHINES, plans
from tests.support.tiny import build, chain, cpu, gpu, host, task
from traces.documents.timeline import Cause


def path(plan, machine, costs, **options):
    """(task, start, end, cause) along the path."""
    return [(s.task, s.start_s, s.end_s, s.cause) for s in simulate(plan, machine, costs, **options).critical_path]


def test_a_chain_is_all_dependencies():
    plan, costs = chain(1.0, 2.0)
    assert path(plan, cpu(), costs, iterations=1) == [("t0", 0.0, 1.0, Cause.START), ("t1", 1.0, 3.0, Cause.DEPENDENCY)]


def test_a_busy_lane_is_distinguished_from_a_dependency():
    plan, costs = build(task("a", 1.0, reads="x", writes="y"), task("b", 2.0, reads="x", writes="z"))
    assert path(plan, cpu(), costs, iterations=1) == [("a", 0.0, 1.0, Cause.START), ("b", 1.0, 3.0, Cause.LANE)]


def test_the_path_follows_the_dependency_that_ended_last():
    plan, costs = build(
        task("a", 1.0, reads="x", writes="y"), task("b", 2.0, reads="x", writes="z", stream=1), task("c", 1.0, reads="y z", writes="q")
    )
    assert path(plan, cpu(cores=2), costs, iterations=1) == [("b", 0.0, 2.0, Cause.START), ("c", 2.0, 3.0, Cause.DEPENDENCY)]


def test_a_kernel_that_waits_for_sms_follows_the_kernel_that_had_them():
    plan, costs = build(task("a", 2.0, reads="x", writes="y", grid=10), task("b", 1.0, reads="x", writes="z", stream=1, grid=10))
    assert path(plan, gpu(), costs, iterations=1) == [("a", 0.0, 2.0, Cause.START), ("b", 2.0, 3.0, Cause.SMS)]


def test_a_kernel_that_gets_a_surplus_follows_a_kernel_that_still_runs():
    plan, costs = build(
        task("a", 2.0, reads="x", writes="y", grid=15, compute_share=1.0),
        task("b", 3.0, reads="x", writes="z", stream=1, grid=5, compute_share=1.0),
    )
    assert path(plan, gpu(), costs, iterations=1) == [("a", 0.0, 1.0, Cause.START), ("b", 1.0, 4.0, Cause.SMS)]


def test_launches_lead_to_the_host():
    plan, costs = chain(1.0, 1.0)
    machine = gpu(host=host(dispatch_s=2.0))
    assert path(plan, machine, costs, iterations=1) == [("host", 0.0, 4.0, Cause.START), ("t1", 4.0, 5.0, Cause.LAUNCH)]


def test_a_blocked_host_leads_to_the_task_that_blocked_it():
    # The queue holds one launch, so the host issues a task when the one before it has ended.
    plan, costs = build(task("a", 2.0, reads="x", writes="y"), task("b", 1.0, reads="x", writes="z"))
    assert path(plan, gpu(host=host(dispatch_s=0.5, queue_depth=1)), costs, iterations=1) == [
        ("host", 0.0, 0.5, Cause.START), ("a", 0.5, 2.5, Cause.LAUNCH), ("host", 2.5, 3.0, Cause.LANE),
        ("b", 3.0, 4.0, Cause.LAUNCH),
    ]  # fmt: skip


def test_the_path_stops_where_the_window_begins():
    plan, costs = build(task("f", 1.0, reads="x w", writes="y"), task("u", 2.0, reads="y", mutates="w"))
    timeline = simulate(plan, cpu(), costs)
    assert timeline.window_s == (6.0, 9.0)
    assert [(s.task, s.start_s, s.cause) for s in timeline.critical_path] == [("f", 6.0, Cause.DEPENDENCY), ("u", 7.0, Cause.DEPENDENCY)]


def test_a_host_task_is_on_the_path_like_any_other():
    plan, costs = build(task("gap", reads="x", writes="y", body=Host(0.5)), task("f", 1.0, reads="y", writes="z", stream=1))
    assert path(plan, gpu(), costs, iterations=1) == [("gap", 0.0, 0.5, Cause.START), ("f", 0.5, 1.5, Cause.DEPENDENCY)]


@given(plans(), MACHINES)
def test_a_path_is_unbroken_from_the_start_to_the_end(planned, machine):
    plan, costs = planned
    timeline = simulate(plan, machine, costs, iterations=2)
    spans = timeline.critical_path
    assert spans[0].start_s == 0.0
    assert spans[0].cause is Cause.START
    assert spans[-1].end_s == timeline.window_s[1]
    for earlier, later in pairwise(spans):
        assert earlier.end_s == pytest.approx(later.start_s, abs=1e-12)
        assert later.cause is not Cause.START
