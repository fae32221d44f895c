"""Predicting a plan: costs, simulation, interval, memory, and the document that `stepcast predict --json` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traces.comparison import Prediction, Shares
from traces.errors import StepcastError, UnknownNameError
from traces.timeline import Timeline

from . import strategies
from .cost import Cost
from .costs import CostModel
from .dependencies import Dependencies
from .discrepancy import known
from .engine import timed_simulation
from .intervals import step_interval
from .machine import Machine
from .plan import Plan


@dataclass(frozen=True)
class Forecast:
    """A plan's predicted timeline with everything said about it. `simulate_wall_s`: from resolved costs to the last event."""

    plan: Plan
    machine: Machine
    costs: Sequence[Cost]
    timeline: Timeline
    interval_s: tuple[float, float]
    shares: Shares
    simulate_wall_s: float

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest bytes by device."""
        return {use.name: use.peak_bytes for use in self.timeline.devices}

    @property
    def fits(self) -> bool:
        """Whether every memory holds what its devices need at their peaks."""
        needed: dict[str, int] = {}
        for name, peak in self.peak_bytes.items():
            memory = self.machine.memory(name)
            needed[memory.name] = needed.get(memory.name, 0) + peak
        return all(needed.get(memory.name, 0) <= memory.size_bytes for memory in self.machine.memories)


def forecast(plan: Plan, machine: Machine, model: CostModel, mode: str = "eager") -> Forecast:
    """Predict `plan` on `machine` with the costs of `model`, and what its profile says about tasks side by side.

    Raises PlanError where the plan cannot run there.
    """
    plan.validate(machine)
    dependencies = Dependencies(plan)
    costs = model.resolve(plan)
    timeline, wall_s = timed_simulation(plan, machine, costs, mode, dependencies, model.pair_multipliers)
    by_task = {task.name: cost for task, cost in zip(plan.tasks, costs, strict=True)}
    shares = Shares(**model.shares(plan, costs))
    common = known(machine.device(plan.devices[0]).kind, mode)
    return Forecast(plan, machine, costs, timeline, step_interval(timeline, by_task, common=common), shares, wall_s)


def prediction(found: Forecast, baseline: Forecast | None, precision: str) -> Prediction:
    """The document of one forecast beside the baseline's."""
    timeline = found.timeline
    base = baseline.timeline.step_s if baseline is not None else None
    return Prediction(
        strategy=found.plan.strategy,
        options=dict(found.plan.options),
        mode=timeline.mode,
        precision=precision,
        step_s=timeline.step_s,
        interval_s=found.interval_s,
        baseline_step_s=base,
        speedup=base / timeline.step_s if base else None,
        devices=timeline.devices,
        fits=found.fits,
        exposed_transfer_s=timeline.exposed_transfer_s,
        bubble_share=timeline.bubble_share,
        tasks=len(timeline.spans),
        simulate_wall_s=found.simulate_wall_s,
        shares=found.shares,
        critical_path=timeline.critical_path,
    )


def forecast_many(job, requested: Sequence[str], shared: Mapping[str, str], machine: Machine, model: CostModel, mode: str = "eager"):
    """Forecast the baseline and every requested strategy (`NAME[:option=value,...]`); yields (text, Forecast or the StepcastError).

    The baseline comes first, whether requested or not.
    """
    for text in dict.fromkeys(["baseline", *requested]):
        try:
            strategy, options = strategies.parse(text, shared)
            yield text, forecast(strategy.plan(job, machine, model, options), machine, model, mode)
        except StepcastError as error:
            yield text, error


def check_shared(requested: Sequence[str], shared: Mapping[str, str]) -> None:
    """Raise StepcastError for an option that no requested strategy has."""
    offered = {name for text in requested for name in strategies.get(text.partition(":")[0]).option_names}
    for name in shared:
        if name not in offered:
            raise UnknownNameError("option for --set", name, sorted(offered), "stepcast strategies lists each strategy's options")
