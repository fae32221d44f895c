"""Interleaved 1F1B: stage s runs on device s mod D, so a bubble is as short as one of a device's stages (Narayanan et al., 2021)."""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline.orders import interleaved
from simulator.strategies.pipeline.planning import FUSED, ScheduledOptions, combined, micro_batch_texts, synchronous
from traces.errors import SchedcastError

NAME = "interleaved-1f1b"
FAMILY = "pipelines"
ABOUT = "pipeline with several stages on each device, in 1F1B order: shorter bubbles, more transfers"
USES_COSTS = True
LEAST_DEVICES = 2


@dataclass(frozen=True)
class Options(ScheduledOptions):
    """How the model is cut."""

    per_device: int = 2
    """Stages on each device."""

    def __post_init__(self):
        """Raise SchedcastError for fewer than one stage on a device."""
        super().__post_init__()
        if self.per_device < 1:
            raise SchedcastError(f"{NAME}: per_device is {self.per_device}; expected at least 1")


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of micro-batches, and of stages on each device, and backward-fusion."""
    return combined(micro_batch_texts(job, machine), ("per_device=4",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """`per_device` stages on each device."""
    v = options.per_device
    return synchronous(NAME, job, machine, costs, options, lambda ranks, m: interleaved.order(ranks, m, v), per_rank=v)
