"""Lower bounds: exact on plans whose step is known, and never above what the engine simulates."""

import pytest
from hypothesis import given
from hypothesis import settings as examples

from simulator.engine.capacity import BANDWIDTH, COMPUTE, LINKS
from simulator.engine.costs.model import CostModel
from simulator.engine.scenario import GRAPH, Scenario
from simulator.engine.simulation import simulate
from simulator.engine.steady import CLOSE
from simulator.machine.machine import Link
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.search.bound import DEPENDENCIES, HOST, Bound, lower_bound, together, work_bound
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support.applicable import core_groups
from tests.support.random_plans import MACHINES, plans
from tests.support.tiny import build, chain, copy, gpu, host, task
from traces.errors import SchedcastError


def bound_of(plan, costs, machine, mode="eager", multipliers=None):
    return lower_bound(Scenario(plan, machine, costs, mode, multipliers or {}))


def test_a_host_takes_what_its_own_code_takes_between_launches():
    """The hooks of a loop that shards parameters are Python on the host, here the whole step."""
    target = Target.of(CostModel(load_machine("2xh100")))
    scenario = target.running(plan := plan_of(Job("lenet5", 16), "pytorch-fsdp", target)).scenario(plan)
    bound = lower_bound(scenario)
    assert bound.by == HOST
    assert bound.step_s == pytest.approx(simulate(plan, scenario.machine, scenario.costs).step_s)


def test_a_stream_takes_what_its_tasks_take():
    plan, costs = chain(1.0, 2.0, 0.5)
    assert bound_of(plan, costs, gpu()) == Bound(3.5, DEPENDENCIES)
    assert simulate(plan, gpu(), costs).step_s == 3.5


def test_tasks_of_two_streams_that_wait_for_each_other_close_a_cycle():
    plan, costs = build(
        task("f", 1.0, reads="x w", writes="y", on="d"),
        task("u", 2.0, reads="y", mutates="w", on="e"),
        task("beside", 2.5, on="e", stream=1),
    )
    assert bound_of(plan, costs, gpu("d", "e")) == Bound(3.0, DEPENDENCIES)
    assert simulate(plan, gpu("d", "e"), costs).step_s == pytest.approx(3.0)


def test_a_cycle_that_takes_two_periods_counts_half():
    plan, costs = build(
        task("u", 2.0, reads="y", mutates="w", on="e", lag=1), task("f", 1.0, reads="x w", writes="y", on="d"),
        task("b", 1.0, reads="y", writes="z", on="d"),
    )  # fmt: skip
    assert bound_of(plan, costs, gpu("d", "e")).step_s == pytest.approx(simulate(plan, gpu("d", "e"), costs).step_s)


def test_kernels_that_fill_the_device_cannot_overlap():
    plan, costs = build(*(task(f"t{n}", 2.0, stream=n, grid=10, compute_share=1.0) for n in range(3)))
    assert bound_of(plan, costs, gpu(sms=10)) == Bound(6.0, COMPUTE)
    assert simulate(plan, gpu(sms=10), costs).step_s == pytest.approx(6.0)


def test_kernels_share_the_bandwidth_of_their_memory():
    plan, costs = build(*(task(f"t{n}", 2.0, stream=n, grid=2, memory_share=0.75) for n in range(2)))
    assert bound_of(plan, costs, gpu(sms=10)) == Bound(3.0, BANDWIDTH)
    assert simulate(plan, gpu(sms=10), costs).step_s == pytest.approx(3.0)


def test_bytes_must_cross_their_link():
    machine = gpu("d", "e", links=(Link("d", "e", 1.0, 100.0),))  # 400 bytes take 1 + 4 seconds
    plan, costs = build(task("a", 1.0, writes="y", on="d"), copy("c1", "d", "e", "y", "z1", stream=8), copy("c2", "d", "e", "y", "z2"))
    assert bound_of(plan, costs, machine) == Bound(10.0, LINKS)
    assert simulate(plan, machine, costs).step_s == pytest.approx(10.0)


