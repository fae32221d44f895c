"""Predictions for one machine of what is trained on another."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast
from simulator.predict.preset import forecast_elsewhere
from simulator.strategies import registry as strategies
from traces.documents.targets import Curve
from traces.errors import SchedcastError

JOB = Job("lenet5", 8, 16)


def predicted(text: str, machine) -> float:
    strategy, options = strategies.parse(text)
    model = CostModel(machine)
    return forecast(strategy.plan(JOB, machine, model, options), machine, model).timeline.step_s


def trained(text: str):
    strategy, options = strategies.parse(text)
    machine = load_machine("this-cpu")
    return strategy.plan(JOB, machine, CostModel(machine), options)


def test_a_simulated_pipeline_has_its_devices_on_the_other_machine():
    machine, text = load_machine("2xgtx1060"), "stale-pipeline:on=simulated,placement=1"
    step_s = forecast_elsewhere(text, {}, trained(text), JOB, machine, CostModel(machine)).timeline.step_s
    assert step_s == predicted("stale-pipeline:placement=1", machine)
    assert step_s < predicted(text, machine)


def test_the_cuts_are_those_that_train():
    """They balance this CPU, and not the other machine."""
    machine, text = load_machine("2xgtx1060"), "stale-pipeline:on=simulated"
    plan = trained(text)
    step_s = forecast_elsewhere(text, {}, plan, JOB, machine, CostModel(machine)).timeline.step_s
    assert step_s == predicted(f"stale-pipeline:placement={plan.semantics['placement']}", machine)


def test_a_strategy_of_one_device_is_predicted_as_it_is():
    machine = load_machine("h100")
    assert forecast_elsewhere("baseline", {}, trained("baseline"), JOB, machine, CostModel(machine)).timeline.step_s == predicted(
        "baseline", machine
    )


def test_a_schedule_that_changes_has_a_phase_for_each_part():
    machine, text = load_machine("2xgtx1060"), "hybrid-pipeline:iterations=10,pipelined=0.6,placement=1"
    (first, stale_s), (switch, plain_s) = forecast_elsewhere(text, {}, None, JOB, machine, CostModel(machine)).phases
    assert (first, switch) == (0, 6)
    assert (6 * stale_s + 4 * plain_s) / 10 == pytest.approx(predicted(text, machine))
    curve = Curve(name=text, losses=(1.0,) * 10, seconds=(0.0,) * 10, predicted_step_s=1.8, predicted_phases=((0, 1.0), (6, 3.0)))
    assert [curve.predicted_s(iteration) for iteration in (0, 5, 6, 10)] == [0.0, 5.0, 6.0, 18.0]


def test_a_machine_with_too_few_devices_is_refused():
    machine, text = load_machine("h100"), "stale-pipeline:on=simulated"
    with pytest.raises(SchedcastError, match="--predict-on h100: stale-pipeline needs 2 devices, there is 1"):
        forecast_elsewhere(text, {}, trained(text), JOB, machine, CostModel(machine))
