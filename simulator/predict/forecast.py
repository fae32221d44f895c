"""From a job and the text of a strategy to its plan and its forecast: costs, simulation, interval and memory.

`forecast` predicts a plan on a target, `answer` a job under a strategy there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.memory.contents import at_peak, with_memory
from simulator.engine.memory.over_time import Steps, bytes_by_memory, excess_bytes, memory_needs
from simulator.engine.scenario import Scenario
from simulator.engine.simulation import Simulation
from simulator.engine.switch import Simulated, phases, shown_iterations, switching, weights
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.repeat import expand
from simulator.predict.discrepancy import shipped_discrepancy, step_accuracy
from simulator.predict.intervals import (
    Interval,
    Sensitivity,
    WeightedSensitivity,
    highest,
    mean_and_error,
    most,
    step_interval,
    steps_in_rounds,
    weighted_parts,
    weighted_shares,
)
from simulator.predict.repeated import Group, repeated_group
from simulator.predict.sensitivity import issued_seconds, sensitivity
from simulator.predict.target import Target
from simulator.predict.waterfall import StepParts, step_parts, task_seconds
from simulator.strategies import registry as strategies
from simulator.strategies.registry import require_simulated
from traces.documents.comparison import MemoryNeed, Shares
from traces.documents.timeline import AtPeak, Timeline
from traces.errors import Refusal, SchedcastError
from traces.process import gc_paused

Predicted = TypeVar("Predicted")
#: The options of `--set`: none.
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Forecast:
    """A plan's predicted timeline, with its interval, costs and memory.

    `scenario`: what is predicted, with a cost for each of `Plan.every_task`. `sensitivity`: what the step time depends on.
    `simulate_wall_s`: wall time of the simulation, from resolved costs to the last event. `memory_bytes`: by the name of each memory of the
    machine, the most bytes that its devices have allocated together at one moment. `reserved_bytes`: by the name of each GPU's memory, the
    most that PyTorch's allocator reserves of it for them (`engine.memory.caching`); empty if the tensors alone do not fit. `parts`: where
    the time of a step goes. `phases`: of a run that follows several plans, the first iteration and the seconds per step of each.
    `rounds_error`: the standard error of the logarithm of the step time, if that is a mean over several samplings of the costs (see
    `rounds`). `float32`: the precision of dense kernels on float32 operands, as in `CostModel`.
    """

    scenario: Scenario
    timeline: Timeline
    shares: Shares
    simulate_wall_s: float
    sensitivity: Sensitivity | WeightedSensitivity
    parts: StepParts
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    reserved_bytes: Mapping[str, int] = field(default_factory=dict)
    at_peak: tuple[AtPeak, ...] = ()
    phases: tuple[tuple[int, float], ...] = ()
    rounds_error: float = 0.0
    float32: str = "fp32"

    @property
    def plan(self) -> Plan:
        """The plan that is predicted."""
        return self.scenario.plan

    @property
    def machine(self) -> Machine:
        """The machine that the plan runs on."""
        return self.scenario.machine

    @property
    def costs(self) -> Sequence[Cost]:
        """One for each of `Plan.every_task`."""
        return self.scenario.costs

    @property
    def kind(self) -> str:
        """The kind of the plan's devices, "cpu" or "gpu"."""
        return self.machine.device(self.plan.devices[0]).kind

    @property
    def from_specifications(self) -> float:
        """The share of the task seconds whose costs rest on a GPU's specifications, corrected by measured costs or not."""
        return self.shares.guessed + self.shares.fitted if self.kind == "gpu" else 0.0

    @property
    def accuracy(self) -> float:
        """The known error of steps of the machine's preset, weighted by the share of costs that come from specifications."""
        return self.from_specifications * step_accuracy(self.machine.name)

    @property
    def discrepancy(self) -> float:
        """The known error of such plans and that of the rounds: a standard deviation of the logarithm of the step time."""
        several = len(self.plan.devices) > 1 or bool(self.plan.classes)
        processes = bool(self.machine.library) and several
        return math.hypot(shipped_discrepancy(self.plan.strategy, self.kind, self.timeline.mode, processes), self.rounds_error)

    @cached_property
    def interval_s(self) -> Interval:
        """The 90 % interval of the step time."""
        return step_interval(self.sensitivity, self.discrepancy, self.accuracy)

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest bytes by device."""
        return {use.name: use.peak_bytes for use in self.timeline.devices}

    @property
    def fits(self) -> bool:
        """Whether every memory holds what its devices need together at any moment."""
        return excess_bytes(self.memories) <= 0

    @property
    def memories(self) -> tuple[MemoryNeed, ...]:
        """What each of the machine's memories must hold, and its size."""
        return memory_needs(self.memory_bytes, self.machine, self.reserved_bytes)

    @property
    def at_limit(self) -> bool:
        """Whether the plan fits, but leaves so little of a GPU's memory free that its step time is uncertain."""
        return self.fits and any(need.at_limit for need in self.memories)

    def measured_as(self, places: Iterable[str]) -> dict[str, int]:
        """Return the peak bytes of `places`, by name: devices, or a memory if executors can only measure its devices together."""
        predicted = {**self.memory_bytes, **self.peak_bytes}
        return {place: predicted[place] for place in places if place in predicted}


