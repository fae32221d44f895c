"""What a step depends on: every second of the critical path and of the lanes beside it, by source of error."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings

from simulator.engine.costs.cost import DATASHEET, Z_90
from simulator.engine.scenario import Scenario
from simulator.engine.simulation import Simulation, simulate
from simulator.machine.machine import Link
from simulator.plan.bodies.copy import Collective, Copy
from simulator.plan.bodies.host import Host
from simulator.predict.intervals import EXACT, speedup_interval, step_interval
from simulator.predict.sensitivity import UNMEASURED_SLOW_DOWN, sensitivity
from tests.support.random_plans import MACHINES, plans
from tests.support.tiny import build, chain, copy, cpu, gpu, host, task

ERRORS = {"dispatch_s": 0.4, "record_s": 0.7, "wait_s": 0.7, "switch_s": 0.3, "graph_launch_s": 0.6, "node_gap_s": 0.5, "callback_s": 0.7}


def of(plan, costs, machine, mode="eager", iterations=None, **more):
    """The sensitivity of a plan's steady state, or of so many iterations."""
    simulation = Simulation(Scenario(plan, machine, costs, mode), iterations).play()
    return sensitivity(simulation, simulation.timeline(), **more)


def path(*arguments, **more) -> dict[str, float]:
    """Seconds of the critical path by source, those above rounding."""
    return {source: pytest.approx(s) for source, s in of(*arguments, **more).chains[0].items() if s > 1e-12}


def test_a_measured_task_is_its_key_and_a_guessed_one_its_class_and_error():
    plan, costs = build(
        task("a", 1.0, reads="x", writes="y", spread=0.1),
        task("b", 2.0, reads="y", writes="z", source=DATASHEET, op_class="conv", error=0.3),
        task("c", 3.0, reads="z", writes="u", source=DATASHEET, op_class="conv", error=0.9),
    )
    assert path(plan, costs, cpu()) == {"a": 1.0, "conv 0.3": 2.0, "conv 0.9": 3.0}


def test_a_step_that_waits_for_the_host_has_the_hosts_error():
    """The critical path of a launch-bound step is the host; its interval was that of the last kernel alone."""
    plan, costs = chain(1e-6, 1e-6, 1e-6, 1e-6)
    seen = of(plan, costs, gpu(host=host(dispatch_s=1e-5, errors=ERRORS)))
    assert seen.deviations["dispatch_s"] == 0.4
    assert sum(seen.chains[0].values()) == pytest.approx(4e-5)
    assert seen.chains[0]["dispatch_s"] >= 3.9e-5
    low, high = step_interval(seen)
    assert math.log(high / low) / (2 * 1.645) == pytest.approx(0.4, rel=0.05)


def test_a_host_that_was_measured_is_exact():
    plan, costs = chain(1e-6, 1e-6)
    seen = of(plan, costs, gpu(host=host(dispatch_s=1e-5)))
    assert "dispatch_s" not in seen.deviations
    assert step_interval(seen) == pytest.approx((2e-5, 2e-5))


def test_the_host_is_split_into_dispatch_events_and_issue_times():
    """b waits for a on another stream: one event is recorded and one awaited. The host changes the lane for each."""
    plan, costs = build(
        task("a", 0.0, reads="x", writes="y", issue_s=3.0, issue_error=0.2, op_class="conv"),
        task("b", 0.0, reads="y", writes="z", stream=1, issue_s=4.0, op_class="pool"),
    )
    seen = of(plan, costs, gpu(host=host(dispatch_s=1.0, record_s=0.5, wait_s=0.25, switch_s=0.125, errors=ERRORS)))
    (issued,) = [chain for chain in seen.chains if chain.get("issue conv 0.2")][-1:]
    assert issued == {"dispatch_s": 2.0, "record_s": 0.5, "wait_s": 0.25, "switch_s": 0.25, "issue conv 0.2": 3.0, EXACT: 4.0}
    assert seen.deviations["issue conv 0.2"] == 0.2


