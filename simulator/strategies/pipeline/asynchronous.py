"""Plans of pipelines that never drain: every period takes in one more mini-batch, and stages work on different ones.

A task's lag says how many mini-batches ago its own went in. How stale the weights are follows from the plan (`staleness`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.checkpoint import choice
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.pipeline.pipeline import Pipeline
from simulator.strategies.pipeline.planning import StageOptions, cut, named, refuse_clipping
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action
from simulator.strategies.pipeline.staleness import stale_notes
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

STASHED: Final = "stashed"


@dataclass(frozen=True)
class Cycle:
    """What the stages do in a period, by stage: the lags of their forward and backward, and which of the two comes first."""

    forward_lags: tuple[int, ...]
    backward_lags: tuple[int, ...]
    backward_first: bool = False


def asynchronous(
    name: str,
    job: Job,
    machine: Machine,
    costs: PlanCosts | None,
    options: StageOptions,
    cycle: Cycle,
    forward: Sequence[str],
    backward: Sequence[str],
    weights: Literal["current", "stashed"],
    staged: bool = False,
) -> Plan:
    """Plan a pipeline whose stages work on whole mini-batches in the order of `cycle`.

    `forward`, `backward`: the device of each stage's forward, and of its backward and update. `weights`: those that a backward reads: the
    current ones, or those that its forward read. `staged`: as in `Pipeline`. Raises SchedcastError for gradient accumulation and clipping.
    """
    refuse_clipping(job, name)
    if job.accumulate > 1 or options.microbatches > 1:
        raise SchedcastError(f"{name} updates after each mini-batch: drop --accumulate and microbatches, or use pipedream-2bw")
    if job.checkpoint != choice.NONE and weights != STASHED:
        raise SchedcastError(
            f"{name}: a backward that repeats its forward would repeat it with other weights (--checkpoint {job.checkpoint}); use"
            " backward_weights=stashed, or drop --checkpoint",
            Code.MODEL,
        )
    with gc_paused():
        stages = len(forward)
        with named(name):
            pipeline = Pipeline(
                job,
                machine,
                cut=cut(job, machine, costs, options, stages, 1),
                microbatches=1,
                forward=forward,
                backward=backward,
                staged=staged,
            )
        forwards: list[Task] = []
        stashes: dict[int, dict[str, str]] = {}
        for stage, lag in enumerate(cycle.forward_lags):
            if weights == STASHED and cycle.backward_lags[stage] > lag:
                kept, stashes[stage] = pipeline.snapshot(stage, lag)
                forwards += kept
            forwards += pipeline.work(Action(stage, FORWARD, 0), lag)
        backwards: list[Task] = []
        for stage in reversed(range(stages)):
            lag = cycle.backward_lags[stage]
            backwards += pipeline.work(Action(stage, BACKWARD, 0), lag, stashes.get(stage))
            backwards += pipeline.updates(stage, lag)
        tasks = _joined(forwards, backwards, cycle)
        draft = pipeline.build.plan(name, tasks, options, pipeline.notes)
        with named(name):
            return replace(draft, semantics={**draft.semantics, **stale_notes(draft, pipeline.cut.parameters)})


def _joined(forwards: list[Task], backwards: list[Task], cycle: Cycle) -> list[Task]:
    """A period: forwards and backwards. A forward and a backward of one mini-batch in one period keep their order."""
    if not cycle.backward_first:
        return forwards + backwards
    same = {lag for lag in cycle.forward_lags if lag in cycle.backward_lags}
    early = [task for task in backwards if task.lag not in same]
    return early + forwards + [task for task in backwards if task.lag in same]