def forecast(plan: Plan, target: Target) -> Forecast:
    """Predict `plan` on the target's machine, including the contention of concurrent tasks in its profile.

    If the machine's GPU is split and the plan uses it unsplit, the prediction is that of the unsplit machine. The plan of plain PyTorch is
    predicted in eager mode, with the costs of PyTorch's own loop. Raises PlanError if the plan cannot run on the machine.
    """
    target = target.running(plan)
    with gc_paused():  # once for all parts: each end of a pause walks the heap
        plan.validate(target.machine)
        return _forecast_run(plan, target) if plan.earlier else _of_one(plan, target)


def _of_one(plan: Plan, target: Target) -> Forecast:
    """Predict one plan, with more of the microbatches that it omits if those that it has do not repeat themselves."""
    return next(filter(None, (_forecast(target.scenario(longer), target.costs) for longer in _longer(plan))))


#: How many more groups of microbatches a plan gets if those that it has do not repeat themselves yet.
_MORE = 4


def _longer(plan: Plan) -> Iterator[Plan]:
    """The plan, and with more of the microbatches that it omits, and with all of them.

    Raises SchedcastError for a plan with more tasks than can be simulated.
    """
    yield plan
    if (repeat := plan.repeat) is not None:
        yield expand(plan, _MORE)
        require_simulated(plan.strategy, len(plan.tasks) + repeat.times * len(repeat.tasks), len(plan.devices))
        yield expand(plan)


def _forecast(scenario: Scenario, model: CostModel) -> Forecast | None:
    """Predict a plan. None if it omits microbatches that do not repeat those that it has."""
    plan, simulation = scenario.plan, Simulation(scenario).play()
    timeline = simulation.timeline()
    rounds_error, steps_s = 0.0, steps_in_rounds(scenario, model.sampled)
    if steps_s:
        step_s, rounds_error = mean_and_error(steps_s)
        timeline = replace(timeline, step_s=step_s)
    shares = Shares(**model.shares(plan, scenario.costs))
    depends_on: Sensitivity | WeightedSensitivity
    co_runs, seconds = model.co_runs_measured(scenario.costs), task_seconds(simulation)
    depends_on = sensitivity(simulation, timeline, co_runs)
    parts = step_parts(timeline, seconds)
    if plan.repeat is not None:
        group = None if steps_s else repeated_group(plan, timeline, issued_seconds(simulation, timeline))
        if group is None:  # or what a group takes in each round is not known
            return None
        of_group = sensitivity(simulation, group.begun, co_runs, issued=group.tasks)
        depends_on = WeightedSensitivity([(1.0, depends_on), (group.count, of_group)])
        parts = weighted_parts([(1.0, parts), (group.count, step_parts(group.timeline, seconds))])
        shares = _whole_shares(group, scenario.costs, model, shares)
        timeline = group.whole(timeline)
    held, reserved = _allocated(scenario, timeline.memory)
    return Forecast(
        scenario,
        timeline=_with_kinds(scenario, timeline),
        shares=shares,
        simulate_wall_s=simulation.wall_s,
        sensitivity=depends_on,
        memory_bytes=held,
        reserved_bytes=reserved,
        at_peak=at_peak(plan, timeline, scenario.scratch),
        parts=parts,
        rounds_error=rounds_error,
        float32=model.precision,
    )


def _whole_shares(group: Group, costs: Sequence[Cost], model: CostModel, shown: Shares) -> Shares:
    """The origin of a step's task seconds. `shown`: of those that the plan shows."""
    plan = group.plan
    own = [(task, cost) for task, cost in zip(plan.tasks, costs, strict=True) if task.name in group.tasks]
    part = replace(plan, tasks=tuple(task for task, _ in own))
    weights = [sum(cost.cold_s for cost in costs), group.count * sum(cost.cold_s for _, cost in own)]
    return weighted_shares(list(zip(weights, (shown, Shares(**model.shares(part, [cost for _, cost in own]))), strict=True)))


def _allocated(scenario: Scenario, memory: Mapping[str, Steps]) -> tuple[dict[str, int], dict[str, int]]:
    """By memory, the most bytes that its devices have allocated together, and what PyTorch's allocator reserves.

    Nothing is reserved if the allocated tensors do not fit anyway, since the allocator then fails.
    """
    held = bytes_by_memory(memory, scenario.machine)
    return held, {} if excess_bytes(memory_needs(held, scenario.machine)) > 0 else scenario.reserved_bytes


