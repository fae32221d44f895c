"""From a job and the text of a strategy to its plan and its forecast."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from simulator.engine.memory.over_time import bytes_by_memory, memory_needs
from simulator.engine.simulation import timed_simulation
from simulator.model.job import Job
from simulator.plan.dependencies import dependencies_of
from simulator.plan.plan import Plan
from simulator.predict.forecast import Forecast, forecast, reserved
from simulator.predict.repeated import NotRepeatedError
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.comparison import MemoryNeed
from traces.errors import Refusal, SchedcastError
from traces.process import gc_paused

Predicted = TypeVar("Predicted")
#: The options of `--set`: none.
NONE: Mapping[str, str] = MappingProxyType({})


def plan_of(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE, few: int = 0) -> Plan:
    """Return the plan of `NAME[:option=value,...]`. `shared`: options of every strategy that has them.

    `few`: as in `Job`; a plan that leaves out microbatches is only predicted.

    Raises SchedcastError if the strategy cannot run the job on the machine.
    """
    strategy, options = strategies.parse(text, shared)
    own = target.planning(strategy)
    return strategy.plan(job.in_few(few), own.machine, own.costs, options)


def _in_few(predict: Callable[[int], Predicted]) -> Predicted:
    """Predict with few of many microbatches where that gives the step of all (`predict.repeated`), else with more, or with all.

    `predict(few)` predicts the plan of a job with this `Job.few`.
    """
    with gc_paused():  # planning walks the heap as often as simulating would
        for few in (1, 2):
            try:
                return predict(few)
            except NotRepeatedError:
                continue
        return predict(0)


def forecast_of(planned: Callable[[int], Plan], target: Target) -> Forecast:
    """Forecast a plan with few of many microbatches where that gives the step of all. `planned(few)`: of a job with this `Job.few`."""
    return _in_few(lambda few: forecast(planned(few), target))


def answer(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE, runs: bool = False) -> Forecast | Refusal:
    """Forecast one strategy (`NAME[:option=value,...]`), or return why it cannot be. `runs`: of the plan that an executor runs."""
    try:
        if not runs:
            return forecast_of(lambda few: plan_of(job, text, target, shared, few), target)
        with gc_paused():
            return forecast(plan_of(job, text, target, shared), target)
    except SchedcastError as error:
        return Refusal.by(error)


def memories_of(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE) -> tuple[MemoryNeed, ...]:
    """The `memories` of the forecast, without the rest of it. Raises SchedcastError if the strategy cannot be planned."""

    def predict(few: int) -> tuple[MemoryNeed, ...]:
        plan = plan_of(job, text, target, shared, few)
        if len(plan.segments) > 1 or plan.left_out is not None:
            return forecast(plan, target).memories
        own = target.running(plan)
        plan.validate(own.machine)
        dependencies = dependencies_of(plan, own.machine)
        timeline, *_ = timed_simulation(plan, own.machine, own.costs.resolve(plan), own.mode, dependencies, own.costs.pair_multipliers)
        held = bytes_by_memory(timeline.memory, own.machine)
        return memory_needs(held, own.machine, reserved(held, plan, own.machine, dependencies, own.mode))

    return _in_few(predict)
