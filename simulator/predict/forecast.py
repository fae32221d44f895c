"""Predict a plan: costs, simulation, interval, memory, and the document that `schedcast predict --json` prints."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.memory.caching import reserved_bytes
from simulator.engine.memory.contents import at_peak, with_memory
from simulator.engine.memory.over_time import Scratch, bytes_by_memory, excess_bytes, memory_needs
from simulator.engine.segments import SimulatedSegment, phases, shown_iterations, switching, weights
from simulator.engine.simulation import GRAPH, simulate, timed_simulation
from simulator.engine.utilization import planned_mfu
from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies, dependencies_of
from simulator.plan.plan import Plan
from simulator.plan.task import Segment
from simulator.predict.discrepancy import shipped_discrepancy, shipped_speedup_discrepancy, speedup_accuracy, step_accuracy
from simulator.predict.intervals import (
    Interval,
    Sensitivity,
    WeightedSensitivity,
    faster_probability,
    highest,
    mean_and_error,
    most,
    speedup_interval,
    step_interval,
    steps_in_rounds,
    weighted_parts,
    weighted_shares,
)
from simulator.predict.repeated import Group, NotRepeatedError, repeated_group
from simulator.predict.sensitivity import issued_seconds, sensitivity
from simulator.predict.waterfall import StepParts, step_parts, task_seconds, waterfall
from simulator.strategies import registry as strategies
from traces.documents.comparison import LOOPS, PARALLEL_LOOPS, PYTORCH, PYTORCH_GRAPH, MemoryNeed, Prediction, Shares
from traces.documents.timeline import AtPeak, Timeline
from traces.documents.verdict import is_judged
from traces.errors import Refusal, SchedcastError
from traces.process import gc_paused

Predicted = TypeVar("Predicted")


@dataclass(frozen=True)
class Forecast:
    """A plan's predicted timeline, with its interval, costs and memory.

    `costs`: one for each task of all segments. `sensitivity`: what the step time depends on. `simulate_wall_s`: wall time
    of the simulation, from resolved costs to the last event. `memory_bytes`: by the name of each memory of the machine, the most bytes that
    its devices hold together at one moment. `reserved_bytes`: by the name of each GPU's memory, the most that PyTorch's allocator reserves
    of it for them (`engine.memory.caching`); empty if the tensors alone do not fit. `parts`: where the time of a step goes. `phases`: of a
    plan of several segments, the first iteration and the seconds per step of each. `rounds_error`: the standard error of the logarithm of
    the step time, if that is a mean over several samplings of the costs (see `rounds`). `float32`: the precision of dense kernels on
    float32 operands, as in `CostModel`.
    """

    plan: Plan
    machine: Machine
    costs: Sequence[Cost]
    timeline: Timeline
    shares: Shares
    simulate_wall_s: float
    sensitivity: Sensitivity | WeightedSensitivity
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    reserved_bytes: Mapping[str, int] = field(default_factory=dict)
    at_peak: tuple[AtPeak, ...] = ()
    parts: StepParts | None = None
    phases: tuple[tuple[int, float], ...] = ()
    rounds_error: float = 0.0
    float32: str = "fp32"

    @property
    def kind(self) -> str:
        """The kind of the plan's devices, "cpu" or "gpu"."""
        return self.machine.device(self.plan.devices[0]).kind

    @property
    def from_specifications(self) -> float:
        """The share of the task seconds whose costs come from a GPU's specifications, as all of a preset's do."""
        return self.shares.guessed if self.kind == "gpu" else 0.0

    @property
    def accuracy(self) -> float:
        """What a step of the machine's preset is known to err, as far as its costs come from specifications."""
        return self.from_specifications * step_accuracy(self.machine.name)

    @cached_property
    def interval_s(self) -> Interval:
        """The 90 % interval of the step time."""
        several = len(self.plan.devices) > 1 or "folded" in self.plan.semantics
        processes = bool(self.machine.library) and several
        discrepancy = shipped_discrepancy(self.plan.strategy, self.kind, self.timeline.mode, processes)
        return step_interval(self.sensitivity, math.hypot(discrepancy, self.rounds_error), self.accuracy)

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
        """Whether the plan fits with so little of a GPU's memory left that its step time is not known."""
        return self.fits and any(need.at_limit for need in self.memories)

    def measured_as(self, places: Iterable[str]) -> dict[str, int]:
        """Return the peak bytes of `places`, by name: devices, or a memory if executors can only measure its devices together."""
        predicted = {**self.memory_bytes, **self.peak_bytes}
        return {place: predicted[place] for place in places if place in predicted}


