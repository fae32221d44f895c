"""What each task of a plan costs alone: measured where the profile knows its key, else fitted on the profile, else from the table.

What issuing a task takes the host (`Cost.issue_s`) is the key's own where it was measured, else the median of the profile's keys of its
family, else of its op class, else of all, by launch of ops that are loops; None where the profile has none. An op list is the sum of its
ops.

Costs are medians of the samples, as a measured step is the median of steps: what makes a CPU slower for a while does so for all tasks of a
step, whose median then is the sum of the medians. (Sums of winsorised means were 7.0 % from the median step of eight models on one core,
sums of medians 5.3 %.) Copies between memories and collectives of a library cost nothing here: links price them. The model also says how
tasks side by side slow each other down (`pair_multipliers`).
"""

import re
import statistics
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from simulator.costs import efficiencies
from simulator.costs.contention import SMALL, group_of
from simulator.costs.cost import FITTED, GUESSED, MEASURED, Cost
from simulator.costs.efficiencies import Site, precision_of
from simulator.costs.roofline import Fit, Point, fit, fit_scale
from simulator.machine.machine import Machine
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import Resource, Task
from traces.profile import KeyCost, Profile

#: Op classes whose task is one launch however many rounds it has.
SINGLE = frozenset({"scan.linear"})
#: More keys than these add nothing to a fit but time.
_MOST_POINTS = 400
_NUMBERS = re.compile(r"[\d.]+")


class _Known(NamedTuple):
    """A profile's key that a fit can use."""

    op_class: str
    family: str
    sms: int
    cost: KeyCost


def linked(task: Task) -> bool:
    """Whether the links decide the task's time."""
    return task.body.resource in (Resource.LINK, Resource.COLLECTIVE)


def measurable(task: Task) -> bool:
    """Whether the task's cost is a matter of calibration."""
    return task.body.resource is Resource.COMPUTE


def family(key: str) -> str:
    """A key without its numbers: the same op with the same arguments in use, at any size."""
    return _NUMBERS.sub("", key.rpartition("@")[0])


