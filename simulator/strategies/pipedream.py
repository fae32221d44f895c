"""PipeDream: each stage alternates between the forward of one mini-batch and the backward of an older one, and saves its weights for that.

"PipeDream: Generalized Pipeline Parallelism for DNN Training" (Narayanan et al., SOSP 2019), with weight stashing.
"""

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline.asynchronous import STASHED, Cycle, asynchronous
from simulator.strategies.pipeline.planning import StageOptions, devices_of, stages_in

NAME = "pipedream"
FAMILY = "pipelines"
ABOUT = "pipeline of mini-batches without a flush: 1F1B with stale weights, which each stage keeps from forward to backward"
USES_COSTS = True
LEAST_DEVICES = 2


Options = StageOptions


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One stage per device. Stage s of S (from 0) has S - s mini-batches in flight, and its weights lack S - 1 - s updates."""
    devices = devices_of(machine, stages_in(options, NAME), NAME)
    stages = len(devices)
    cycle = Cycle((0,) * stages, tuple(stages - 1 - stage for stage in range(stages)))
    return asynchronous(NAME, job, machine, costs=costs, options=options, cycle=cycle, forward=devices, backward=devices, weights=STASHED)
