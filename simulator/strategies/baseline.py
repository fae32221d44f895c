"""Plain training: forward, backward, then all updates, on one stream."""

from dataclasses import dataclass

from simulator.build import PlanBuilder
from simulator.plan.plan import Plan

NAME = "baseline"
ABOUT = "forward, backward, then the optimizer: what PyTorch does by itself"


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Micro-batches one after another, clipping, then one update of all parameters (for-loop form: one per parameter)."""
    build = PlanBuilder(job, machine.devices[0].name)
    return build.plan(NAME, build.step() + build.updates(), options)
