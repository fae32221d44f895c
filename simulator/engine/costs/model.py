"""The cost of each task of a plan alone: measured if the profile has its key, else fitted on the profile, else from the table.

On a CPU the fits are laws (`fits`); on a GPU they are the table, corrected by what measured keys take compared with it (`ratios`). There
the key of the same op at another batch or image size is scaled, if that was measured: a library's choice of a kernel for a layer outlasts a
change of the batch. An op of several threads that was not measured has a multiple of its time on one (`threads`).

The host time to issue a task (`Cost.issue_s`) is the key's own if it was measured, else a median over the profile's keys of the same
family, else of the same op class, else of all keys; for ops that are loops it is counted per launch. It is None if the profile has no issue
times. An op list costs the sum of its ops.

Costs are medians of the samples, because a measured step is the median of steps: whatever slows a CPU for a while slows all tasks of a
step, and the median of such steps is the sum of the medians. (Sums of winsorized means were 7.0 % from the median step of eight models on
one core, sums of medians 5.3 %.) Copies between memories and collectives of a library cost nothing here: links price them. The model also
says how much concurrent tasks slow each other down (`pair_multipliers`).

What PyTorch's own loop adds to a task: modules and autograd's graph in forward, autograd's engine in backward, and the optimizer.

A profile measures it as the difference between the loop and the executor's calls of the same ops, so it may be negative: in backward
autograd issues ops from C++, and the executor from Python. On a GPU it is time of the host, on a CPU of the task itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot

import numpy as np

from simulator.engine.costs import efficiencies, fresh_memory, hooks
from simulator.engine.costs.contention import SMALL, group_of, pair_multipliers, precisions
from simulator.engine.costs.cost import DATASHEET, FITTED, MEASURED, Cost
from simulator.engine.costs.efficiencies import Extents, precision_of
from simulator.engine.costs.fits import ProfileFits
from simulator.engine.costs.ratios import MeasuredRatios
from simulator.engine.costs.relatives import IssueTimes, ThreadRatios
from simulator.engine.costs.site import Sites
from simulator.machine.machine import HostLane, Machine
from simulator.plan.bodies.op_class import time_steps
from simulator.plan.bodies.opcall import CAST
from simulator.plan.keys import keyed
from simulator.plan.plan import Plan
from simulator.plan.task import AGAIN, BACKWARD, COLLECTIVE, FORWARD, Resource, Task
from traces.documents.profile import KeyCost, LoopCosts, Profile

#: Kernels of a time step in cuDNN: a product and the activations, in each direction (Appleyard et al. 2016, "Optimizing Performance of
#: Recurrent Neural Networks on GPUs", section 3).
_STEP_KERNELS = 2


def with_loop(cost: Cost, task: Task, loop: LoopCosts, on_host: bool) -> Cost:
    """The cost of a task in PyTorch's own loop. `on_host`: a host issues the task. A task never takes less than half its own time."""
    added_s = _added_s(task, loop)
    if not on_host:
        return replace(cost, overhead_s=max(added_s, -cost.warm_s / 2))
    return cost if cost.issue_s is None else replace(cost, issue_s=max(cost.issue_s + added_s, cost.issue_s / 2))


def with_assumed_loop(cost: Cost, task: Task, host: HostLane) -> Cost:
    """The cost of a task in PyTorch's own loop on a machine without measurements: each op but updates takes `loop_s` more of the host.

    So, it is assumed, does a hook's call of an optimizer, which is Python like a module. It is no less: on a core of an EPYC with PyTorch
    2.13, a call of Adam's for-loop form takes 12 us in addition to launches of 1.9 us, 6.6 times a launch, where `loop_s` is 3.3 times a
    launch. A cast in forward takes none: autocast makes it within the call of another op, without Python. On that core such a cast takes
    0.5 to 0.7 us, compared with 3.2 to 4.2 us of a linear layer of the same size. Ops that hooks of parallel loops issue take none either:
    the hooks have costs.
    """
    counts = task.body.call == "hook" if task.body.is_update else not (task.body.blocks_host or _is_cast(task) or _in_hook(task))
    if not host.loop_s or not counts:
        return cost
    return replace(
        cost, issue_s=(cost.launches - 1) * host.dispatch_s + _ops(task) * host.loop_s, issue_error=host.errors.get("loop_s", 0.0)
    )


def _is_cast(task: Task) -> bool:
    return (task.phase == FORWARD or AGAIN in task.name) and task.body.kind == "op" and task.body.target == CAST