def test_what_is_assumed_of_a_host_is_wrong_for_all_classes_together():
    """A slow CPU issues convolutions and pools slowly; as errors of their own they would cancel each other in part."""
    plan, costs = build(
        task("a", 0.0, reads="x", writes="y", issue_s=3.0, issue_error=0.8, op_class="conv", source=DATASHEET),
        task("b", 0.0, reads="y", writes="z", issue_s=4.0, issue_error=0.8, op_class="pool", source=DATASHEET),
    )
    seen = of(plan, costs, gpu(host=host(errors={"loop_s": 0.8})))
    assert {"loop_s": pytest.approx(7.0)} in seen.chains
    assert step_interval(seen)[1] == pytest.approx(7.0 * math.exp(Z_90 * 0.8), rel=0.01)


def test_the_host_launches_no_alias_but_every_call_of_its_own():
    plan, costs = build(
        task("call", reads="x", writes="y", body=Host(0.0)),
        task("alias", 0.0, reads="y", writes="z", body=Copy("d", "e", means="alias"), phase="transfer"),
        task("f", 0.0, reads="z", writes="u", on="e", launches=3),
    )
    seen = of(plan, costs, gpu("d", "e", memory="hbm", host=host("d", "e", dispatch_s=1.0, errors=ERRORS)))
    assert seen.step_s == pytest.approx(4.0)
    assert seen.chains[0]["dispatch_s"] == pytest.approx(4.0)
    assert {"dispatch_s": pytest.approx(4.0)} in seen.chains


def test_each_host_has_the_launches_of_its_own_tasks():
    names = ("d", "e", "f")
    hosts = tuple(replace(host(name, dispatch_s=1.0, errors=ERRORS), name=f"host of {name}") for name in names)
    plan, costs = build(*(task(f"on {name}", 0.0, reads="x", writes=f"y{name}", on=name) for name in names))
    seen = of(plan, costs, replace(gpu(*names), hosts=hosts))
    assert seen.chains.count({"dispatch_s": pytest.approx(1.0)}) >= len(names)


def test_part_of_a_period_of_the_host_belongs_to_the_tasks_that_it_issued_last():
    """The host is blocked by `a` until 5 s, and then issues b and c, whose launch c waits for."""
    plan, costs = build(
        task("a", 5.0, reads="x", writes="y", issue_s=1.0, issue_error=0.1, op_class="conv"),
        task("b", 0.0, reads="y", writes="z", issue_s=2.0, issue_error=0.1, op_class="pool"),
        task("c", 1.0, reads="z", writes="u", issue_s=3.0, issue_error=0.1, op_class="norm"),
    )
    seen = path(plan, costs, gpu(host=host(queue_depth=1)))
    assert seen == {EXACT: 6.0, "issue conv 0.1": 1.0, "issue pool 0.1": 2.0, "issue norm 0.1": 3.0}


def test_a_transfer_is_the_latency_and_the_bandwidth_of_its_link():
    machine = gpu("p", "q", links=(Link("p", "q", 0.25, 400.0, latency_error=0.7, bandwidth_error=0.3),))
    plan, costs = build(copy("move", "p", "q", "x", "y"), task("f", 1.0, reads="y", writes="z", on="q"))
    seen = of(plan, costs, machine, iterations=1)
    assert seen.chains[0] == {"link latency 0.7": pytest.approx(0.25), "link bandwidth 0.3": pytest.approx(1.0), EXACT: 1.0}
    assert seen.deviations == {"link latency 0.7": 0.7, "link bandwidth 0.3": 0.3}


def test_a_collective_has_the_errors_of_the_links_that_it_runs_over():
    links = tuple(Link(a, b, 0.25, 400.0, latency_error=1.0, bandwidth_error=0.5) for a, b in (("p", "q"), ("q", "p")))
    body = Collective("all-reduce", ("p", "q"))
    plan, costs = build(
        task("f", 1.0, reads="x", writes="g", on="p"),
        task("f'", 1.0, reads="x'", writes="h", on="q"),
        task("sum", 0.0, mutates="g h", on="p", stream=9, body=body, phase="collective"),
    )
    seen = of(plan, costs, gpu("p", "q", links=links), iterations=1)
    assert seen.chains[0]["link latency 1"] == pytest.approx(0.5)  # two rounds
    assert seen.chains[0]["link bandwidth 0.5"] == pytest.approx(1.0)  # 400 bytes, half of them twice


