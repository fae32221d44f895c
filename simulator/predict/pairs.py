"""Pairs of steps that were measured before and after one change, and their predicted gains. `judgments` says how accurate they are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import PYTORCH as PYTORCH_HOST
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Task
from simulator.predict.answers import paired_interval
from simulator.predict.forecast import Forecast, forecast, plan_of
from simulator.predict.intervals import speedup_interval
from simulator.predict.judgments import Judgment
from simulator.predict.target import Target, dense_precision, preset_target
from traces.documents.comparison import LOOPS, PYTORCH, PYTORCH_GRAPH

#: The strategies that are plain PyTorch.
PLAIN = {*LOOPS, PYTORCH_GRAPH}


@dataclass(frozen=True)
class Side:
    """One of the two steps. `machine`: a preset's name, or a machine that is no preset. `phases`: those that were timed; empty for all.

    `host`: what issues the tasks, as in `load_machine`. `host_counts`: the optimizer counts its steps on the host even in a CUDA graph, as
    in releases of PyTorch before 1.12.
    """

    job: Job
    machine: str | Machine
    strategy: str = PYTORCH
    devices: int | None = None
    phases: tuple[str, ...] = ()
    host: str = PYTORCH_HOST
    host_counts: bool = False


@dataclass(frozen=True)
class Pair:
    """Two steps that differ in one change. `gain`: the measured speed-up. `fitted`: whether costs were fitted on one of the two."""

    rule: str
    label: str
    source: str
    before: Side
    after: Side
    gain: float
    fitted: bool = False


def predicted_side(side: Side) -> Forecast:
    """The forecast of one step. Raises SchedcastError if the machine cannot run it."""
    job = side.job
    if isinstance(side.machine, Machine):
        target = Target.of(CostModel(side.machine, None, dense_precision(job, None)))
    else:
        target = preset_target(job, side.machine, side.devices, host=side.host)
    plan = plan_of(job, side.strategy, target, compact=True)
    if side.host_counts:
        plan = _changed(plan, lambda tasks: [replace(t, body=replace(t.body, capturable=False)) if t.body.is_update else t for t in tasks])
    return forecast(of_phases(plan, side.phases) if side.phases else plan, target)


def _changed(plan: Plan, change: Callable[[Sequence[Task]], Iterable[Task]]) -> Plan:
    """The plan with its tasks changed by `change`."""
    return plan.each(lambda own: replace(own, tasks=tuple(change(own.tasks))))


def of_phases(plan: Plan, phases: Sequence[str]) -> Plan:
    """The plan with the tasks of these phases alone. The values that other tasks write, such as gradients, become inputs."""

    def changed(own: Plan) -> Plan:
        gone = {o.value for task in own.tasks if task.phase not in phases for o in task.writes}
        values = {name: replace(value, kind=INPUT) if name in gone else value for name, value in own.values.items()}
        return replace(own, tasks=tuple(task for task in own.tasks if task.phase in phases), values=values)

    return plan.each(changed)


def judged(pair: Pair, predict: Callable[[Side], Forecast] = predicted_side) -> Judgment:
    """Predict the gain of a pair. `judgments.scored` widens its interval where predictions of other pairs were further off.

    `predict`: a function like `predicted_side`, which may remember the sides that it has predicted.
    """
    before, after = predict(pair.before), predict(pair.after)
    samples = pair.after.job.batch / pair.before.job.batch
    alike = before.plan.strategy == after.plan.strategy or {before.plan.strategy, after.plan.strategy} <= PLAIN
    low, high = speedup_interval(before.sensitivity, after.sensitivity) if alike else paired_interval(before, after)
    gain = samples * before.timeline.step_s / after.timeline.step_s
    return Judgment(
        pair.rule,
        pair.label,
        pair.source,
        measured=pair.gain,
        predicted=gain,
        interval=(samples * low, samples * high),
        fitted=pair.fitted,
        alike=alike,
    )