def as_run(plan: Plan, machine: Machine, model: CostModel, mode: str) -> tuple[Machine, CostModel, str]:
    """The machine, costs and mode with which `plan` is predicted: the unsplit machine's if it uses that, or those of PyTorch's own loop.

    A graph of plain PyTorch holds one step.
    """
    if plan.strategy in LOOPS:
        return machine.for_pytorch, model.for_pytorch, "eager"
    if plan.strategy in PARALLEL_LOOPS:
        return machine.for_parallel_loops, model.for_parallel_loops, "eager"
    if plan.strategy == PYTORCH_GRAPH:
        unsplit = machine.whole or machine
        return replace(unsplit, hosts=tuple(replace(host, graph_iterations=1) for host in unsplit.hosts)), model.whole, GRAPH
    return (machine, model, mode) if machine.for_devices(plan.devices) is machine else (machine.whole, model.whole, mode)


def forecast(plan: Plan, machine: Machine, model: CostModel, mode: str = "eager") -> Forecast:
    """Predict `plan` on `machine` with the costs of `model`, including the contention of concurrent tasks in its profile.

    If the machine's GPU is split and the plan uses it unsplit, the prediction is that of the unsplit machine. The plan of plain PyTorch is
    predicted in eager mode, with the costs of PyTorch's own loop. Raises PlanError if the plan cannot run on the machine.
    """
    machine, model, mode = as_run(plan, machine, model, mode)
    with gc_paused():  # once for all parts: each end of a pause walks the heap
        plan.validate(machine)
        if len(plan.segments) == 1:
            return _forecast(plan, machine, model, mode)
        return _forecast_segments(plan, machine, model, mode)


def _forecast(plan: Plan, machine: Machine, model: CostModel, mode: str) -> Forecast:
    """Predict a plan of one segment."""
    dependencies = dependencies_of(plan, machine)
    costs = model.resolve(plan)
    timeline, wall_s, alone_s = timed_simulation(plan, machine, costs, mode, dependencies, model.pair_multipliers)
    rounds_error, steps_s = 0.0, steps_in_rounds(plan, machine, model, costs, dependencies)
    if steps_s:
        step_s, rounds_error = mean_and_error(steps_s)
        timeline = replace(timeline, step_s=step_s)
    shares = Shares(**model.shares(plan, costs))
    depends_on: Sensitivity | WeightedSensitivity
    co_runs, seconds = model.co_runs_measured(costs), task_seconds(plan, machine, costs, alone_s)
    depends_on = sensitivity(plan, machine, costs, timeline, dependencies, co_runs)
    parts = step_parts(timeline, seconds)
    if plan.left_out is not None:
        if steps_s:
            raise NotRepeatedError(plan)  # what a group takes in each round is not known
        group = repeated_group(plan, timeline, issued_seconds(plan, machine, costs, timeline, dependencies))
        of_group = sensitivity(plan, machine, costs, group.begun, dependencies, co_runs, group.tasks)
        depends_on = WeightedSensitivity([(1.0, depends_on), (group.count, of_group)])
        parts = weighted_parts([(1.0, parts), (group.count, step_parts(group.timeline, seconds))])
        shares = _whole_shares(group, costs, model, shares)
        timeline = group.whole(timeline)
    memory = timeline.memory
    peak, held = at_peak(plan, timeline, memory, Scratch.of(plan, machine, mode == GRAPH)), bytes_by_memory(memory, machine)
    return Forecast(
        plan,
        machine,
        costs,
        _with_kinds(timeline, plan, machine),
        shares,
        wall_s,
        depends_on,
        held,
        _reserved(held, plan, machine, dependencies, mode),
        peak,
        parts,
        rounds_error=rounds_error,
        float32=model.precision,
    )


