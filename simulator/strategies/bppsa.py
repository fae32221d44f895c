"""BPPSA: back-propagation as a parallel scan (Wang et al., "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm", 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from simulator.build import PlanBuilder
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.scan.layers import MOST_TERMS, LayerScan
from simulator.scan.recurrent import RecurrentScan, is_recurrent
from traces.errors import StepcastError
from traces.timeline import Timeline

if TYPE_CHECKING:
    from simulator.costs.model import CostModel

NAME = "bppsa"
ABOUT = "back-propagation through a chain as a parallel scan over transposed Jacobians"
#: The plan depends on predicted times: they choose the level.
USES_COSTS = True

#: How many times the shortest step a level may take for the next one to be tried.
FAR = 2.0
#: Terms of a product of sparse Jacobians beyond which a level is not tried: what to multiply with what would take minutes to work out.
FEW_TERMS = 2**23

Level = Annotated[int, Field(ge=0)]
Workers = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Options:
    """How the scan runs."""

    scan: Literal["blelloch", "linear", "hybrid"] = "hybrid"
    """All levels in parallel (blelloch), one element after another (linear), or a linear scan between some levels (hybrid)."""

    level: Level | Literal["auto"] = "auto"
    """Hybrid: sweeps up and down, 0 for a linear scan; auto: as many as are predicted fastest."""

    jacobian: Literal["auto", "dense", "csr"] = "auto"
    """How transposed Jacobians are kept: sparse (csr), dense, or as suits each (auto); those of recurrent layers are dense."""

    workers: Workers | Literal["auto"] = "auto"
    """Lanes that share the elements of a scan; auto: one, or every core of a CPU where that is predicted faster."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Baseline's tasks, with every chain of gradients by activations replaced by a scan, whose results give the parameters' gradients.

    Raises StepcastError where the model is no chain, an op of it has no Jacobian rule, or its Jacobians exceed the device's memory.
    """
    from simulator.costs.model import CostModel  # here, so that listing and checking strategies loads neither numpy nor the engine

    drafts = _Drafts(job, machine, options)
    level = {"blelloch": drafts.full_level, "linear": 0}.get(options.scan, options.level)
    if level == "auto":
        return drafts.fastest(range(drafts.full_level + 1), costs or CostModel(machine))
    if level > drafts.full_level:
        raise StepcastError(f"bppsa: level is {level}; expected 0 to {drafts.full_level}, where one block is left")
    return drafts.fastest([level], costs or CostModel(machine))


class _Drafts:
    """Plans of one job at different levels."""

    def __init__(self, job, machine: Machine, options: Options):
        self._job, self._machine, self._options = job, machine, options
        self._device = machine.devices[0]
        build = self._build()
        scan = self._scan(build, build.backward())
        self.full_level = scan.full_level
        needed, there = scan.jacobian_bytes, machine.memory(self._device.name).size_bytes
        if needed > there:
            raise StepcastError(
                f"bppsa: {job.label} needs {needed / 1e9:.2f} GB for its Jacobians, this machine has {there / 1e9:.2f} GB;"
                " choose a smaller batch or --image-size"
            )
        cores = self._device.sms if self._device.kind == "cpu" else 1
        self._workers = sorted({1, cores}) if options.workers == "auto" else [options.workers]

    def _build(self) -> PlanBuilder:
        return PlanBuilder(self._job, self._device.name)

    def _scan(self, build: PlanBuilder, backward: list[Task]) -> RecurrentScan | LayerScan:
        if any(map(is_recurrent, backward)):
            return RecurrentScan(build, backward)
        given = self._options.scan != "hybrid" or self._options.level != "auto"
        return LayerScan(build, backward, self._options.jacobian, MOST_TERMS if given else FEW_TERMS)

    def at(self, level: int, workers: int) -> Plan:
        """The plan with scans of `level`, or of their own full level where that is less."""
        build = self._build()
        tasks: list[Task] = []
        for micro_batch in range(self._job.accumulate):
            forward, backward = build.forward(micro_batch), build.backward(micro_batch)
            jacobians, scanned = self._scan(build, backward).tasks(level, workers)
            tasks += [*forward, *jacobians, *scanned]
        return build.plan(NAME, [*tasks, *build.clip(), *build.updates()], self._options, {"scan_level": level})

    def fastest(self, levels: Sequence[int], costs: "CostModel") -> Plan:
        """The plan with the shortest predicted step among those of `levels`, from the lowest on.

        Higher levels take more memory, and products of sparse Jacobians grow denser: none is tried behind a level that cannot be planned,
        does not fit, or takes FAR times the shortest step.
        """
        from simulator.engine.simulation import simulate

        best, shortest_s = None, inf
        for level in levels:
            try:
                drafts = [self.at(level, workers) for workers in self._workers]
            except StepcastError:
                if best is None:
                    raise
                break
            best = best or drafts[0]
            if len(levels) == len(drafts) == 1:
                break
            timelines = [simulate(d, self._machine, costs.resolve(d), pair_multipliers=costs.pair_multipliers) for d in drafts]
            taken = [timeline.step_s if self._fits(timeline) else inf for timeline in timelines]
            if min(taken) > FAR * shortest_s or min(taken) == inf:
                break
            if min(taken) < shortest_s:
                best, shortest_s = drafts[taken.index(min(taken))], min(taken)
        return best

    def _fits(self, timeline: Timeline) -> bool:
        return max(use.peak_bytes for use in timeline.devices) <= self._machine.memory(self._device.name).size_bytes
