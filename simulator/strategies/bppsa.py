"""BPPSA: back-propagation as a parallel scan (Wang et al., "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm", 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from traces.errors import StepcastError

from ..build import PlanBuilder
from ..costs import CostModel
from ..engine import simulate
from ..machine import Machine
from ..plan import Plan, Task
from ..recurrent_scan import TARGETS, RecurrentScan

NAME = "bppsa"
ABOUT = "back-propagation through a chain as a parallel scan over transposed Jacobians"
#: The plan depends on predicted times: they choose the level.
USES_COSTS = True

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
    """Lanes that share the elements of a recurrent layer's scan; auto: every core of a CPU, one stream of a GPU."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Baseline's tasks, with every chain of gradients by activations replaced by a scan, whose results give the parameters' gradients.

    Raises StepcastError where the model is no chain, an op of it has no Jacobian rule, or its Jacobians exceed the device's memory.
    """
    drafts = _Drafts(job, machine, options)
    if options.scan == "hybrid" and options.level == "auto":
        return drafts.fastest(costs or CostModel(machine))
    level = {"blelloch": drafts.full_level, "linear": 0}.get(options.scan, options.level)
    if level > drafts.full_level:
        raise StepcastError(f"bppsa: level is {level}; expected 0 to {drafts.full_level}, where one block is left")
    return drafts.at(level)


class _Drafts:
    """Plans of one job at different levels."""

    def __init__(self, job, machine: Machine, options: Options):
        self._job, self._machine, self._options = job, machine, options
        scans = self._scans()
        self.full_level = max(scan.full_level for scan in scans)
        device = machine.devices[0]
        needed, there = sum(scan.jacobian_bytes for scan in scans), machine.memory(device.name).size_bytes
        if needed > there:
            raise StepcastError(
                f"bppsa: the Jacobians of {job.label} take {needed / 1e9:.2f} GB, {device.name} has {there / 1e9:.2f} GB;"
                " choose a smaller batch or --image-size"
            )
        cores = device.sms if device.kind == "cpu" else 1
        self._workers = cores if options.workers == "auto" else options.workers

    def _scans(self) -> list[RecurrentScan]:
        build = PlanBuilder(self._job, self._machine.devices[0].name)
        scans = [RecurrentScan(build, task) for task in build.step() if _target(task) in TARGETS]
        if not scans:
            raise StepcastError(f"bppsa: {self._job.label} has no recurrent layer; expected a chain of steps")
        return scans

    def at(self, level: int) -> Plan:
        """The plan with scans of `level`, or of their own full level where that is less."""
        build = PlanBuilder(self._job, self._machine.devices[0].name)
        tasks = [task for micro_batch in range(self._job.accumulate) for task in self._micro_batch(build, micro_batch, level)]
        return build.plan(NAME, [*tasks, *build.clip(), *build.updates()], self._options, {"scan_level": level})

    def _micro_batch(self, build: PlanBuilder, micro_batch: int, level: int) -> Iterator[Task]:
        forward, backward = build.forward(micro_batch), build.backward(micro_batch)
        scans = {}
        for task in backward:
            if _target(task) in TARGETS:
                scan = RecurrentScan(build, task)
                scans[task.name] = scan.tasks(min(level, scan.full_level), self._workers)
        yield from forward
        for jacobians, _ in scans.values():
            yield from jacobians
        for task in backward:
            yield from scans[task.name][1] if task.name in scans else (task,)

    def fastest(self, costs: CostModel) -> Plan:
        """The plan with the shortest predicted step of those that fit the memory, or with the least memory where none does."""
        ranked = []
        for level in range(self.full_level + 1):
            found = self.at(level)
            timeline = simulate(found, self._machine, costs.resolve(found), pair_multipliers=costs.pair_multipliers)
            peak = max(use.peak_bytes for use in timeline.devices)
            fits = peak <= self._machine.memory(self._machine.devices[0].name).size_bytes
            ranked.append((not fits, timeline.step_s if fits else peak, level, found))
        return min(ranked, key=lambda item: item[:3])[-1]


def _target(task: Task) -> str:
    return getattr(task.body, "target", "")