def _whole_shares(group: Group, costs: Sequence[Cost], model: CostModel, shown: Shares) -> Shares:
    """The origin of a step's task seconds. `shown`: of those that the plan shows."""
    plan = group.plan
    own = [(task, cost) for task, cost in zip(plan.tasks, costs, strict=True) if task.name in group.tasks]
    part = replace(plan, segments=(Segment(tuple(task for task, _ in own)),))
    weights = [sum(cost.cold_s for cost in costs), group.count * sum(cost.cold_s for _, cost in own)]
    return weighted_shares(list(zip(weights, (shown, Shares(**model.shares(part, [cost for _, cost in own]))), strict=True)))


def _reserved(held: Mapping[str, int], plan: Plan, machine: Machine, dependencies: Dependencies, mode: str) -> dict[str, int]:
    """What PyTorch's allocator reserves by memory; nothing if what is allocated does not fit anyway, with which it cannot go on."""
    return {} if excess_bytes(memory_needs(held, machine)) > 0 else reserved_bytes(plan, machine, dependencies, mode == GRAPH)


def _forecast_segments(plan: Plan, machine: Machine, model: CostModel, mode: str) -> Forecast:
    """Predict a plan of several segments, by predicting each; see `engine.segments`."""
    forecasts = [_forecast(part, machine, model, mode) for part in plan.parts]
    segments = []
    for own in forecasts:
        count, multipliers = shown_iterations(own.plan), model.pair_multipliers
        short = simulate(own.plan, machine, own.costs, mode=mode, iterations=count, pair_multipliers=multipliers)
        segments.append(SimulatedSegment(own.plan, own.timeline, short, last=own is forecasts[-1]))
    shown = [_with_kinds(segment.at_switch, segment.part, machine) for segment in segments]
    factors = weights(segments)
    seconds = [segment.iterations * sum(cost.cold_s for cost in own.costs) for segment, own in zip(segments, forecasts, strict=True)]
    return Forecast(
        plan,
        machine,
        [cost for own in forecasts for cost in own.costs],
        switching(segments, shown),
        weighted_shares([(own_s, own.shares) for own_s, own in zip(seconds, forecasts, strict=True)]),
        sum(own.simulate_wall_s for own in forecasts),
        WeightedSensitivity([(factor, own.sensitivity) for factor, own in zip(factors, forecasts, strict=True)]),
        most([own.memory_bytes for own in forecasts]),
        most([own.reserved_bytes for own in forecasts]),
        highest([own.at_peak for own in forecasts]),
        weighted_parts([(factor, own.parts) for factor, own in zip(factors, forecasts, strict=True)]),
        phases(segments),
        max(own.rounds_error for own in forecasts),
        model.precision,
    )


def _with_kinds(timeline: Timeline, plan: Plan, machine: Machine) -> Timeline:
    """The timeline with its memory by kind, and the sizes of the devices' memories."""
    limits = {device: machine.memory(device).size_bytes for device in plan.devices}
    return with_memory(timeline, plan, timeline.memory, limits, Scratch.of(plan, machine, timeline.mode == GRAPH))


def paired_interval(baseline: Forecast, other: Forecast) -> Interval:
    """Return the 90 % interval of the speed-up of `other` over `baseline`, by errors that both share.

    `baseline` may be another plan than the baseline's, such as plain PyTorch; then the errors that are its own count too.
    """
    return speedup_interval(baseline.sensitivity, other.sensitivity, *_paired_errors(baseline, other))


def paired_probability(baseline: Forecast, other: Forecast) -> float:
    """Return the probability that `other` is faster than `baseline`, by the errors of `paired_interval`."""
    return faster_probability(baseline.sensitivity, other.sensitivity, *_paired_errors(baseline, other))