def _in_hook(task: Task) -> bool:
    """Whether hooks of a parallel loop issue the task."""
    return task.phase == COLLECTIVE


def _added_s(task: Task, loop: LoopCosts) -> float:
    if _in_hook(task):
        return 0.0
    if task.body.is_update:
        return loop.update_s * (task.body.call != "same") + loop.parameter_s * len(task.body.parameters)
    in_backward = task.phase == BACKWARD and AGAIN not in task.name
    return _ops(task) * (loop.backward_s if in_backward else loop.forward_s) + task.view_calls * loop.view_s


def _ops(task: Task) -> int:
    return len(task.body.inner_ops) or 1


def linked(task: Task) -> bool:
    """Whether links determine the task's time."""
    return task.body.resource in (Resource.LINK, Resource.COLLECTIVE)


def measurable(task: Task) -> bool:
    """Whether calibration measures the task's cost."""
    return task.body.resource is Resource.COMPUTE


class CostModel:
    """Costs on one machine.

    `precision`: the one that dense kernels use on float32 operands, `fp32`, `tf32` or `default` (convolutions in TF32, products in fp32).
    On a machine without TF32 all are fp32. None: the profile's.
    `executor`: for the costs of PyTorch's own loop, which adds to every task, those of the executor (`for_pytorch`).
    `sampled`: by key and by the number of a sampling, what a sample is as a multiple of the key's median.

    >>> from simulator.machine.presets import load_machine
    >>> from simulator.plan.bodies.opcall import OpCall
    >>> from simulator.plan.task import Operand
    >>> x, y = (Operand(name, (1024, 1024), (1024, 1), "float32") for name in "xy")
    >>> relu = Task("relu", OpCall("aten.relu.default", flops=2.0**20), "cuda:0", reads=(x,), writes=(y,))
    >>> v100, h100 = (CostModel(load_machine(name)).cost(relu) for name in ("v100", "h100"))
    >>> v100.warm_s > h100.warm_s, h100.source
    (True, 'guessed')
    """

    def __init__(
        self,
        machine: Machine,
        profile: Profile | None = None,
        precision: str | None = None,
        executor: "CostModel | None" = None,
        sampled: Mapping[str, Mapping[int, float]] | None = None,
    ):
        """Without a profile every cost comes from the table."""
        self._executor = executor
        self.sampled = sampled or {}
        self.machine = machine
        self.profile = profile
        self.precision = precision or (profile.identity.precision if profile is not None else "fp32")
        has_tf32 = machine.devices[0].kind == "gpu" and "tf32" in machine.devices[0].peak_flops
        if not has_tf32 and (self.precision == "default" or (self.precision == "tf32" and profile is None)):
            self.precision = "fp32"
        self._costs: dict[tuple[str, str, str], Cost] = {}
        self._equal_to = _first_equal_devices(machine)
        self._sites = Sites(machine.rated or machine)
        self._fits = self._fits_on(profile) if profile is not None else None
        self._ratios = ThreadRatios(profile) if profile is not None else None
        self._issues = IssueTimes(profile)

    @cached_property
    def pair_multipliers(self) -> dict[tuple[str, str], float]:
        """How many times longer a task of one contention group takes while a task of another runs; empty if no interference is measured.

        Devices that are processes of one core each share no interpreter, so for them pairs with the group of short tasks are omitted.
        """
        pairs = pair_multipliers(self.profile) if self.profile is not None else {}
        separate = self.machine.library and all(device.sms == 1 for device in self.machine.devices if device.kind == "cpu")
        return {pair: factor for pair, factor in pairs.items() if not (separate and SMALL in pair)}

    @cached_property
    def whole(self) -> "CostModel":
        """The costs on the machine whose GPU is unsplit."""
        return self if self.machine.whole is None else CostModel(self.machine.whole, self.profile, self.precision)

    @cached_property
    def for_pytorch(self) -> "CostModel":
        """The costs of PyTorch's own loop."""
        return CostModel(self.machine.for_pytorch, self.profile, self.precision, executor=self)

    @cached_property
    def for_parallel_loops(self) -> "CostModel":
        """The costs of PyTorch's own loop with a process on each device, which has fewer threads than plain PyTorch alone."""
        profile = self.profile
        if profile is not None and profile.rank_loop is not None:
            profile = profile.model_copy(update={"loop": profile.rank_loop})
        return CostModel(self.machine.for_parallel_loops, profile, self.precision, executor=self)

    @cached_property
    def by_table(self) -> "CostModel":
        """The costs of the table on the same machine."""
        return self if self.profile is None else CostModel(self.machine, None, self.precision)

    def shown_precision(self, precision: str) -> str:
        """The precision of a job as documents state it: "default" is what it means on this machine, with these costs."""
        return self.precision if precision == "default" else precision

    def co_runs_measured(self, costs: Iterable[Cost]) -> bool:
        """Whether the profile has interference runs in the precisions of these products, which say how much tasks slow each other down."""
        measured = self.profile.contentions if self.profile is not None else {}
        return bool(measured) and precisions(cost.group for cost in costs) <= measured.keys()

    def resolve(self, plan: Plan) -> list[Cost]:
        """One cost per task of `plan.tasks`, in their order."""
        costs = [self._cost(task, key) for task, key in zip(plan.tasks, plan.body_keys, strict=True)]
        loop = self.profile.loop if self.profile is not None else None
        if loop is None or self._executor is None or self.machine.devices[0].kind != "cpu":
            return costs
        return fresh_memory.added(plan, costs, loop.fresh_s_per_byte)

    def cost(self, task: Task) -> Cost:
        """The cost of one task. Tasks with one key on equal devices share one `Cost` object."""
        return self._cost(task, task.body.key(task))

    def _cost(self, task: Task, body_key: str) -> Cost:
        """The cost of a task whose body has this part of its key."""
        key = keyed(body_key, task, self.machine)
        device = self._equal_to.get(task.device, task.device)
        call = task.body.call if task.body.is_update else ""  # measured the same way, but not of one length in PyTorch's own loop
        cost = self._costs.get((device, key, call))
        if cost is None:
            cost = self._costs[device, key, call] = self._price(task, device, key)
        return cost

    @property
    def by_work(self) -> bool:
        """Whether the cost of an op depends on its class, FLOPs and bytes alone: a profile knows ops by their shapes."""
        return self.profile is None

    def work_cold_s(
        self,
        task: Task,
        op_class: str,
        fast: bool,
        flops: np.ndarray,
        moved_bytes: np.ndarray,
        outputs: np.ndarray | None,
        extents: Extents | None,
    ) -> np.ndarray:
        """`Cost.cold_s` of tasks like `task` with other FLOPs, bytes, `efficiencies.outputs` and `efficiencies.extents`, without a profile.

        `fast`: as `efficiencies.fast` says of them.
        """
        site = self._sites.site(task.device)
        precision = precision_of(task, op_class, self.precision)
        row, kernels = efficiencies.row_class(task, op_class, precision, site, fast), task.body.least_kernels(site.kind)
        return efficiencies.cold_s(
            site, row, flops, moved_bytes=moved_bytes, precision=precision, launches=kernels, outputs=outputs, extents=extents
        )

    def missing(self, plan: Plan) -> dict[str, Task]:
        """Keys that the profile has neither measured nor recorded as failures, each with the first task that needs it."""
        recorded = {*self.profile.costs, *self.profile.failures} if self.profile is not None else set()
        return {key: task for key, task in plan.keys(self.machine).items() if key not in recorded and measurable(task)}

    def shares(self, plan: Plan, costs: Sequence[Cost]) -> dict[str, float]:
        """Fractions of the plan's task seconds (cold) that are measured, fitted and guessed; all 0 if no task takes time."""
        seconds = dict.fromkeys((MEASURED, FITTED, DATASHEET), 0.0)
        for task, cost in zip(plan.tasks, costs, strict=True):
            if measurable(task):
                seconds[cost.source] += cost.cold_s
        total = sum(seconds.values())
        return {source: share_s / total if total else 0.0 for source, share_s in seconds.items()}

    def _price(self, task: Task, device: str, key: str) -> Cost:
        """Price a task on a device. `task` may be a step of an OpList, which has no device."""
        body = task.body
        if linked(task):
            op_class = body.work(task).op_class
            issue = self._issues.per_launch(key, op_class)
            cost = Cost(key, 0.0, 0.0, DATASHEET, launches=body.launches, op_class=op_class)
            return replace(cost, issue_s=issue.seconds, issue_error=issue.error)
        if body.on_host:
            return hooks.cost(task, key, self.machine.host(device))
        if body.resource is Resource.HOST:
            return Cost(key, body.duration_s, body.duration_s, MEASURED, launches=0, op_class="host")
        measured = self.profile.costs.get(key) if self.profile is not None else None
        if measured is not None:
            cost = self._measured(task, device, key, measured)
        elif body.inner_ops:
            cost = self._summed(task, device, key)
        else:
            threads = self.machine.device(device).threads
            fitted = self._together(task, key, threads) if threads else self._fitted(task, device, key)
            cost = fitted or self._from_datasheet(task, device, key)
        return self._with_shares(cost, task, device)

    def _fits_on(self, profile: Profile) -> ProfileFits | MeasuredRatios:
        """What prices a task that the profile did not measure: on a CPU laws, on a GPU the table, corrected by measured keys."""
        if self.machine.devices[0].kind == "gpu":
            return MeasuredRatios(self.machine.devices[0].name, self._sites, profile, self.precision)
        return ProfileFits(self.machine, self._sites, profile, self.precision)

    def _fitted(self, task: Task, device: str, key: str) -> Cost | None:
        return self._fits.cost(task, device, key) if self._fits is not None else None

    def _together(self, task: Task, key: str, threads: int) -> Cost | None:
        """The cost of a task on several threads, from its cost on one; None if only the table knows that."""
        if self._ratios is None or self._executor is None:
            return None
        alone, (body, _, share) = self._executor.machine.devices[0], key.rpartition("@")
        one = self._executor._price(task, alone.name, f"{body}@{alone.share_name}")
        if one.source == DATASHEET:
            return None
        ratio = self._ratios.ratio(one.op_class, one.cold_s, share, threads)
        common = one.common and f"{one.op_class}@{share}"
        return Cost(
            key, one.warm_s * ratio.value, one.cold_s * ratio.value, FITTED, spread=one.spread, error=hypot(one.error, ratio.error),
            common=common,
        )  # fmt: skip

    def _measured(self, task: Task, device: str, key: str, measured: KeyCost) -> Cost:
        cold = measured.cold or measured.warm
        grid, blocks = efficiencies.geometry(task, self._sites.site(device))
        if self._kind(device) == "gpu":
            grid, blocks = measured.grid or grid, measured.blocks_per_sm or blocks
        warm_s, cold_s = measured.warm.median_s, cold.median_s
        if warm_s > cold_s:  # the cache makes no difference above the noise, so both are samples of one time
            warm_s = cold_s = (warm_s + cold_s) / 2
        spread = max(measured.warm.spread, cold.spread)
        return Cost(key, warm_s, cold_s, MEASURED, grid, blocks, spread=spread, issue_s=measured.issue_s)

    def _from_datasheet(self, task: Task, device: str, key: str) -> Cost:
        work = task.body.work(task)
        site = self._sites.site(device)
        precision = precision_of(task, work.op_class, self.precision)
        steps = self._library_steps(task, device)
        moved, count = efficiencies.traffic(task), _STEP_KERNELS * steps or task.body.least_kernels(site.kind)
        row = efficiencies.row_class(task, work.op_class, precision, site)
        outputs, extents = efficiencies.outputs(task), efficiencies.extents(task)
        seconds = efficiencies.seconds(site, row, work.flops, moved, precision, count, outputs=outputs, extents=extents)
        grid, blocks = efficiencies.geometry(task, site)
        return Cost(key, seconds.warm, seconds.cold, DATASHEET, grid, blocks, error=seconds.error)

    def _summed(self, task: Task, device: str, key: str) -> Cost:
        """The cost of an op list that was not measured: the sum of its ops. Their errors add up; the weakest source counts."""
        sms = self.machine.device(device).sms
        costs = [self._price(step, device, f"{step.body.key(step)}@{sms}") for step in task.body.inner_ops]
        warm_s, cold_s = sum(c.warm_s for c in costs), sum(c.cold_s for c in costs)
        grid, blocks = max(((c.grid, c.blocks_per_sm) for c in costs), default=(1, 1))
        error = sum(c.cold_s * (c.error or c.spread) for c in costs) / cold_s if cold_s else 0.0
        source = DATASHEET if any(c.source == DATASHEET for c in costs) else FITTED
        issues = [c.issue_s for c in costs if c.issue_s is not None]  # all or none of a profile, since one issue time serves for all
        issue_s, fed_s = sum(issues) if issues else None, sum(c.fed_s for c in costs)
        host = self.machine.host(device) if self.profile is None else None
        if issue_s is not None and host is not None:  # in addition to the calls of recurrent ops, every launch takes `dispatch_s`
            issue_s += (sum(c.launches for c in costs) - 1) * host.dispatch_s
        return Cost(key, warm_s, cold_s, source, grid, blocks, error=error, issue_s=issue_s, fed_s=fed_s)

    def _with_shares(self, cost: Cost, task: Task, device: str) -> Cost:
        """Add the task's contention group and the shares of the device's peak and of its memory's bandwidth that it draws alone.

        On a CPU with measured interference runs the memory share is 0, because the multipliers account for it.
        """
        work = task.body.work(task)
        placed = self.machine.device(device)
        precision = precision_of(task, work.op_class, self.precision)
        peak = efficiencies.figure(placed.peak_flops, precision)
        bandwidth = self.machine.memory(device).bandwidth_bytes_per_s
        if placed.sm is not None:  # kernels that share SMs share their computing units, of which their own code decides what they reach
            peak *= placed.reached * efficiencies.reached(task, work.op_class, precision, self._sites.site(device))
        compute = min(1.0, work.flops / (peak * cost.warm_s)) if cost.warm_s else 0.0
        memory = min(1.0, efficiencies.traffic(task) / (bandwidth * cost.cold_s)) if cost.cold_s else 0.0
        if placed.kind == "cpu" and self.pair_multipliers:
            memory = 0.0
        group = group_of(work.op_class, (cost.warm_s + cost.cold_s) / 2, placed.kind, precision)
        issue_s, issue_error = cost.issue_s, 0.0
        if issue_s is None and (each := self._issues.per_launch(cost.key, work.op_class)).seconds is not None:
            issue_s = each.seconds * min(task.body.loop_length, task.body.launches)  # a loop that is one kernel is issued once
            issue_error = each.error
        priced = replace(
            cost,
            compute_share=compute,
            memory_share=memory,
            launches=self._counted(cost.key) or self._launches(task, device),
            calls=task.body.calls,
            op_class=work.op_class,
            issue_s=issue_s,
            issue_error=issue_error,
            group=group,
        )
        if steps := self._library_steps(task, device):
            priced = self._in_one_call(priced, task, device, steps)
        if self._executor is None or not isinstance(task, Task):  # the loop's time of a list of ops is added to the list
            return priced
        host = self.machine.host(device)
        if self.profile is None:
            return priced if host is None else with_assumed_loop(priced, task, host)
        return priced if self.profile.loop is None else with_loop(priced, task, self.profile.loop, host is not None)

    def _counted(self, key: str) -> int | None:
        """The kernels of a key that the profiler counted: a gap follows each, and each takes a place in a stream's queue."""
        measured = self.profile.costs.get(key) if self.profile is not None else None
        return None if measured is None else measured.kernels

    def _launches(self, task: Task, device: str) -> int:
        """The calls that the host makes one by one: kernels, or a recurrent op as a whole."""
        if task.body.inner_ops:
            return sum(self._launches(step, device) for step in task.body.inner_ops)
        return 1 if self._library_steps(task, device) else task.body.launches

    def _library_steps(self, task: Task, device: str) -> int:
        """The time steps that one call of cuDNN runs; 0 for ops that are not recurrent, on a CPU, and where a profile has their costs."""
        return time_steps(task) if self._kind(device) == "gpu" and not self._knows_recurrent else 0

    @cached_property
    def _knows_recurrent(self) -> bool:
        """Whether the profile has costs of recurrent ops."""
        return self.profile is not None and any(cost.op_class == "recurrent" for cost in self.profile.costs.values())

    def _in_one_call(self, cost: Cost, task: Task, device: str, steps: int) -> Cost:
        """The cost of a recurrent op that one call issues. The kernels of a step run while the host launches those of the next one.

        In table 4 of the BPPSA paper (V100), what a step launches after a recurrent forward never hides behind it, however long that is.
        So the host is as busy as the GPU: the launches determine the time of a step.
        """
        host = self.machine.host(device)
        if host is None:
            return cost
        figure = "backward_step_s" if "_backward" in task.body.op else "forward_step_s"
        issue_s = steps * getattr(host, figure)
        fed_s = min(issue_s, cost.warm_s * (steps - 1) / steps)
        return replace(cost, issue_s=issue_s, issue_error=host.errors.get(figure, 0.0), fed_s=fed_s)

    def _kind(self, device: str) -> str:
        return self.machine.device(device).kind


def _first_equal_devices(machine: Machine) -> dict[str, str]:
    """Device -> the first device that is equal to it except for its name and its memory's name."""
    first: dict[tuple, str] = {}
    equal_to = {}
    for device in machine.devices:
        memory = machine.memory(device.name)
        sharing = sum(other.sms for other in machine.devices if other.memory == device.memory)
        traits = (replace(device, name="", memory=""), replace(memory, name=""), sharing)
        equal_to[device.name] = first.setdefault(traits, device.name)
    return equal_to
