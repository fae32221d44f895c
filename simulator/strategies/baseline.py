"""Plain training: forward, backward, then all updates, on one stream."""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.builder import PlanBuilder

NAME = "baseline"
ABOUT = "forward, backward, then the optimizer: the order of plain PyTorch"


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Run the microbatches one after another, then clip, then update all parameters (in the for-loop form, one task per parameter)."""
    build = PlanBuilder(job, machine.devices[0].name)
    return build.plan(NAME, build.step() + build.updates(), options)