def _paired_errors(baseline: Forecast, other: Forecast) -> tuple[float, float]:
    """The discrepancy and the accuracy of a speed-up."""
    own = [f for f in (baseline, other) if f.plan.strategy != "baseline"]
    discrepancy = math.hypot(*(shipped_speedup_discrepancy(f.plan.strategy, f.kind, f.timeline.mode) for f in own))
    return discrepancy, other.from_specifications * speedup_accuracy(other.plan.strategy)


def prediction(predicted: Forecast, baseline: Forecast | None, precision: str, plain: Forecast | None = None) -> Prediction:
    """Return the document of a forecast, with its speed-ups over the baseline and over plain PyTorch, as far as they are given."""
    timeline = predicted.timeline
    base = baseline.timeline.step_s if baseline is not None else None
    other, loop = (None if each is predicted else each for each in (baseline, plain))
    measured_share = least_measured([each for each in (predicted, baseline, plain) if each is not None])
    compared = [each for each in (predicted, other, loop) if each is not None]
    at_limit = tuple(dict.fromkeys(each.plan.strategy for each in compared if each.at_limit))
    judged = is_judged(measured_share) and not predicted.at_limit
    return Prediction(
        strategy=predicted.plan.strategy,
        options=dict(predicted.plan.options),
        mode=timeline.mode,
        precision=precision,
        step_s=timeline.step_s,
        interval_s=predicted.interval_s,
        baseline_step_s=base,
        speedup=base / timeline.step_s if base else None,
        devices=timeline.devices,
        fits=predicted.fits,
        settled=timeline.settled,
        exposed_transfer_s=timeline.exposed_transfer_s,
        bubble_share=timeline.bubble_share,
        tasks=len(timeline.spans),
        simulate_wall_s=predicted.simulate_wall_s,
        shares=predicted.shares,
        critical_path=timeline.critical_path,
        at_peak=predicted.at_peak,
        waterfall=waterfall(other.parts, predicted.parts) if other is not None else (),
        memories=predicted.memories,
        at_limit=at_limit,
        speedup_interval=paired_interval(other, predicted) if other is not None else None,
        pytorch_step_s=plain.timeline.step_s if plain is not None else None,
        against_pytorch=plain.timeline.step_s / timeline.step_s if plain is not None else None,
        against_pytorch_interval=paired_interval(loop, predicted) if loop is not None else None,
        faster_probability=paired_probability(other, predicted) if other is not None and judged and not other.at_limit else None,
        faster_than_pytorch_probability=paired_probability(loop, predicted) if loop is not None and judged and not loop.at_limit else None,
        measured_share=measured_share,
        checkpoint=str(predicted.plan.semantics.get("checkpoint", "")),
        mfu=planned_mfu(predicted.plan, predicted.machine, timeline.step_s, predicted.float32),
        shown=str(predicted.plan.semantics.get("shown", "")),
        assumed=_assumed(predicted.plan.semantics),
        loss=str(predicted.plan.semantics.get("loss", "")),
        unused_devices=0 if "folded" in predicted.plan.semantics else len(_given(predicted) - {*predicted.plan.devices}),
    )


def _assumed(semantics: Mapping[str, object]) -> tuple[str, ...]:
    """What a plan assumes, in words."""
    assumed, taken = semantics.get("assumed"), semantics.get("taken")
    return (*([f"{assumed}; no plan of it can run"] if assumed else []), *([str(taken)] if taken else []))


def _given(predicted: Forecast) -> set[str]:
    """The devices that the job was given."""
    return {device.name for device in predicted.machine.for_devices(predicted.plan.devices).devices}


def least_measured(compared: Sequence[Forecast]) -> float | None:
    """The smallest share of task seconds that rests on measured costs; None if no cost comes from a profile, measured or fitted."""
    if not any(each.shares.measured or each.shares.fitted for each in compared):
        return None
    return min(each.shares.measured for each in compared)


