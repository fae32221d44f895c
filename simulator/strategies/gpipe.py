"""GPipe: all microbatches go forward through the stages, then all go backward ("GPipe", Huang et al., 2019)."""

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline import orders, planning
from simulator.strategies.pipeline.planning import FUSED, combined, microbatch_texts, synchronous

NAME = "gpipe"
FAMILY = "pipelines"
ABOUT = "pipeline of stages: all forwards of the microbatches, then all backwards, then the update"
USES_COSTS = True
LEAST_DEVICES = 2


Options = planning.ScheduledOptions
portion = planning.portion


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches, forwards that are repeated, and backward-fusion."""
    return combined(microbatch_texts(job, machine), ("rematerialize=on",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One stage per device. The bubble is (S - 1) / (M + S - 1) of the step if stages take equal time."""
    return synchronous(NAME, job, machine, costs, options, orders.gpipe_order)