def test_gaps_between_the_nodes_of_a_graph_have_an_error():
    plan, costs = chain(1.0, 1.0)
    seen = of(plan, costs, gpu(host=host(graph_launch_s=0.25, node_gap_s=0.5, errors=ERRORS)), mode="graph")
    # In four steps: one launch, whose wait hides the first gap, and seven gaps between eight nodes.
    assert seen.chains[0] == {EXACT: pytest.approx(2.0), "graph_launch_s": pytest.approx(0.5 / 4), "node_gap_s": pytest.approx(3.5 / 4)}
    assert seen.deviations == {"graph_launch_s": 0.6, "node_gap_s": 0.5}


def test_a_callback_has_an_error_beside_its_exact_duration():
    plan, costs = build(task("gap", reads="x", writes="y", body=Host(0.5)), task("f", 1.0, reads="y", writes="z"))
    seen = of(plan, costs, gpu(host=host(callback_s=0.25, errors=ERRORS)))
    assert seen.chains[0]["callback_s"] == pytest.approx(0.25)


def test_a_guessed_overhead_of_a_cpu_has_an_error_of_its_own():
    machine = cpu(overhead_s=0.25)
    machine = replace(machine, devices=tuple(replace(d, errors={"task_overhead_s": 0.7}) for d in machine.devices))
    assert path(*chain(1.0, spread=0.1), machine) == {"task_overhead_s": 0.25, "t0": 1.0}


def test_a_slow_down_has_an_error_unless_co_runs_were_measured():
    """Two tasks that draw the whole bandwidth take twice as long beside each other."""
    greedy = partial(task, memory_share=1.0, grid=5, group="memory")
    plan, costs = build(greedy("a", 1.0, reads="x", writes="y"), greedy("b", 1.0, reads="x", writes="z", stream=1))
    guessed = of(plan, costs, gpu())
    assert guessed.step_s == pytest.approx(2.0)
    assert guessed.chains[0] == {EXACT: pytest.approx(1.0), "slow-down": pytest.approx(1.0)}
    assert guessed.deviations == {"slow-down": UNMEASURED_SLOW_DOWN}
    assert "slow-down" not in of(plan, costs, gpu(), co_runs=True).deviations


@settings(max_examples=60)
@given(plan=plans(), machine=MACHINES)
def test_every_second_of_the_critical_path_has_a_source_and_no_chain_is_longer(plan, machine):
    seen = of(*plan, machine)
    if not seen.step_s:
        return
    totals = [sum(chain.values()) for chain in seen.chains]
    assert totals[0] == pytest.approx(seen.step_s, rel=1e-6)
    assert max(totals) == pytest.approx(seen.step_s, rel=1e-6)


@pytest.mark.thorough
def test_the_linear_interval_agrees_with_simulations_of_drawn_costs():
    """Both plans are simulated anew for every draw of a lognormal error per key, which they share."""
    deviations = {"k": 0.05, "l": 0.08, "m": 0.06}

    def plans_of(factor):
        one = [task(f"t{i}", s * factor[k], reads=f"v{i}", writes=f"v{i + 1}", key=k) for i, (k, s) in enumerate((("k", 3.0), ("l", 2.0)))]
        base = build(*one, task("u", 2.0 * factor["m"], reads="v0", writes="w", key="m"))
        beside = build(*one, task("u", 2.0 * factor["m"], reads="v0", writes="w", key="m", stream=1))
        return base, beside

    def with_errors(built):
        plan, costs = built
        return plan, [replace(cost, error=deviations[cost.key]) for cost in costs]

    rng = np.random.default_rng(7)
    machine, speedups = cpu(cores=2), []
    for _ in range(200):
        factor = {key: math.exp(r * rng.standard_normal()) for key, r in deviations.items()}
        base, beside = plans_of(factor)
        speedups.append(simulate(base[0], machine, base[1]).step_s / simulate(beside[0], machine, beside[1]).step_s)
    base, beside = (of(*with_errors(built), machine, co_runs=True) for built in plans_of(dict.fromkeys(deviations, 1.0)))
    assert (base.step_s, beside.step_s) == (7.0, 5.0)
    assert speedup_interval(base, beside) == pytest.approx(np.quantile(speedups, (0.05, 0.95)), rel=0.015)