def plan_strategy(text: str, shared: Mapping[str, str], job, machine: Machine, model: CostModel, few: int = 0) -> Plan:
    """Return the plan of `NAME[:option=value,...]`. If the machine's GPU is split, strategies of one device use the unsplit GPU.

    `few`: as in `Job`; a plan that leaves out microbatches is only predicted.

    Raises SchedcastError if the strategy cannot run the job on the machine.
    """
    strategy, options = strategies.parse(text, shared)
    if strategy.name in LOOPS:
        machine, model = machine.for_pytorch, model.for_pytorch
    elif strategy.name in PARALLEL_LOOPS:
        machine, model = machine.for_parallel_loops, model.for_parallel_loops
    elif machine.whole is not None and strategy.least_devices == 1:
        machine, model = machine.whole, model.whole
    return strategy.plan(job.in_few(few), machine, model, options)


def in_few(predict: Callable[[int], Predicted]) -> Predicted:
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


def forecast_of(plan_of: Callable[[int], Plan], machine: Machine, model: CostModel, mode: str = "eager") -> Forecast:
    """Forecast a plan as `in_few` does. `plan_of(few)` makes the plan of a job with this `Job.few`."""
    return in_few(lambda few: forecast(plan_of(few), machine, model, mode))


def planned_forecast(job, text: str, shared: Mapping[str, str], machine: Machine, model: CostModel, mode: str = "eager") -> Forecast:
    """Plan a strategy and forecast it. Raises SchedcastError as `plan_strategy` and `forecast` do."""
    return forecast_of(lambda few: plan_strategy(text, shared, job, machine, model, few), machine, model, mode)


def planned_memories(
    job, text: str, shared: Mapping[str, str], machine: Machine, model: CostModel, mode: str = "eager"
) -> tuple[MemoryNeed, ...]:
    """The `memories` of the `planned_forecast`, without the rest of it."""

    def predict(few: int) -> tuple[MemoryNeed, ...]:
        plan = plan_strategy(text, shared, job, machine, model, few)
        if len(plan.segments) > 1 or plan.left_out is not None:
            return forecast(plan, machine, model, mode).memories
        own, costs_of, runs = as_run(plan, machine, model, mode)
        plan.validate(own)
        dependencies, multipliers = dependencies_of(plan, own), costs_of.pair_multipliers
        timeline, *_ = timed_simulation(plan, own, costs_of.resolve(plan), runs, dependencies, multipliers)
        held = bytes_by_memory(timeline.memory, own)
        return memory_needs(held, own, _reserved(held, plan, own, dependencies, runs))

    return in_few(predict)


def forecast_strategy(
    job, text: str, shared: Mapping[str, str], machine: Machine, model: CostModel, mode: str = "eager", runs: bool = False
) -> Forecast | Refusal:
    """Forecast one strategy (`NAME[:option=value,...]`), or return why it cannot be. `runs`: of the plan that an executor runs."""
    try:
        if not runs:
            return planned_forecast(job, text, shared, machine, model, mode)
        with gc_paused():
            return forecast(plan_strategy(text, shared, job, machine, model), machine, model, mode)
    except SchedcastError as error:
        return Refusal.by(error)


def references(machine: Machine) -> tuple[str, ...]:
    """What a user has without a schedule: plain PyTorch and, on a GPU, the same with each step captured in a CUDA graph.

    On several devices with a process on each, also PyTorch's own parallel loops.
    """
    alone = (PYTORCH, PYTORCH_GRAPH) if machine.devices[0].kind == "gpu" else (PYTORCH,)
    return (*alone, *PARALLEL_LOOPS) if machine.library and len(machine.devices) > 1 else alone


def forecast_many(
    job,
    requested: Sequence[str],
    shared: Mapping[str, str],
    machine: Machine,
    model: CostModel,
    mode: str = "eager",
    runs: bool = False,
):
    """Forecast every requested strategy (`NAME[:option=value,...]`); yields (text, Forecast or Refusal).

    The `references` and the baseline come first, whether or not they are requested. `runs`: as in `forecast_strategy`.
    """
    for text in dict.fromkeys([*references(machine), "baseline", *requested]):
        yield text, forecast_strategy(job, text, shared, machine, model, mode, runs)
