"""The work of published steps in groups of equal tasks, and its price: one step as the engine says, or many steps at once as arrays."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies, products
from simulator.engine.costs.channel_blocks import Channels
from simulator.engine.costs.efficiencies import (
    CHANNELS_LAST,
    HALF,
    NORM_CHANNELS_LAST,
    NORM_HALF,
    WINOGRAD,
    EfficiencyRows,
    Extents,
    serves,
)
from simulator.engine.costs.products import Attention
from simulator.engine.costs.site import Site, figure
from simulator.engine.hosts import issue_seconds
from simulator.engine.simulation import simulate
from simulator.machine.presets import data
from simulator.predict.scoreboard.predicted import copy_s, plan_of, target_of, waits_for_host
from simulator.predict.scoreboard.rows import Row

#: The rows of the table whose numbers are fitted on steps.
FITTED = frozenset({"conv", WINOGRAD, HALF, CHANNELS_LAST, NORM_HALF, NORM_CHANNELS_LAST, "grouped-conv"})
MIXED = "mixed"


class Group(NamedTuple):
    """`count` tasks of a step with equal work. `cold`: the share of their reads that is not in the cache."""

    op_class: str
    precision: str
    flops: float
    bytes: float
    launches: int
    outputs: float
    extents: Extents | None
    cold: float
    count: int


class StepOps(NamedTuple):
    """The work of a published step, the time for which the host issues it, and that of copying its batch (`predicted.copy_s`).

    `site`: at the rated clock and the full bandwidth. `memory`, `boosted`: which of the fitted figures of `machines.json` the card has.
    """

    row: Row
    site: Site
    memory: str
    boosted: bool
    groups: tuple[Group, ...]
    launches: int
    host_s: float
    copy_s: float = 0.0

    @property
    def waits_for_host(self) -> bool:
        """Whether the published time is short for its launches."""
        return waits_for_host(self.row, self.launches)

    @property
    def place(self) -> tuple[str, int]:
        """Where the row stands: the table and the row's number."""
        return self.row.file, self.row.number

    @property
    def precision(self) -> str:
        """The precision whose numbers its errors judge."""
        return MIXED if self.row.mixed else self.row.job.precision

    @property
    def in_first_stage(self) -> bool:
        """Whether the numbers of the first stage are fitted on it."""
        return self.row.job.precision == "fp32" and self.memory in ("hbm", "gddr") and not self.boosted

    def seconds(self, device_s: float) -> float:
        """The time of the step: that of the GPU, or of the host if it is longer, and of copying the batch."""
        return max(device_s, self.host_s) + self.copy_s

    def reached(self, figures: dict[str, float]) -> Site:
        """The site with what the card's memory and clock reach."""
        peaks = {name: peak * (figures["boost"] if self.boosted else 1.0) for name, peak in self.site.peak_flops.items()}
        bandwidth = self.site.bandwidth_bytes_per_s * (figures.get(self.memory, 1.0))
        return self.site._replace(peak_flops=peaks, bandwidth_bytes_per_s=bandwidth)


def step_ops(row: Row) -> StepOps:
    """The work of a row. What the cache holds comes from a simulation with the table as it is."""
    preset = target_of(row)
    plan = plan_of(row, preset)
    target = preset.running(plan)
    machine, model = target.machine, target.costs
    rated = machine.rated or machine
    device = rated.devices[0]
    memory = rated.memory(device.name)
    site = Site.of_device(replace(device, reached=1.0), replace(memory, reached=1.0), 1.0)
    costs = model.resolve(plan)
    lasted = {span.task: span.end_s - span.start_s for span in simulate(plan, machine, costs, mode=target.mode).spans}
    counts: Counter[Group] = Counter()
    for task, cost in zip(plan.tasks, costs, strict=True):
        work = task.body.work(task)
        precision = efficiencies.precision_of(task, work.op_class, "tf32" if row.job.precision == "tf32" else "fp32")
        name = efficiencies.row_class(task, work.op_class, precision, site)
        extra = cost.cold_s - cost.warm_s
        cold = (lasted.get(task.name, cost.cold_s) - cost.warm_s) / extra if extra > 0 else 1.0
        moved, launches = efficiencies.traffic(task), task.body.least_kernels("gpu")
        outputs, extents = efficiencies.outputs(task) or 0.0, efficiencies.extents(task)
        counts[Group(name, precision, work.flops, moved, launches, outputs, extents, round(min(1.0, max(0.0, cold)), 2), 1)] += 1
    groups = tuple(group._replace(count=count) for group, count in counts.items())
    launches = sum(task.body.launches for task in plan.tasks)
    host = machine.host(device.name)
    host_s = 0.0 if row.mode == "graph" else sum(issue_seconds(host, cost.launches, cost.issue_s) for cost in costs)
    gpu = data().gpus[data().machines[row.machine].gpu]
    boosted = gpu.peak_reached[1] == "boost"
    site = site if boosted else Site.of_device(device, replace(memory, reached=1.0), 1.0)
    copied_s = copy_s(plan, machine) if row.synchronized else 0.0
    return StepOps(row, site, gpu.bandwidth_reached[1], boosted, groups, launches, host_s, copied_s)


