"""A scenario: what follows from a plan on a machine is derived once, for every part of a prediction."""

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import Scratch
from simulator.engine.scenario import GRAPH, Scenario
from simulator.engine.simulation import Simulation
from simulator.plan.dependencies import dependencies_of
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support.tiny import chain, cpu, gpu, host


def test_a_prediction_has_the_scenario_that_was_simulated_and_derives_its_scratch_once(monkeypatch):
    derived, of = [], Scratch.of
    monkeypatch.setattr(Scratch, "of", lambda *arguments: derived.append(arguments) or of(*arguments))
    plan, costs = chain(1.0, 2.0)
    machine = gpu(host=host(dispatch_s=0.5))
    own = forecast(plan, Target.of(CostModel(machine))).scenario
    assert (own.plan, own.machine, len(own.costs)) == (plan, machine, len(costs))
    assert own.dependencies is dependencies_of(plan, machine)
    assert derived == [(plan, machine, False)]


def test_a_mode_that_the_machine_lacks_is_refused_before_anything_is_simulated():
    plan, costs = chain(1.0)
    with pytest.raises(ValueError, match="mode 'graph' needs CUDA devices"):
        Simulation(Scenario(plan, cpu(), costs, GRAPH))
