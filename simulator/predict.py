"""Predicting a plan: costs, simulation, interval, memory, and the document that `stepcast predict --json` prints."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from traces.comparison import Prediction, Shares
from traces.timeline import Timeline

from .cost import Cost
from .costs import CostModel
from .dependencies import Dependencies
from .engine import simulate
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
    """Predict `plan` on `machine` with the costs of `model`. Raises PlanError where the plan cannot run there."""
    plan.validate(machine)
    dependencies = Dependencies(plan)
    costs = model.resolve(plan)
    begin = time.perf_counter()
    timeline = simulate(plan, machine, costs, mode=mode, dependencies=dependencies)
    wall_s = time.perf_counter() - begin
    return Forecast(plan, machine, costs, timeline, step_interval(timeline, costs, plan), model.shares(plan, costs), wall_s)


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
