"""PipeDream-2BW: 1F1B without a flush over the microbatches of every step, with two versions of the weights.

"Memory-Efficient Pipeline-Parallel DNN Training" (Narayanan et al., ICML 2021). Every step computes with weights that lack one update.
"""

from dataclasses import replace

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.pipeline.planning import (
    StageOptions,
    cut,
    devices_of,
    microbatch_texts,
    microbatches_in,
    named,
    refuse_clipping,
    stages_in,
)
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action
from simulator.strategies.pipeline.staleness import stale_notes
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = "pipedream-2bw"
FAMILY = "pipelines"
ABOUT = "pipeline of microbatches without a flush: weights that lack one update, in two versions"
USES_COSTS = True
LEAST_DEVICES = 2


Options = StageOptions


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches."""
    return microbatch_texts(job, machine)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One stage per device. Raises SchedcastError for fewer microbatches than stages."""
    refuse_clipping(job, NAME)
    devices = devices_of(machine, stages_in(options, NAME), NAME)
    stages, count = len(devices), microbatches_in(job, options, len(devices))
    if count < stages:
        raise SchedcastError(
            f"{NAME} needs at least as many microbatches as stages: {count} for {stages}; choose a larger --batch", Code.BATCH
        )
    with gc_paused():
        with named(NAME):
            pipeline = Pipeline(job, machine, cut(job, machine, costs, options, stages, count), count, devices, devices)
        tasks = [*pipeline.build.counts(), *_period(pipeline, count)]
        draft = pipeline.build.plan(NAME, tasks, options, pipeline.notes)
        with named(NAME):
            return replace(draft, semantics={**draft.semantics, **stale_notes(draft, pipeline.cut.parameters)})


def _period(pipeline: Pipeline, count: int) -> list[Task]:
    """One step's forwards, each followed by the backward that is due.

    Stage s of S is S - 1 - s microbatches behind with its backwards, so the last of them belong to the previous step. When these are done,
    the stage saves a copy of its weights for the rest of this step, and updates them with the gradients of the previous step.
    """
    stages = pipeline.stages
    behind = [stages - 1 - stage for stage in range(stages)]
    tasks: list[Task] = []
    kept: dict[int, dict[str, str]] = {}

    def renew(stage: int) -> list[Task]:
        copies, kept[stage] = pipeline.snapshot(stage)
        return copies + pipeline.updates(stage, lag=1)

    tasks += renew(stages - 1)
    copies_of = {stage: pipeline.snapshot(stage)[1] for stage in range(stages)}  # a backward of the step before reads that step's copy
    for position in range(count):
        for stage in range(stages):
            tasks += pipeline.work(Action(stage, FORWARD, position), instead=kept.get(stage))
        for stage in reversed(range(stages)):
            earlier = position < behind[stage]
            microbatch = position - behind[stage] + (count if earlier else 0)
            tasks += pipeline.work(Action(stage, BACKWARD, microbatch), int(earlier), copies_of[stage])
            if position == behind[stage] - 1:
                tasks += renew(stage)
    return tasks
