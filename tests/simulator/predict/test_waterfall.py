"""Waterfalls: the parts of a step add up to it, and the parts of a difference to the difference."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.costs.cost import Cost
from simulator.engine.scenario import Scenario
from simulator.engine.simulation import Simulation
from simulator.machine.machine import HOST, Link, Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, PHASES, UPDATE
from simulator.predict.answers import answers, prediction
from simulator.predict.forecast import Forecast
from simulator.predict.target import Target, preset_target
from simulator.predict.waterfall import OnPath, StepParts, measured_waterfall, step_parts, task_seconds, waterfall
from simulator.strategies import registry
from tests.support.random_plans import MACHINES, plans
from tests.support.tiny import build, copy, cpu, gpu, host, task
from traces.documents.comparison import Change
from traces.documents.timeline import Span, Timeline


def parts_of(
    plan: Plan, costs: Sequence[Cost], machine: Machine, mode: str = "eager", multipliers: Mapping[tuple[str, str], float] | None = None
) -> StepParts:
    """The parts of the steady step."""
    simulation = Simulation(Scenario(plan, machine, costs, mode, multipliers or {})).play()
    return step_parts(simulation.timeline(), task_seconds(simulation))


def nonzero(parts: StepParts) -> dict[str, float]:
    """The parts of a step by name, without those that take no time."""
    return {part: pytest.approx(seconds) for part, seconds in parts.on_path.items() if abs(seconds) > 1e-12}


def changes(before: StepParts, after: StepParts) -> dict[str, float]:
    """The parts of the difference by name, rounded."""
    return {change.part: round(change.seconds, 9) for change in waterfall(before, after)}


def step(*, fused: bool = False, streams: int = 1):
    """A step of forward, dX, dW and update, with dW on a stream of its own if there are two streams."""
    update = task("u", 1.0, reads="g", mutates="w", phase=UPDATE)
    return build(
        task("f", 2.0, reads="x w", writes="y"),
        task("dX", 3.0, reads="y w", writes="e", phase=BACKWARD),
        task("dW", 2.0, reads="y e" if streams == 1 else "y", writes="g", phase=BACKWARD, stream=streams - 1, group="dW"),
        *([] if fused else [update]),
    )


def test_the_parts_of_a_serial_step_are_its_phases():
    assert nonzero(parts_of(*step(), gpu())) == {"forward": 2.0, "backward": 5.0, "update": 1.0}


def test_work_beside_other_work_is_overlap():
    assert changes(parts_of(*step(), cpu(cores=2)), parts_of(*step(streams=2), cpu(cores=2))) == {"overlap of backward": -2.0}


def test_what_tasks_take_longer_beside_others_is_contention():
    slower = {("dX", "dW"): 1.5, ("dW", "dX"): 1.5}  # while dW's 2 s run as 3 s, dX does 2 s of its 3 s
    plan, costs = step(streams=2)
    costs[1] = replace(costs[1], group="dX")
    beside = parts_of(plan, costs, cpu(cores=2), multipliers=slower)
    assert nonzero(beside) == {"forward": 2.0, "backward": 3.0, "contention": 1.0, "update": 1.0}
    assert changes(parts_of(*step(), cpu(cores=2)), beside) == {"overlap of backward": -2.0, "contention": 1.0}


def test_tasks_that_take_less_time_are_work_and_not_overlap():
    assert changes(parts_of(*step(), gpu()), parts_of(*step(fused=True), gpu())) == {"update": -1.0}


def test_page_faults_are_the_work_of_the_task_that_first_writes():
    plan, (first, *others) = step()
    costs = [replace(first, overhead_s=0.5, fresh_s=0.4), *others]
    assert nonzero(parts_of(plan, costs, gpu())) == {"forward": 2.4, "launches": 0.1, "backward": 5.0, "update": 1.0}


def test_the_host_has_a_part():
    launch_bound = parts_of(*step(), gpu(host=host(dispatch_s=4.0)))
    assert launch_bound.step_s == 16.0
    assert sum(launch_bound.on_path.values()) == 16.0
    assert changes(parts_of(*step(), gpu()), launch_bound)["launches"] > 7.0


def test_the_executor_s_own_time_on_a_cpu_counts_as_launches():
    assert nonzero(parts_of(*step(), cpu(overhead_s=0.25))) == {"forward": 2.0, "backward": 5.0, "update": 1.0, "launches": 1.0}


def test_a_sleeping_worker_leaves_the_path_idle():
    asleep = cpu(cores=2)
    asleep = replace(asleep, devices=(replace(asleep.devices[0], wake_s=0.5),))
    plan, costs = build(
        task("a", 1.0, reads="x w", writes="y"),
        task("c", 0.5, reads="y", writes="v"),
        task("b", 2.0, reads="y", writes="z", stream=1),
        task("d", 1.0, reads="z v", mutates="w"),
    )
    assert nonzero(parts_of(plan, costs, asleep)) == {"forward": 4.0, "idle": 0.5}


def test_a_link_that_two_transfers_share_is_contention():
    links = tuple(Link(HOST, device, 0.0, 100.0, channel="bus") for device in ("p", "q"))
    copies = [copy(f"c{d}", HOST, d, "x", f"y{d}", on=d) for d in ("p", "q")]
    plan, costs = build(*copies, lengths={"x": 25, "yp": 25, "yq": 25})
    parts = parts_of(plan, costs, gpu("p", "q", links=links))
    assert nonzero(parts) == {"communication": 1.0, "contention": 1.0}
    assert parts.work == {"communication": pytest.approx(2.0)}


def with_phases(plan: Plan, shift: int) -> Plan:
    """The plan with the phases of a step, dealt out one after another."""
    phases = cycle((*PHASES[shift:], *PHASES[:shift]))
    return replace(plan, tasks=tuple(replace(t, phase=next(phases)) for t in plan.tasks))


@pytest.mark.thorough
@settings(max_examples=60)
@given(plans(), plans(), MACHINES, st.integers(0, 4))
def test_the_parts_of_any_two_plans_add_up(first, second, machine, shift):
    before, after = (parts_of(with_phases(plan, shift), costs, machine) for plan, costs in (first, second))
    for parts in (before, after):
        assert sum(parts.on_path.values()) == pytest.approx(parts.step_s, rel=1e-12, abs=1e-12)
        assert all(seconds >= -1e-9 for seconds in parts.on_path.values()), parts.on_path
        assert all(parts.work[part] >= seconds - 1e-9 for part, seconds in parts.on_path.items() if part in parts.work), (
            "no work is invented"
        )
    assert_adds_up(waterfall(before, after), after.step_s - before.step_s, before.step_s + after.step_s)


def assert_adds_up(parts: tuple[Change, ...], difference_s: float, scale_s: float) -> None:
    """Check that the parts add up, and that no phase has a gain beside a loss."""
    assert sum(change.seconds for change in parts) == pytest.approx(difference_s, abs=1e-11 * scale_s)
    by_part = {change.part: change.seconds for change in parts}
    assert len(by_part) == len(parts)
    for part, seconds in by_part.items():
        assert seconds * by_part.get(f"overlap of {part}", 0.0) >= 0.0, by_part


@pytest.fixture(scope="module")
def every_forecast() -> list[tuple[Forecast, Forecast]]:
    """(baseline, strategy) for every strategy that runs LeNet on some machines, eagerly and, on a GPU, as a CUDA graph."""
    job, pairs = Job("lenet5", 8), []
    for name, mode in (("this-cpu", "eager"), ("h100", "eager"), ("v100", "graph"), ("p100x4", "eager"), ("2xgtx1060", "eager")):
        target = preset_target(job, name)
        machine, model = target.machine, target.costs
        texts = [*registry.names(len(machine.devices)), "pytorch-hooks:sync=phase"]
        forecasts = answers(job, texts, Target(machine, model, mode)).forecasts
        pairs += [(forecasts["baseline"], other) for other in forecasts.values() if isinstance(other, Forecast)]
    return pairs


def test_the_parts_of_every_strategy_add_up_on_every_machine(every_forecast):
    assert len({other.plan.strategy for _, other in every_forecast}) == len(registry.every())
    for base, other in every_forecast:
        document = prediction(other, base, "fp32")
        assert_adds_up(document.waterfall, document.step_s - document.baseline_step_s, document.step_s)
        assert bool(document.waterfall) or document.step_s == pytest.approx(document.baseline_step_s)


def test_a_measurement_differs_by_its_tasks_by_the_time_between_them_and_by_the_rest():
    predicted = StepParts(
        0.010,
        {"forward": 0.004, "update": 0.005, "launches": 0.001},
        {},
        (OnPath("f", "forward", 1.0, 0.004), OnPath("u", "update", 0.5, 0.005)),
    )
    spans = (
        Span("f", "d", "0", 0.0, 0.9, "forward"),  # of an earlier period, which the timeline does not show
        Span("f", "d", "0", 1.000, 1.006, "forward", period=1),
        Span("u", "d", "0", 1.007, 1.015, "update", period=1),
    )
    measured = Timeline("measured", spans, 0.016, (1.0, 1.015))
    parts = {change.part: round(change.seconds, 9) for change in measured_waterfall(predicted, measured, 0.016)}
    assert parts == {"forward": 0.002, "update": -0.001, "waiting between tasks": 0.004, "not explained by task times": 0.001}


def test_a_task_that_was_not_measured_makes_no_difference():
    predicted = StepParts(0.010, {"communication": 0.010}, {}, (OnPath("c", "communication", 1.0, 0.010),))
    measured = Timeline("measured", (Span("f", "d", "0", 0.0, 0.012, "forward"),), 0.012, (0.0, 0.012))
    assert [(c.part, round(c.seconds, 9)) for c in measured_waterfall(predicted, measured, 0.012)] == [("waiting between tasks", 0.002)]


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_any_measurement_adds_up(every_forecast, mode):
    for _, predicted in every_forecast:
        if predicted.timeline.mode != mode:
            continue
        spans = tuple(replace(s, end_s=s.start_s + 1.7 * (s.end_s - s.start_s)) for s in predicted.timeline.spans)
        measured = replace(predicted.timeline, kind="measured", spans=spans)
        step_s = 1.3 * predicted.timeline.step_s
        assert_adds_up(measured_waterfall(predicted.parts, measured, step_s), step_s - predicted.timeline.step_s, step_s)
