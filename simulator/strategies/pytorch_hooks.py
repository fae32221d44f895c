"""Plain PyTorch whose optimizer is called by hooks, as Jiang et al. ("Optimizer Fusion", section C.1) fuse it in PyTorch's front end.

`executors.reference.Hooked` is that loop. With `sync`, the host waits for the GPU, as a loop does that times its phases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.host import Synchronize
from simulator.plan.bodies.update import MORE_LAUNCHES_1_6
from simulator.plan.fusion import delayed, fused
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.options import UpdateStream
from simulator.strategies.pytorch import in_one_call, own_step
from traces.documents.comparison import PYTORCH_HOOKS
from traces.errors import SchedcastError

NAME = PYTORCH_HOOKS
ABOUT = "plain PyTorch whose hooks update layer by layer (optimizer fusion), or whose host waits after each phase; predicted only"
EXECUTED = False


@dataclass(frozen=True)
class Options:
    """Hooks, and waits of the host."""

    fusion: Literal["none", "forward", "backward"] = "backward"
    """Hooks update each layer before its next forward (forward), or each parameter once it has its gradient (backward)."""
    update_stream: UpdateStream = False
    """Of hooks in backward."""
    sync: Literal["none", "phase"] = "none"
    """The host waits for the GPU after forward, after backward and after the updates (phase)."""
    release: Literal["2", "1.6"] = "2"
    """Of PyTorch. 1.6 launches more kernels for an update in the for-loop form, among them one that sets the gradient to zero."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The ops of plain PyTorch, with updates where hooks call them.

    Raises SchedcastError for what plain PyTorch is not predicted for, for hooks in backward if the job clips by the global norm, and for
    release 1.6 in another form than the for-loop.
    """
    if options.release == "1.6" and job.form != "for":
        raise SchedcastError(f"release=1.6 has no {job.form} form; use --optimizer {job.optimizer}:for")
    return own_step(NAME, job, machine, options, partial(_with_updates, options=options))


def _with_updates(tasks: list[Task], build: PlanBuilder, options: Options) -> list[Task]:
    step = _fused(tasks, build, options)
    if options.release == "1.6":
        more = MORE_LAUNCHES_1_6[build.job.optimizer]
        step = [replace(task, body=replace(task.body, more_launches=more)) if task.body.is_update else task for task in step]
    return list(_with_waits(step, options.fusion)) if options.sync == "phase" else step


def _fused(tasks: list[Task], build: PlanBuilder, options: Options) -> list[Task]:
    if options.fusion == "none":
        return in_one_call(tasks, build)
    if options.fusion == "forward":
        updates = build.updates_of_layers(lag=1)
    else:
        build.refuse_clipping(f"{NAME}:fusion=backward", f"{NAME}:fusion=forward")
        owned = [(layer, name) for layer, names in build.layers.items() for name in names]
        updates = [build.update([name], f"{name}/update", layer, stream=int(options.update_stream)) for layer, name in owned]
    updates = [replace(task, body=replace(task.body, capturable=False, call="hook")) for task in updates]
    return (delayed if options.fusion == "forward" else fused)(tasks, updates, build.tensors)


def _with_waits(tasks: list[Task], fusion: str) -> Iterator[Task]:
    """Yield a step in which the host waits at the end of each phase; an update belongs to the phase whose hooks call it."""
    for number, (phase, group) in enumerate(
        groupby(tasks, lambda task: fusion if task.body.is_update and fusion != "none" else task.phase)
    ):
        phase_tasks = list(group)
        last = {task.lane: task.name for task in phase_tasks}
        yield from phase_tasks
        own = (phase_tasks[0].device, 0)
        others = tuple(name for lane, name in last.items() if lane != own)
        yield Task(f"{phase}/synchronize/{number}", Synchronize(), *own, after=others, phase=phase)