def figures_of_presets() -> dict[str, float]:
    """What `machines.json` says that memories reach and cards clock above their rated boost."""
    gpus = data().gpus.values()
    return {name: value for gpu in gpus for value, name in (gpu.bandwidth_reached, gpu.peak_reached) if name}


def step_seconds(step: StepOps, rows: EfficiencyRows, figures: dict[str, float] | None = None) -> float:
    """The predicted time of a step on one stream."""
    return step.seconds(device_seconds(step, rows, figures or figures_of_presets()))


def device_seconds(step: StepOps, rows: EfficiencyRows, figures: dict[str, float]) -> float:
    """The device time of the step's ops."""
    site, total = step.reached(figures), 0.0
    for group in step.groups:
        total += _group_seconds(site, group, rows)
    return total


def _group_seconds(site: Site, group: Group, rows: EfficiencyRows) -> float:
    work = (group.flops, group.bytes, group.precision, group.launches)
    said = efficiencies.seconds(site, group.op_class, *work, rows, group.outputs or None, group.extents)
    return group.count * (said.warm + group.cold * (said.cold - said.warm))


def _by_extents(step: StepOps, group: Group, rows: EfficiencyRows) -> bool:
    """Whether the group is priced by kernels of products or with a block for each channel, which nothing here is fitted for."""
    row = rows.row(group.op_class)
    if isinstance(group.extents, Channels):
        return row.channel_blocks is not None
    return group.extents is not None and row.product is not None and serves(step.site, group.precision, group.extents)


class Work:
    """The ops of many steps as arrays, to price them fast: what does not depend on the fitted numbers is priced once."""

    def __init__(self, steps: Sequence[StepOps], rows: EfficiencyRows, figures: dict[str, float], names: Iterable[str]):
        """`names`: of the numbers that are fitted; the others are in `rows` and `figures`."""
        moving = {name for name in names if name in figures}
        self._steps = len(steps)
        # What memories and clocks reach counts in products too, but changes their time little: they keep what the search starts from.
        self._fixed_s = np.array([_product_seconds(step, rows, figures) for step in steps])
        parts = list(_parts(steps, rows))
        fixed = [part.some(~part.varies(moving)) for part in parts]
        self._fixed_s = self._summed(fixed, rows, figures)
        self._parts = [part.some(part.varies(moving)) for part in parts]

    def seconds(self, rows: EfficiencyRows, figures: dict[str, float]) -> np.ndarray:
        """Device seconds of every step."""
        return self._summed(self._parts, rows, figures)

    def _summed(self, parts: Iterable["_Part"], rows: EfficiencyRows, figures: dict[str, float]) -> np.ndarray:
        return self._fixed_s + sum(np.bincount(part.step, part.seconds(rows, figures), self._steps) for part in parts if len(part.step))