def test_the_host_issues_every_task():
    plan, costs = chain(0.1, 0.1)
    machine = gpu(host=host(dispatch_s=1.0))
    assert bound_of(plan, costs, machine) == Bound(2.0, HOST)
    assert simulate(plan, machine, costs).step_s == pytest.approx(2.0)
    assert bound_of(plan, costs, machine, GRAPH).step_s == pytest.approx(0.2)


def test_fitted_multipliers_below_one_make_kernels_faster_and_the_bound_lower():
    plan, costs = build(*(task(f"t{n}", 2.0, stream=n, grid=1, compute_share=1.0, group="g") for n in range(2)))
    faster = {("g", "g"): 0.5}
    assert simulate(plan, gpu(), costs, pair_multipliers=faster).step_s == pytest.approx(1.0)
    assert bound_of(plan, costs, gpu(), multipliers=faster).step_s == pytest.approx(1.0)
    assert work_bound(Scenario(plan, gpu(), costs, pair_multipliers=faster)).step_s == pytest.approx(1.0)


def test_a_run_that_follows_several_plans_has_the_mean_of_their_bounds():
    assert together([(3, Bound(1.0, LINKS)), (1, Bound(5.0, HOST))]) == Bound(2.0, HOST)


@given(plans() | plans(shared=False), MACHINES)
@examples(max_examples=50)
def test_no_random_plan_is_faster_than_its_bound(made, machine):
    """Not in a long run, nor in its steady state."""
    plan, costs = made
    devices = {task.device for task in plan.tasks}
    machine = machine if devices == {"d"} else gpu(*sorted(devices))
    bound, iterations, slack = bound_of(plan, costs, machine), 30, 8
    run_s = iterations * simulate(plan, machine, costs, iterations=iterations).step_s
    assert bound.step_s * (iterations - slack) <= run_s * (1 + 1e-9)
    assert bound.step_s * (1 - CLOSE) <= simulate(plan, machine, costs).step_s
    assert work_bound(Scenario(plan, machine, costs)).step_s <= bound.step_s * (1 + 1e-9)


def test_a_stream_with_a_lead_does_not_hide_its_work():
    """The longer stream has nothing to do in the first period, so the shorter one ends last in the next six."""
    plan, costs = build(task("longer", 1.75, lag=1), task("shorter", 1.5, stream=1))
    steady = simulate(plan, gpu(), costs)
    assert (steady.step_s, steady.settled) == (pytest.approx(1.75), True)
    assert simulate(plan, gpu(), costs, iterations=40).step_s == pytest.approx(1.75, rel=0.01)


def test_a_stream_that_runs_ahead_does_not_hide_its_work():
    """The urgent stream runs all its periods before the other one may begin; then periods take 1 s each, but a long run takes 3 s each."""
    plan, costs = build(
        task("urgent", 2.0, stream=1, priority=-1, grid=10, compute_share=1.0), task("other", 1.0, grid=10, compute_share=1.0)
    )
    steady = simulate(plan, gpu(sms=10), costs)
    assert (steady.step_s, steady.settled) == (pytest.approx(3.0), True)
    assert simulate(plan, gpu(sms=10), costs, iterations=40).step_s == pytest.approx(3.0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", strategies.names(2))
def test_no_strategy_is_faster_than_its_bound(name):
    job, machine = Job("tests/support/mlp.py:make", 16), core_groups(2, link_bytes_per_s=1e9)
    model = CostModel(machine)
    strategy = strategies.get(name)
    for text in strategy.texts(job, machine):
        try:
            plan = strategies.parse(text)[0].plan(job, machine, model, strategies.parse(text)[1])
        except SchedcastError:
            continue
        for part in plan.sequence:
            costs = model.resolve(part)
            bound = bound_of(part, costs, machine)
            assert 0 < bound.step_s * (1 - 1e-9) <= simulate(part, machine, costs).step_s, text