class CostModel:
    """Costs on one machine. `precision`: what dense kernels use on float32 operands, `fp32` or `tf32` (default: as the profile says)."""

    def __init__(self, machine: Machine, profile: Profile | None = None, precision: str | None = None):
        """Without a profile every cost comes from the table."""
        self.machine = machine
        self.profile = profile
        self.precision = precision or ("tf32" if profile is not None and profile.identity.tf32 else "fp32")
        self._costs: dict[tuple[str, str], Cost] = {}
        self._alike = _alike(machine)
        self._fits: dict[tuple[str, int, bool], Fit | None] = {}
        self._sites: dict[tuple[str, int], Site] = {}
        self._issues: dict[tuple[str, str], float | None] = {}

    @cached_property
    def pair_multipliers(self) -> dict[tuple[str, str], float]:
        """How many times longer a task of one group takes beside one of another, as the profile's co-runs say; empty without.

        Of devices that are processes of one core each, short tasks do not share an interpreter: for them there are none.
        """
        known = self.profile.contention.multipliers if self.profile is not None else {}
        apart = self.machine.library and all(device.sms == 1 for device in self.machine.devices if device.kind == "cpu")
        pairs = {tuple(pair.split("|")): factor for pair, factor in known.items()}
        return {pair: factor for pair, factor in pairs.items() if not (apart and SMALL in pair)}

    def resolve(self, plan: Plan) -> list[Cost]:
        """One cost per task of `plan.tasks`, in their order."""
        return [self.cost(task) for task in plan.tasks]

    def cost(self, task: Task) -> Cost:
        """The cost of one task. Tasks of one key on devices that are alike share the object."""
        key = cost_key(task, self.machine)
        device = self._alike.get(task.device, task.device)
        found = self._costs.get((device, key))
        if found is None:
            found = self._costs[device, key] = self._price(task, device, key)
        return found

    def missing(self, plan: Plan) -> dict[str, Task]:
        """Keys that the profile has neither measured nor recorded as impossible, each with the first task that needs it."""
        known = {*self.profile.costs, *self.profile.failures} if self.profile is not None else set()
        return {key: task for key, task in plan.keys(self.machine).items() if key not in known and measurable(task)}

    def shares(self, plan: Plan, costs: list[Cost]) -> dict[str, float]:
        """The parts of the plan's task seconds (cold) that were measured, fitted and guessed; all 0 where nothing takes time."""
        seconds = dict.fromkeys((MEASURED, FITTED, GUESSED), 0.0)
        for task, cost in zip(plan.tasks, costs, strict=True):
            if measurable(task):
                seconds[cost.source] += cost.cold_s
        total = sum(seconds.values())
        return {source: part / total if total else 0.0 for source, part in seconds.items()}

    def _price(self, task: Task, device: str, key: str) -> Cost:
        """`task` may be a step of an OpList, which has no device of its own."""
        body = task.body
        if linked(task):
            op_class = body.work(task).op_class
            return Cost(key, 0.0, 0.0, GUESSED, launches=body.launches, op_class=op_class, issue_s=self._issue_s(key, op_class))
        if body.resource is Resource.HOST:
            return Cost(key, body.duration_s, body.duration_s, MEASURED, launches=0, op_class="host")
        known = self.profile.costs.get(key) if self.profile is not None else None
        if known is not None:
            found = self._measured(task, device, key, known)
        elif body.inner_ops:
            found = self._summed(task, device, key)
        else:
            found = self._fitted(task, device, key) or self._guessed(task, device, key)
        return self._with_shares(found, task, device)

    def _measured(self, task: Task, device: str, key: str, known: KeyCost) -> Cost:
        cold = known.cold or known.warm
        grid, blocks = efficiencies.geometry(task, self._site(device))
        if self._kind(device) == "gpu":
            grid, blocks = known.grid or grid, known.blocks_per_sm or blocks
        warm_s, cold_s = known.warm.median_s, cold.median_s
        if warm_s > cold_s:  # both are samples of one time: the caches make no difference that shows in the noise
            warm_s = cold_s = (warm_s + cold_s) / 2
        spread = max(known.warm.spread, cold.spread)
        return Cost(key, warm_s, cold_s, MEASURED, grid, blocks, spread=spread, issue_s=known.issue_s)

    def _fitted(self, task: Task, device: str, key: str) -> Cost | None:
        work = task.body.work(task)
        site = self._site(device)
        laws = [self._law(key, work.op_class, site.sms, warm) for warm in (True, False)]
        if laws[0] is None or laws[1] is None:
            return None
        precision = precision_of(task, work.op_class, self.precision)
        table = efficiencies.seconds(site, work.op_class, work.flops, work.bytes, precision, task.body.loop_length)
        warm_s, warm_error = laws[0].at(self._point(site, work.flops, work.bytes, table.warm))
        cold_s, cold_error = laws[1].at(self._point(site, work.flops, work.bytes, table.cold))
        grid, blocks = efficiencies.geometry(task, site)
        return Cost(key, warm_s, max(warm_s, cold_s), FITTED, grid, blocks, error=max(warm_error, cold_error))

    def _guessed(self, task: Task, device: str, key: str) -> Cost:
        work = task.body.work(task)
        site = self._site(device)
        precision = precision_of(task, work.op_class, self.precision)
        moved, count = efficiencies.traffic(task), task.body.least_kernels(site.kind)
        said = efficiencies.seconds(site, work.op_class, work.flops, moved, precision, count)
        grid, blocks = efficiencies.geometry(task, site)
        return Cost(key, said.warm, said.cold, GUESSED, grid, blocks, error=said.error)

    def _summed(self, task: Task, device: str, key: str) -> Cost:
        """An op list nobody measured is the sum of its ops; its errors are taken to go together, its source is the weakest."""
        sms = self.machine.device(device).sms
        parts = [self._price(step, device, f"{step.body.key(step)}@{sms}") for step in task.body.inner_ops]
        warm_s, cold_s = sum(p.warm_s for p in parts), sum(p.cold_s for p in parts)
        grid, blocks = max(((p.grid, p.blocks_per_sm) for p in parts), default=(1, 1))
        error = sum(p.cold_s * (p.error or p.spread) for p in parts) / cold_s if cold_s else 0.0
        source = GUESSED if any(p.source == GUESSED for p in parts) else FITTED
        issues = [p.issue_s for p in parts if p.issue_s is not None]  # all or none: they fall back on each other
        return Cost(key, warm_s, cold_s, source, grid, blocks, error=error, issue_s=sum(issues) if issues else None)

    def _with_shares(self, cost: Cost, task: Task, device: str) -> Cost:
        """Add the task's group, and the shares of the device's peak and of its memory's bandwidth that it draws at its solo time.

        On a CPU whose co-runs were measured it draws no bandwidth: the multipliers stand for that.
        """
        work = task.body.work(task)
        machine = self.machine.device(device)
        peaks = machine.peak_flops
        peak = peaks.get(precision_of(task, work.op_class, self.precision), peaks["fp32"])
        bandwidth = self.machine.memory(device).bandwidth_bytes_per_s
        compute = min(1.0, work.flops / (peak * cost.warm_s)) if cost.warm_s else 0.0
        memory = min(1.0, efficiencies.traffic(task) / (bandwidth * cost.cold_s)) if cost.cold_s else 0.0
        if machine.kind == "cpu" and self.pair_multipliers:
            memory = 0.0
        group = group_of(work.op_class, (cost.warm_s + cost.cold_s) / 2, machine.kind)
        issue_s = cost.issue_s
        if issue_s is None and (each_s := self._issue_s(cost.key, work.op_class)) is not None:
            issue_s = each_s * min(task.body.loop_length, task.body.launches)  # a loop that is one kernel is issued once
        return replace(
            cost,
            compute_share=compute,
            memory_share=memory,
            launches=task.body.launches,
            calls=task.body.calls,
            op_class=work.op_class,
            issue_s=issue_s,
            group=group,
        )

    def _issue_s(self, key: str, op_class: str) -> float | None:
        """By launch: the median of the profile's keys of the same family, else of the class, else of all."""
        name = (family(key), op_class)
        if name not in self._issues:
            by_family, by_class, every = self._issued
            found = by_family.get(name[0]) or by_class.get(op_class) or every
            self._issues[name] = statistics.median(found) if found else None
        return self._issues[name]

    @cached_property
    def _issued(self) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
        """The profile's issue times by launch: by family, by op class, and all."""
        by_family: dict[str, list[float]] = {}
        by_class: dict[str, list[float]] = {}
        every: list[float] = []
        for key, cost in self.profile.costs.items() if self.profile is not None else ():
            if cost.issue_s is not None:
                for found in (by_family.setdefault(family(key), []), by_class.setdefault(cost.op_class, []), every):
                    found.append(cost.issue_s / (1 if cost.op_class in SINGLE else cost.launches))
        return by_family, by_class, every

    def _law(self, key: str, op_class: str, sms: int, warm: bool) -> Fit | None:
        """The better fit of the key's family and its class at this SM count, or its class at any, or one factor for the whole table."""
        kin = family(key)
        name = (kin, sms, warm)
        if name not in self._fits:
            same = [known for known in self._known if known.op_class == op_class]
            here = [known for known in same if known.sms == sms]
            fits = [fit(self._points(some, warm)) for some in ([known for known in here if known.family == kin], here)]
            found = min((f for f in fits if f is not None), key=lambda f: f.error, default=None)
            self._fits[name] = found or fit(self._points(same, warm)) or self._pooled(warm)
        return self._fits[name]

    def _pooled(self, warm: bool) -> Fit | None:
        name = ("", 0, warm)
        if name not in self._fits:
            self._fits[name] = fit_scale(self._points(list(self._known), warm))
        return self._fits[name]

    @cached_property
    def _known(self) -> tuple[_Known, ...]:
        found = []
        for key, cost in self.profile.costs.items() if self.profile is not None else ():
            sms = key.rpartition("@")[2]
            if cost.op_class and sms.isdecimal() and int(sms) > 0:
                found.append(_Known(cost.op_class, family(key), int(sms), cost))
        return tuple(found)

    def _points(self, known: list[_Known], warm: bool) -> list[Point]:
        step = len(known) // _MOST_POINTS + 1
        return [self._known_point(item, warm) for item in known[::step]]

    def _known_point(self, known: _Known, warm: bool) -> Point:
        cost = known.cost
        site = self._site(self.machine.devices[0].name, known.sms)
        precision = self.precision if known.op_class in efficiencies.DENSE else "fp32"
        said = efficiencies.seconds(site, known.op_class, cost.flops, cost.bytes, precision, cost.launches)
        measured = (cost.warm if warm else cost.cold or cost.warm).median_s
        return self._point(site, cost.flops, cost.bytes, said.warm if warm else said.cold, measured)

    @staticmethod
    def _point(site: Site, flops: float, moved_bytes: float, table_s: float, measured_s: float = 0.0) -> Point:
        """On a CPU a task has one core however many its device has."""
        return Point(flops / (site.sms if site.kind == "gpu" else 1), moved_bytes, table_s, measured_s)

    def _site(self, device: str, sms: int | None = None) -> Site:
        """What a task on a device has, or would have if the device had `sms` SMs."""
        given = self.machine.device(device)
        name = (device, sms or given.sms)
        if name not in self._sites:
            factor = name[1] / given.sms
            total = sum(d.sms for d in self.machine.devices if d.memory == given.memory)
            scaled = replace(given, sms=name[1], peak_flops={p: flops * factor for p, flops in given.peak_flops.items()})
            self._sites[name] = Site.of(scaled, self.machine.memory(device), min(1.0, name[1] / total))
        return self._sites[name]

    def _kind(self, device: str) -> str:
        return self.machine.device(device).kind


def _alike(machine: Machine) -> dict[str, str]:
    """Device -> the first device that differs from it in name only, its memory likewise."""
    first: dict[tuple, str] = {}
    found = {}
    for device in machine.devices:
        memory = machine.memory(device.name)
        sharing = sum(other.sms for other in machine.devices if other.memory == device.memory)
        traits = (replace(device, name="", memory="", peak_flops=()), *sorted(device.peak_flops.items()), replace(memory, name=""), sharing)
        found[device.name] = first.setdefault(traits, device.name)
    return found