def _forecast_run(plan: Plan, target: Target) -> Forecast:
    """Predict a run that follows several plans: the mean of their forecasts, weighted as `engine.switch` says."""
    forecasts = [_of_one(own, target) for own in plan.sequence]
    run = []
    for own in forecasts:
        short = Simulation(own.scenario, shown_iterations(own.plan)).play().timeline()
        run.append(Simulated(own.plan, own.timeline, short, last=own is forecasts[-1]))
    shown = [_with_kinds(own.scenario, simulated.at_switch) for simulated, own in zip(run, forecasts, strict=True)]
    factors = weights(run)
    seconds = [simulated.iterations * sum(cost.cold_s for cost in own.costs) for simulated, own in zip(run, forecasts, strict=True)]
    return Forecast(
        replace(forecasts[0].scenario, plan=plan, costs=[cost for own in forecasts for cost in own.costs]),
        timeline=switching(run, shown),
        shares=weighted_shares([(own_s, own.shares) for own_s, own in zip(seconds, forecasts, strict=True)]),
        simulate_wall_s=sum(own.simulate_wall_s for own in forecasts),
        sensitivity=WeightedSensitivity([(factor, own.sensitivity) for factor, own in zip(factors, forecasts, strict=True)]),
        memory_bytes=most([own.memory_bytes for own in forecasts]),
        reserved_bytes=most([own.reserved_bytes for own in forecasts]),
        at_peak=highest([own.at_peak for own in forecasts]),
        parts=weighted_parts([(factor, own.parts) for factor, own in zip(factors, forecasts, strict=True)]),
        phases=phases(run),
        rounds_error=max(own.rounds_error for own in forecasts),
        float32=target.costs.precision,
    )


def _with_kinds(scenario: Scenario, timeline: Timeline) -> Timeline:
    """The timeline with its memory by kind, and the sizes of the devices' memories."""
    limits = {device: scenario.machine.memory(device).size_bytes for device in scenario.plan.devices}
    return with_memory(timeline, scenario.plan, limits, scenario.scratch)


def plan_of(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE, compact: bool = False) -> Plan:
    """Return the plan of `NAME[:option=value,...]`. `shared`: options of every strategy that has them. `compact`: as in `Job`.

    Raises SchedcastError if the strategy cannot run the job on the machine.
    """
    strategy, options = strategies.parse(text, shared)
    own = target.planning(strategy)
    return strategy.plan(job.planned(compact), own.machine, own.costs, options)


def answer(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE, runs: bool = False) -> Forecast | Refusal:
    """Forecast one strategy (`NAME[:option=value,...]`), or return why it cannot be. `runs`: of the plan that an executor runs."""
    try:
        with gc_paused():  # planning walks the heap as often as simulating would
            return forecast(plan_of(job, text, target, shared, compact=not runs), target)
    except SchedcastError as error:
        return Refusal.by(error)


def memories_of(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE) -> tuple[MemoryNeed, ...]:
    """The `memories` of the forecast, without the rest of it. Raises SchedcastError if the strategy cannot be planned."""
    with gc_paused():
        plan = plan_of(job, text, target, shared, compact=True)
        if plan.earlier or plan.repeat is not None:
            return forecast(plan, target).memories
        own = target.running(plan)
        plan.validate(own.machine)
        scenario = own.scenario(plan)
        held, reserved = _allocated(scenario, Simulation(scenario).play().memory)
        return memory_needs(held, own.machine, reserved)


def forecast_elsewhere(text: str, shared: Mapping[str, str], trained: Plan | None, job: Job, target: Target) -> Forecast:
    """Return the forecast on another machine of the strategy `text`, whose plan `trained` is what trains on this machine.

    The model is cut where the trained plan cuts it, even if other cuts would balance the other machine, because the cuts determine the
    numerical results. A pipeline that is simulated on one device has its own devices there. Raises SchedcastError if the machine cannot run
    it.
    """
    strategy, options = strategies.parse(text, shared)
    known = {field.name: field.default for field in fields(options)}
    changes = {}
    if "placement" in known and trained is not None and trained.semantics.get("placement"):
        changes["placement"] = trained.semantics["placement"]
    if getattr(options, "on", None) == "simulated":
        changes["on"] = known["on"]
    try:
        options = replace(options, **changes)
        predicted = forecast(strategy.plan(job.planned(compact=True), target.machine, target.costs, options), target)
    except SchedcastError as error:
        raise SchedcastError(f"--predict-on {target.machine.name}: {error}", error.code) from error
    if not predicted.fits:
        raise SchedcastError(
            f"--predict-on {target.machine.name}: {text} does not fit its memory; choose a smaller batch or another machine"
        )
    return predicted
