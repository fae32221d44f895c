"""Naive model parallelism: a pipeline of one microbatch, in which one device works at a time."""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.planning import FUSED, DrainingOptions, synchronous
from traces.errors import SchedcastError

NAME = "model-parallel"
FAMILY = "pipelines"
ABOUT = "stages on several devices, one after another: the whole batch goes forward and back, and one device works at a time"
USES_COSTS = True
LEAST_DEVICES = 2
CANDIDATES = FUSED


@dataclass(frozen=True)
class Options(DrainingOptions):
    """How the model is cut."""

    microbatches: int = 1
    """Microbatches of a step; gpipe has several."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One stage per device. With --accumulate, the microbatches follow each other as gpipe's do."""
    if options.microbatches != 1:
        raise SchedcastError(f"{NAME} has one microbatch, microbatches is {options.microbatches}; use gpipe for several")
    return synchronous(NAME, job, machine, costs, options, orders.gpipe_order, microbatches=job.accumulate)
