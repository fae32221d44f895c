"""Predictions for one machine of what is trained on another."""

import pytest

from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.presets import load_machine
from simulator.predict.elsewhere import step_s_elsewhere
from simulator.predict.forecast import forecast
from simulator.strategies import registry as strategies
from traces.errors import StepcastError

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
    step_s = step_s_elsewhere(text, {}, trained(text), JOB, machine, CostModel(machine))
    assert step_s == predicted("stale-pipeline:placement=1", machine)
    assert step_s < predicted(text, machine)


def test_the_cuts_are_those_that_train():
    """They balance this CPU, and not the other machine."""
    machine, text = load_machine("2xgtx1060"), "stale-pipeline:on=simulated"
    plan = trained(text)
    step_s = step_s_elsewhere(text, {}, plan, JOB, machine, CostModel(machine))
    assert step_s == predicted(f"stale-pipeline:placement={plan.semantics['placement']}", machine)


def test_a_strategy_of_one_device_is_predicted_as_it_is():
    machine = load_machine("h100")
    assert step_s_elsewhere("baseline", {}, trained("baseline"), JOB, machine, CostModel(machine)) == predicted("baseline", machine)


def test_a_machine_with_too_few_devices_is_refused():
    machine, text = load_machine("h100"), "stale-pipeline:on=simulated"
    with pytest.raises(StepcastError, match="--predict-on h100: stale-pipeline needs 2 devices, there is 1"):
        step_s_elsewhere(text, {}, trained(text), JOB, machine, CostModel(machine))
