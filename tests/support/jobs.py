"""The job and the plans that most tests use."""

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from tests.support import mlp

#: The model of two linear layers.
MLP = f"{mlp.__file__}:make"


def planned(text: str, job: Job, machine: Machine, costs: CostModel | None = None) -> Plan:
    """A valid plan by `NAME[:option=value,...]`."""
    strategy, options = strategies.parse(text)
    plan = strategy.plan(job, machine, costs, options)
    plan.validate(machine)
    return plan