class _Part(NamedTuple):
    """The ops of one class and precision. `memory`: the number of the kind of memory in `MEMORIES`; `cycles`: a second of all SMs."""

    op_class: str
    precision: str
    cache_rate: float
    step: np.ndarray
    memory: np.ndarray
    boosted: np.ndarray
    count: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    launches: np.ndarray
    outputs: np.ndarray
    cold: np.ndarray
    peak: np.ndarray
    bandwidth: np.ndarray
    sms: np.ndarray
    cycles: np.ndarray
    operands: np.ndarray
    cached: np.ndarray

    def some(self, chosen: np.ndarray) -> "_Part":
        """The chosen ops."""
        return _Part(*self[:3], *(column[chosen] for column in self[3:]))

    def varies(self, moving: Set[str]) -> np.ndarray:
        """For each op, whether its time depends on fitted numbers."""
        memories = np.array([name in moving for name in MEMORIES])
        return memories[self.memory] | (self.boosted & ("boost" in moving)) | (self.op_class in FITTED)

    def seconds(self, rows: EfficiencyRows, figures: dict[str, float]) -> np.ndarray:
        """Seconds of the ops, each as often as its step has it."""
        row = rows.row(self.op_class)
        peak = self.peak * np.where(self.boosted, figures["boost"], 1.0)
        bandwidth = self.bandwidth * np.array([figures.get(name, 1.0) for name in MEMORIES])[self.memory]
        flops = self.flops / (row.saved.value if row.saved else 1.0)
        if row.idle is not None:
            blocks = np.maximum(self.outputs / row.tile.value, flops / self.launches / row.split_flops.value)
            flops = np.where(self.outputs > 0, flops * (1 + row.idle.value * self.sms / np.maximum(blocks, 1e-9)), flops)
        compute_s = flops / (peak * figure(row.compute, self.precision).value)
        if row.fed is not None:
            compute_s += flops * self.operands / (row.fed.value * self.cycles)
        memory_s = self.bytes / (bandwidth * row.memory.value)
        if not row.adds:
            faster = np.maximum(1.0, self.cache_rate * self.sms / bandwidth)
            memory_s = memory_s * np.where(self.cached, self.cold + (1 - self.cold) / faster, 1.0)
        return self.count * (self.launches * row.least_s.value + row.together(compute_s, memory_s))


#: The kinds of memory, by their sources in `machines.json`.
MEMORIES = tuple(sorted({gpu.bandwidth_reached[1] for gpu in data().gpus.values()}))


def _parts(steps: Sequence[StepOps], rows: EfficiencyRows) -> Iterable[_Part]:
    items: dict[tuple[str, str], list[tuple]] = defaultdict(list)
    for number, step in enumerate(steps):
        site, memory = step.site, MEMORIES.index(step.memory)
        for g in (group for group in step.groups if not _by_extents(step, group, rows)):
            work = (g.count, g.flops, g.bytes, max(1, g.launches), g.outputs, g.cold, figure(site.peak_flops, g.precision))
            rest = (site.bandwidth_bytes_per_s, site.sms, site.sms * site.cycles_per_s, efficiencies.operands(site, g.precision))
            items[g.op_class, g.precision].append((number, memory, step.boosted, *work, *rest, g.bytes <= site.cache_bytes))
    rate = rows.cache_bytes_per_s_per_sm.value if rows.cache_bytes_per_s_per_sm else 0.0
    for place, works in items.items():
        columns = np.array(works, float).T
        number, memory, boosted = columns[0].astype(int), columns[1].astype(int), columns[2].astype(bool)
        yield _Part(*place, rate, number, memory, boosted, *columns[3:-1], columns[-1].astype(bool))


def _product_seconds(step: StepOps, rows: EfficiencyRows, figures: dict[str, float]) -> float:
    """Device seconds of the step's matrix products and attentions on tensor cores, and of norms with a block for each channel."""
    alike: dict[tuple, list[Group]] = defaultdict(list)
    site, total_s = step.reached(figures), 0.0
    for group in step.groups:
        if not _by_extents(step, group, rows):
            continue
        if isinstance(group.extents, Channels):
            total_s += _group_seconds(site, group, rows)
        else:
            shared = (*group.extents[4:6], group.extents.made_for_chip) if isinstance(group.extents, Attention) else group.extents[4:]
            alike[group.op_class, group.precision, type(group.extents), shared].append(group)
    for (op_class, precision, kind, shared), groups in alike.items():
        kernel, moved = rows.row(op_class).product, np.array([group.bytes for group in groups])
        sizes = np.array([group.extents[:4] for group in groups]).T
        moved_each = np.array([group.extents.bytes for group in groups])
        works = kind(*sizes, *shared[:2], moved_each, shared[2]) if kind is Attention else kind(*sizes, *shared)
        cold_s, alone_s = (products.seconds(kernel, site, precision, works, missed) for missed in (moved, 0.0 * moved))
        warm_s = np.where(moved <= site.cache_bytes, alone_s, cold_s)
        count, cold = np.array([(group.count, group.cold) for group in groups]).T
        total_s += float(count @ (warm_s + cold * (cold_s - warm_s)))
    return total_s
