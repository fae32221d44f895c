"""The parts of a step of a tiny plan."""

from collections.abc import Mapping, Sequence

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import timed_simulation
from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from simulator.predict.waterfall import StepParts, step_parts, task_seconds


def parts_of(
    plan: Plan, costs: Sequence[Cost], machine: Machine, mode: str = "eager", multipliers: Mapping[tuple[str, str], float] | None = None
) -> StepParts:
    """The parts of the steady step."""
    timeline, _, alone_s = timed_simulation(plan, machine, costs, mode, Dependencies(plan), multipliers)
    return step_parts(timeline, task_seconds(plan, machine, costs, alone_s))
