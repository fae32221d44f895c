"""BPPSA: back-propagation as a parallel scan (Wang et al., "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm", 2020)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from simulator.engine.collectives.tasks import Sender
from simulator.engine.costs.cost import PlanCosts
from simulator.engine.memory.over_time import TooLargeError
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.pipeline.pipeline import Cut, Pipeline
from simulator.strategies.pipeline.planning import StageOptions, cut, devices_of, named, refuse_clipping
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action
from simulator.strategies.scan.layers import MOST_TERMS, LayerScan
from simulator.strategies.scan.recurrent import RecurrentScan, is_recurrent
from traces import units
from traces.errors import Code, SchedcastError

NAME = "bppsa"
ABOUT = "back-propagation through a chain as a parallel scan over transposed Jacobians"
#: The plan depends on predicted times: they choose the level.
USES_COSTS = True

#: The search for a level stops at the first level whose step takes longer than this many times the shortest step so far.
FAR = 2.0
#: Steps that differ by less than this factor are equal: both wait for the same host, which hides the time of the scan.
EQUAL = 1.01
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

    devices: Workers = 1
    """Number of devices that share the layers of a chain, each with its own part of the scan."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks, with each chain of activation gradients replaced by a scan; parameter gradients are computed from its results.

    Raises SchedcastError if the model is not a chain, or if one of its ops has no Jacobian rule, and TooLargeError if its Jacobians exceed
    the device's memory.
    """
    from simulator.engine.costs.model import CostModel  # here, so that listing and checking strategies loads neither numpy nor the engine

    if job.autocast_dtype is not None:
        raise SchedcastError(f"bppsa: Jacobians of casts are not modeled (--precision {job.precision}); use fp32, tf32 or bf16", Code.MODEL)
    drafts = _Drafts(job, machine, options, costs)
    level = {"blelloch": drafts.full_level, "linear": 0}.get(options.scan, options.level)
    if level == "auto":
        return drafts.fastest(range(drafts.full_level + 1), costs or CostModel(machine))
    if level > drafts.full_level:
        raise SchedcastError(f"bppsa: level is {level}; expected 0 to {drafts.full_level}, the level at which one block is left")
    return drafts.fastest([level], costs or CostModel(machine))


class _Drafts:
    """Plans of one job at different levels."""

    def __init__(self, job: Job, machine: Machine, options: Options, costs: PlanCosts | None):
        self._job, self._machine, self._options = job.planned(compact=False), machine, options  # drafts need all microbatches
        self._device = machine.devices[0]
        self._devices = devices_of(machine, options.devices, NAME) if options.devices > 1 else (self._device.name,)
        self._cut = self._cut_by(costs) if options.devices > 1 else None
        self._sender: Sender | None = None
        self._updates: Callable[[], list[Task]]
        build, passes = self._passes()
        if build.graph.repeats:
            raise SchedcastError(
                f"bppsa needs all activations at once, for its Jacobians (checkpointing: {build.graph.checkpoint}); drop --checkpoint,"
                " or use a model that does not checkpoint",
                Code.MODEL,
            )
        scan = self._scan(build, passes[0][1])
        self.full_level = scan.full_level
        needed, available = scan.jacobian_bytes, machine.memory(self._device.name).size_bytes
        if needed > available:
            raise TooLargeError(
                f"bppsa: {job.label} needs {units.memory(needed)} for its Jacobians, this machine has {units.memory(available)};"
                " choose a smaller batch or --image-size",
                needed - available,
            )
        cores = self._device.sms if self._device.kind == "cpu" and self._cut is None else 1
        self._workers = sorted({1, cores}) if options.workers == "auto" else [options.workers]

    def _cut_by(self, costs: PlanCosts | None) -> Cut:
        """The graph in one stage for each device."""
        refuse_clipping(self._job, NAME)
        with named(NAME):
            return cut(self._job, self._machine, costs, StageOptions(), len(self._devices), self._job.accumulate)

    def _passes(self) -> tuple[PlanBuilder, list[tuple[list[Task], list[Task]]]]:
        """The builder, and the forward and backward of each microbatch."""
        microbatches = range(self._job.accumulate)
        if self._cut is None:
            build = PlanBuilder(self._job, self._device.name)
            self._updates = build.updates
            return build, [(build.forward(microbatch), build.backward(microbatch)) for microbatch in microbatches]
        pipeline = Pipeline(self._job, self._machine, self._cut, self._job.accumulate, self._devices, self._devices)
        stages = range(pipeline.stages)
        pipeline.begin_with([Action(stage, BACKWARD, 0) for stage in stages])
        self._sender = pipeline.sender
        self._updates = lambda: [task for stage in stages for task in pipeline.updates(stage)]

        def work(kind: str, order: Iterable[int], microbatch: int) -> list[Task]:
            return [replace(task, action="") for stage in order for task in pipeline.work(Action(stage, kind, microbatch))]

        return pipeline.build, [(work(FORWARD, stages, m), work(BACKWARD, reversed(stages), m)) for m in microbatches]

    def _scan(self, build: PlanBuilder, backward: list[Task]) -> RecurrentScan | LayerScan:
        if any(map(is_recurrent, backward)):
            if self._cut is not None:
                raise SchedcastError("bppsa: devices share the layers of a chain, not the steps of a recurrent layer; drop devices")
            return RecurrentScan(build, backward)
        level_is_fixed = self._options.scan != "hybrid" or self._options.level != "auto"
        return LayerScan(build, backward, self._options.jacobian, MOST_TERMS if level_is_fixed else FEW_TERMS, self._sender)

    def at(self, level: int, workers: int) -> Plan:
        """The plan whose scans have `level` levels, or their own full level if that is lower."""
        build, passes = self._passes()
        tasks = build.counts()
        semantics: dict[str, object] = {"scan_level": level}
        for forward, backward in passes:
            scan = self._scan(build, backward)
            if scan.not_scanned:
                semantics["not_scanned"] = ", ".join(scan.not_scanned)
            jacobians, scanned = scan.tasks(level, workers)
            tasks += [*forward, *jacobians, *scanned]
        return build.plan(NAME, [*tasks, *build.finish_gradients(), *self._updates()], self._options, semantics)

    def fastest(self, levels: Sequence[int], costs: PlanCosts) -> Plan:
        """The plan with the shortest predicted step among `levels`, tried in ascending order.

        Higher levels take more memory, and products of sparse Jacobians grow denser. The search stops at the first level that cannot be
        planned, does not fit into memory, or takes longer than FAR times the shortest step. Of steps that are EQUAL because launches take
        longer than kernels, the one with the shortest kernels is best: it stays so with a faster host, and in a CUDA graph. Raises
        SchedcastError if the first level cannot be planned.
        """
        shortest_s, planned = inf, list[Plan]()
        drafted: list[tuple[float, Plan]] = []
        for level in levels:
            try:
                drafts = [self.at(level, workers) for workers in self._workers]
            except SchedcastError:
                if not planned:
                    raise
                break
            planned += drafts
            if len(levels) == len(drafts) == 1:
                return planned[0]
            steps_s = [self._step_s(draft, self._machine, costs) for draft in drafts]
            if min(steps_s) > FAR * shortest_s or min(steps_s) == inf:
                break
            shortest_s = min(shortest_s, *steps_s)
            drafted += zip(steps_s, drafts, strict=True)
        alone = replace(self._machine, hosts=()) if self._machine.hosts else self._machine
        equal = [(step_s, draft) for step_s, draft in drafted if step_s <= shortest_s * (EQUAL if self._machine.hosts else 1.0)]
        if len(equal) < 2:
            return equal[0][1] if equal else planned[0]
        return min(equal, key=lambda each: self._step_s(each[1], alone, costs))[1]

    def _step_s(self, draft: Plan, machine: Machine, costs: PlanCosts) -> float:
        """Seconds of a step; infinite if it does not fit into memory."""
        from simulator.engine.simulation import simulate

        timeline = simulate(draft, machine, costs.resolve(draft), pair_multipliers=costs.pair_multipliers)
        fits = all(use.peak_bytes <= self._machine.memory(use.name).size_bytes for use in timeline.devices)
        return timeline.step_s if fits else inf
