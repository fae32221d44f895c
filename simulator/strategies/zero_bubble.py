"""Zero-bubble pipelines: a backward is split in two, and gradients by the weights fill what would be bubbles.

"Zero Bubble Pipeline Parallelism" (Qi et al., 2023); the V shape is of "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024).
"""

from dataclasses import dataclass
from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.pipeline import zero_bubble
from simulator.strategies.pipeline.planning import (
    FUSED,
    ScheduledOptions,
    combined,
    cut,
    devices_of,
    holders_of,
    microbatch_texts,
    microbatches_in,
    named,
    op_seconds,
    refuse_clipping,
    scheduled,
    scheduled_by_file,
    stages_in,
)
from simulator.strategies.pipeline.schedule import Action
from traces.errors import SchedcastError

NAME = "zero-bubble"
FAMILY = "pipelines"
ABOUT = "pipeline whose backward is split: gradients by the weights wait until a stage would be idle"
USES_COSTS = True
LEAST_DEVICES = 2


@dataclass(frozen=True)
class Options(ScheduledOptions):
    """How the model is cut, and what a stage may keep."""

    memory: Literal["1f1b", "free"] = "1f1b"
    """Activations that a device may keep: as many as with 1f1b, or any number, which leaves fewer bubbles."""
    shape: Literal["straight", "v"] = "straight"
    """straight: one stage on each device; v: two, the second half of the stages in reverse, so that the first device has the loss."""


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches, the memory, the shape, and backward-fusion."""
    return combined(microbatch_texts(job, machine), ("memory=free",), ("shape=v",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Order the halves of all backwards by their predicted times. Raises SchedcastError for unusable options."""
    if options.schedule:
        return scheduled_by_file(NAME, job, machine, costs, options)
    refuse_clipping(job, NAME)
    per_device = 2 if options.shape == "v" else 1
    stages = stages_in(options, 0, NAME)
    if stages % per_device:
        raise SchedcastError(f"{NAME}:shape=v has two stages on each device; {stages} stages do not divide; choose an even number")
    devices = devices_of(machine, stages // per_device, NAME, options)
    ranks = len(devices) // holders_of(options)
    stages = ranks * per_device
    microbatches = microbatches_in(job, options, ranks)
    with named(NAME):
        cut_graph = cut(job, machine, costs, options, stages, microbatches)
    seconds = op_seconds(job, machine, costs, cut_graph.graph)

    def seconds_of(action: Action) -> float:
        return sum(seconds[index] for index in cut_graph.chunks[action.stage, action.kind])

    most = stages if options.memory == "1f1b" else None
    schedule = zero_bubble.order(stages, microbatches, seconds_of, most, options.shape)
    return scheduled(NAME, job, machine, options, schedule, devices, cut_graph)
