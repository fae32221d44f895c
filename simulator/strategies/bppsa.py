"""BPPSA: back-propagation as a parallel scan (Wang et al., "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm", 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from simulator.engine.costs.cost import PlanCosts
from simulator.engine.memory.over_time import TooLargeError
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.scan.layers import MOST_TERMS, LayerScan
from simulator.strategies.scan.recurrent import RecurrentScan, is_recurrent
from traces import units
from traces.documents.timeline import Timeline
from traces.errors import Code, SchedcastError

NAME = "bppsa"
ABOUT = "back-propagation through a chain as a parallel scan over transposed Jacobians"
#: The plan depends on predicted times: they choose the level.
USES_COSTS = True

#: The search for a level stops at the first level whose step takes longer than this many times the shortest step so far.
FAR = 2.0
#: Most terms in one product of sparse Jacobians while searching for a level; working out the pattern of a larger product takes minutes.
FEW_TERMS = 2**23

Level = Annotated[int, Field(ge=0)]
Workers = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Options:
    """How the scan runs."""

    scan: Literal["blelloch", "linear", "hybrid"] = "hybrid"
    """blelloch: all levels in parallel; linear: one element after another; hybrid: a linear scan between some parallel levels."""

    level: Level | Literal["auto"] = "auto"
    """Number of up-sweeps and down-sweeps of the hybrid scan (0: a linear scan); auto: the number predicted fastest."""

    jacobian: Literal["auto", "dense", "csr"] = "auto"
    """Format of the transposed Jacobians: dense, sparse (csr), or chosen for each one (auto); recurrent layers always use dense ones."""

    workers: Workers | Literal["auto"] = "auto"
    """Number of lanes that share the elements of a scan; auto: one, or one per core of a CPU if that is predicted faster."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks, with each chain of activation gradients replaced by a scan; parameter gradients are computed from its results.

    Raises SchedcastError if the model is not a chain, or if one of its ops has no Jacobian rule, and TooLargeError if its Jacobians exceed
    the device's memory.
    """
    from simulator.engine.costs.model import CostModel  # here, so that listing and checking strategies loads neither numpy nor the engine

    if job.autocast_dtype is not None:
        raise SchedcastError(f"bppsa: Jacobians of casts are not modeled (--precision {job.precision}); use fp32, tf32 or bf16", Code.MODEL)
    drafts = _Drafts(job, machine, options)
    level = {"blelloch": drafts.full_level, "linear": 0}.get(options.scan, options.level)
    if level == "auto":
        return drafts.fastest(range(drafts.full_level + 1), costs or CostModel(machine))
    if level > drafts.full_level:
        raise SchedcastError(f"bppsa: level is {level}; expected 0 to {drafts.full_level}, the level at which one block is left")
    return drafts.fastest([level], costs or CostModel(machine))


class _Drafts:
    """Plans of one job at different levels."""

    def __init__(self, job: Job, machine: Machine, options: Options):
        self._job, self._machine, self._options = job, machine, options
        self._device = machine.devices[0]
        build = self._build()
        scan = self._scan(build, build.backward())
        self.full_level = scan.full_level
        needed, available = scan.jacobian_bytes, machine.memory(self._device.name).size_bytes
        if needed > available:
            raise TooLargeError(
                f"bppsa: {job.label} needs {units.memory(needed)} for its Jacobians, this machine has {units.memory(available)};"
                " choose a smaller batch or --image-size",
                needed - available,
            )
        cores = self._device.sms if self._device.kind == "cpu" else 1
        self._workers = sorted({1, cores}) if options.workers == "auto" else [options.workers]

    def _build(self) -> PlanBuilder:
        return PlanBuilder(self._job, self._device.name)

    def _scan(self, build: PlanBuilder, backward: list[Task]) -> RecurrentScan | LayerScan:
        if any(map(is_recurrent, backward)):
            return RecurrentScan(build, backward)
        level_is_fixed = self._options.scan != "hybrid" or self._options.level != "auto"
        return LayerScan(build, backward, self._options.jacobian, MOST_TERMS if level_is_fixed else FEW_TERMS)

    def at(self, level: int, workers: int) -> Plan:
        """The plan whose scans have `level` levels, or their own full level if that is lower."""
        build = self._build()
        tasks: list[Task] = []
        for microbatch in range(self._job.accumulate):
            forward, backward = build.forward(microbatch), build.backward(microbatch)
            jacobians, scanned = self._scan(build, backward).tasks(level, workers)
            tasks += [*forward, *jacobians, *scanned]
        return build.plan(NAME, [*tasks, *build.finish_gradients(), *build.updates()], self._options, {"scan_level": level})

    def fastest(self, levels: Sequence[int], costs: PlanCosts) -> Plan:
        """The plan with the shortest predicted step among `levels`, tried in ascending order.

        Higher levels take more memory, and products of sparse Jacobians grow denser. The search stops at the first level that cannot be
        planned, does not fit into memory, or takes longer than FAR times the shortest step. Raises SchedcastError if the first level cannot
        be planned.
        """
        from simulator.engine.simulation import simulate

        best, shortest_s = None, inf
        for level in levels:
            try:
                drafts = [self.at(level, workers) for workers in self._workers]
            except SchedcastError:
                if best is None:
                    raise
                break
            best = best or drafts[0]
            if len(levels) == len(drafts) == 1:
                break
            timelines = [simulate(d, self._machine, costs.resolve(d), pair_multipliers=costs.pair_multipliers) for d in drafts]
            steps_s = [timeline.step_s if self._fits(timeline) else inf for timeline in timelines]
            if min(steps_s) > FAR * shortest_s or min(steps_s) == inf:
                break
            if min(steps_s) < shortest_s:
                best, shortest_s = drafts[steps_s.index(min(steps_s))], min(steps_s)
        return best

    def _fits(self, timeline: Timeline) -> bool:
        return max(use.peak_bytes for use in timeline.devices) <= self._machine.memory(self._device.name).size_bytes
