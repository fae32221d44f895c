"""The engine: a plan, a machine and what each task costs alone become a timeline.

Lanes are SimPy processes (`lanes`, `hosts`), which share SMs and bandwidth (`sms`) and links (`links`). The same input gives the same
timeline to the bit: no clock, no random number and no hash order enters, and simultaneous events have one order (`clock`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from simpy import Environment

from simulator.costs.cost import Cost
from simulator.engine.cache import resident_shares
from simulator.engine.critical_path import critical_path
from simulator.engine.hosts import EagerHost, GraphHost, IssueTimes, recorded_tasks
from simulator.engine.lanes import Lane, Recipe, World
from simulator.engine.links import ALIAS_ROUTE, Links
from simulator.engine.sms import Pool, Sms, shape_of
from simulator.engine.steady import Rounds, Whole
from simulator.engine.summary import summarise
from simulator.engine.unroll import Unrolled
from simulator.machine.machine import Device, Machine
from simulator.memory.over_time import memory_over_time, peaks
from simulator.plan.dependencies import Dependencies
from simulator.plan.plan import Plan
from simulator.plan.task import Resource, Task
from traces.garbage import gc_paused
from traces.timeline import Span, Timeline

EAGER, GRAPH = "eager", "graph"


def simulate(
    plan: Plan,
    machine: Machine,
    costs: Sequence[Cost],
    *,
    mode: str = EAGER,
    iterations: int | None = None,
    dependencies: Dependencies | None = None,
    use_cache: bool = True,
    pair_multipliers: Mapping[tuple[str, str], float] | None = None,
) -> Timeline:
    """Predict the timeline of `plan` on `machine`.

    `costs`: one per task of `plan.tasks`. `mode`: "eager" (the host issues task by task) or "graph" (one launch per
    `HostLane.graph_iterations` iterations). `iterations=None` repeats the period until it has settled (`steady.Rounds`), and `step_s` is
    that of the steady state; `iterations=n` runs exactly n with prologue and drain, and `step_s` is the whole run divided by n.
    `dependencies`: those of this plan, if derived before. `use_cache=False`: everything is cold. `pair_multipliers`: slow-down of a task
    of one group or op class (first) while one of another (second) runs on the same memory; 1 where absent.

    Raises ValueError for a plan of several segments, costs that do not fit it, or a mode the machine lacks; StepcastError for a device
    or link that the machine lacks.
    """
    return _run(plan, machine, costs, mode, iterations, dependencies, use_cache, pair_multipliers)[0]


def timed_simulation(
    plan: Plan,
    machine: Machine,
    costs: Sequence[Cost],
    mode: str,
    dependencies: Dependencies,
    pair_multipliers: Mapping[tuple[str, str], float] | None = None,
) -> tuple[Timeline, float]:
    """The steady state as `simulate` gives it, and the seconds from derived dependencies and resolved costs to the last event."""
    return _run(plan, machine, costs, mode, None, dependencies, True, pair_multipliers)


def _run(plan, machine, costs, mode, iterations, dependencies, use_cache, pair_multipliers) -> tuple[Timeline, float]:
    _check(plan, machine, costs, mode, iterations)
    dependencies = dependencies or Dependencies(plan)
    with gc_paused():
        begin = time.perf_counter()
        simulation = Simulation(plan, machine, costs, mode, iterations, dependencies, use_cache, pair_multipliers)
        simulation.play()
        wall_s = time.perf_counter() - begin
        return simulation.timeline(), wall_s


def _check(plan: Plan, machine: Machine, costs: Sequence[Cost], mode: str, iterations: int | None) -> None:
    if len(plan.segments) != 1:
        raise ValueError(f"plan {plan.strategy!r} has {len(plan.segments)} segments; the engine takes one: simulate each by itself")
    if not plan.tasks:
        raise ValueError(f"plan {plan.strategy!r} has no tasks; expected at least one")
    if len(costs) != len(plan.tasks):
        raise ValueError(f"got {len(costs)} costs for {len(plan.tasks)} tasks; expected one per task, in issue order")
    for task, cost in zip(plan.tasks, costs, strict=True):
        if not (0.0 <= cost.warm_s < inf and 0.0 <= cost.cold_s < inf):
            raise ValueError(f"task {task.name!r} costs {cost.warm_s} s warm, {cost.cold_s} s cold; expected finite numbers of at least 0")
    if mode not in (EAGER, GRAPH):
        raise ValueError(f"unknown mode {mode!r}; expected {EAGER!r} or {GRAPH!r}")
    hosts = {machine.host(device) for device in plan.devices}
    if mode == GRAPH and None in hosts:
        lacking = next(device for device in plan.devices if machine.host(device) is None)
        raise ValueError(f"mode 'graph' needs CUDA devices; {lacking} of {machine.name} has no host lane that launches graphs")
    if mode == GRAPH and len({host.graph_iterations for host in hosts}) > 1:
        raise ValueError(f"the host lanes of {machine.name} differ in graph_iterations; expected one value")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations is {iterations}; expected at least 1, or None for the steady state")


class Simulation:
    """One simulated run of a plan. `play` it, then ask for its `timeline`."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        costs: Sequence[Cost],
        mode: str,
        iterations: int | None,
        dependencies: Dependencies,
        use_cache: bool,
        pair_multipliers: Mapping[tuple[str, str], float] | None,
    ):
        """Arguments as in `simulate`."""
        self.plan, self.machine, self.mode, self.dependencies = plan, machine, mode, dependencies
        tasks = plan.tasks
        self._hosts = {device: machine.host(device) for device in plan.devices}
        tokens = [int(mode == EAGER and self._hosts[task.device] is not None) for task in tasks]
        run = Unrolled(dependencies, iterations, tokens)
        per_round = next(iter(self._hosts.values())).graph_iterations if mode == GRAPH else 1
        self.rounds = Rounds(dependencies.largest_lag, per_round) if iterations is None else Whole(iterations, run.periods)
        self._env = Environment()
        links = Links(self._env, machine)
        recipes = self._recipes(costs, use_cache, links)
        self.world = World(self._env, run, links, recipes, self.rounds.horizon, self._period_ended)
        lanes = self._lanes(recipes, pair_multipliers)
        self._start(lanes, costs, iterations)

    def _recipes(self, costs: Sequence[Cost], use_cache: bool, links: Links) -> list[Recipe]:
        plan, machine = self.plan, self.machine
        uneven = use_cache and any(cost.warm_s != cost.cold_s for cost in costs)
        shares = resident_shares(plan, machine) if uneven else [0.0] * len(costs)
        waits = self.dependencies.waits(self.dependencies.steady)
        found = []
        for task, cost, share, awaited in zip(plan.tasks, costs, shares, waits, strict=True):
            device, body = machine.device(task.device), task.body
            saturation = machine.memory(task.device).saturation_share
            overhead = self._overhead_s(device)
            on_core = device.kind == "cpu"
            shape = shape_of(replace(cost, grid=1, blocks_per_sm=1) if on_core else cost, device.sms, saturation)
            seconds = cost.cold_s - (cost.cold_s - cost.warm_s) * share + overhead
            core = shape._replace(held=True) if on_core else None  # a worker moves the bytes
            if body.resource is Resource.COLLECTIVE:
                found.append(Recipe(overhead, task.priority, None, *links.collective(body, body.payload_bytes(task))))
            elif body.resource is Resource.COMPUTE and body.ends is not None:
                wire = links.stated(*body.ends)
                found.append(Recipe(seconds, task.priority, shape if seconds else None, wire, float(body.moved_bytes(task))))
            elif body.resource is Resource.LINK and body.ends[0] != body.ends[1]:
                route = ALIAS_ROUTE if body.aliases else links.route(*body.ends)
                crossed = self.mode == GRAPH and route.alias and bool(awaited)
                found.append(Recipe(overhead, task.priority, core, route, float(body.moved_bytes(task)), crossed))
            elif body.resource is Resource.HOST:
                lane = self._hosts[task.device]
                seconds = body.duration_s + (overhead if lane is None else lane.callback_s)
                found.append(Recipe(seconds, task.priority, shape if core and seconds else None))
            else:
                found.append(Recipe(seconds, task.priority, shape if seconds else None))
        return found

    def _overhead_s(self, device: Device) -> float:
        """Executor seconds per task: none on a device with a host lane."""
        return 0.0 if self._hosts[device.name] is not None else device.task_overhead_s

    def _lanes(self, recipes: list[Recipe], pair_multipliers: Mapping[tuple[str, str], float] | None) -> list[Lane]:
        """A lane per stream. Lanes whose kernels meet no others' need no SMs: alone a kernel takes its solo time."""
        tasks: dict[tuple[str, int], list[int]] = {}
        for index, task in enumerate(self.plan.tasks):
            tasks.setdefault(task.lane, []).append(index)
        memory_of = {device: self.machine.device(device).memory for device in self.plan.devices}
        sharing: dict[str, list[tuple[str, int]]] = {}
        for lane, indices in tasks.items():
            if any(recipes[index].shape is not None for index in indices):
                sharing.setdefault(memory_of[lane[0]], []).append(lane)
        contended = {}
        for memory, lanes in sharing.items():
            if len(lanes) > 1:
                pools = {device: self._pool(device) for device in self.plan.devices if memory_of[device] == memory}
                contended[memory] = Sms(self._env, pools, pair_multipliers)
        for lane, indices in tasks.items():
            if memory_of[lane[0]] not in contended:
                for index in indices:
                    recipes[index].shape = None
        return [Lane(self.world, lane, indices, contended.get(memory_of[lane[0]])) for lane, indices in tasks.items()]

    def _pool(self, name: str) -> Pool:
        device = self.machine.device(name)
        process = name if self.machine.library else ""  # a library joins processes of one device each
        return Pool(device.sms, device.wake_s, device.shared_overhead_s, process) if device.kind == "cpu" else Pool(device.sms)

    def _start(self, lanes: list[Lane], costs: Sequence[Cost], iterations: int | None) -> None:
        """Hosts first: launches of the first instant are there when lanes look for them."""
        fed: dict[str, list[Lane]] = {}
        hosts = {host.name: host for host in self._hosts.values() if host is not None}
        for lane in lanes:
            if self._hosts[lane.name[0]] is not None:
                fed.setdefault(self._hosts[lane.name[0]].name, []).append(lane)
        launches = [_launches(*each) for each in zip(self.plan.tasks, costs, self.world.recipes, strict=True)]
        recorded = recorded_tasks(self.dependencies)
        for name, streams in fed.items():
            host = hosts[name]
            if self.mode == GRAPH:
                process = GraphHost(self.world, host, streams).process()
            else:
                calls = {index: self.plan.tasks[index].body.resource is Resource.HOST for stream in streams for index in stream.tasks}
                issue_s = {index: host.call_s if call else costs[index].issue_s for index, call in calls.items()}
                times = IssueTimes(host, self.dependencies, launches, issue_s, recorded, iterations)
                process = EagerHost(self.world, host.queue_depth, streams, times, launches).process()
            self._env.process(process)
        for lane in lanes:
            self._env.process(lane.process())

    def _period_ended(self, now_s: float) -> None:
        self.world.stopping = self.rounds.watch(self.world.run, now_s)

    def play(self) -> None:
        """Run to the last event. Raises ValueError where the plan cannot go on."""
        self._env.run()
        if not self.rounds.over:
            stuck = ", ".join(repr(self.plan.tasks[number % len(self.plan.tasks)].name) for number in sorted(self.world.parked)[:8])
            raise ValueError(f"plan {self.plan.strategy!r} cannot go on: {stuck} wait for tasks that are issued later; validate the plan")

    def timeline(self) -> Timeline:
        """Spans in order of (start, issue), and what the steady window says."""
        run, plan, rounds = self.world.run, self.plan, self.rounds
        size, tasks = run.size, plan.tasks
        ended = [number for number, end in enumerate(run.end_s) if end == end]
        last = _last_ended(run, len(rounds.makespans), rounds.makespans[-1])
        start_s = run.start_s
        ended.sort(key=lambda number: (start_s[number], number))
        fixed = [(t.name, t.device, f"stream {t.stream}", t.phase, t.layer, t.micro_batch, t.lag) for t in tasks]
        spans = []
        for number in ended:
            period, index = divmod(number, size)
            name, device, lane, phase, layer, micro_batch, lag = fixed[index]
            spans.append(Span(name, device, lane, start_s[number], run.end_s[number], phase, layer, micro_batch, period - lag, period))
        spans = tuple(spans)
        window_s = rounds.window_s
        memory = memory_over_time(plan, spans)
        summary = summarise(plan, spans, window_s, rounds.steps, peaks(memory))
        hosts = None if None in self._hosts.values() else [self._hosts[task.device].name for task in tasks]
        return Timeline(
            kind="predicted",
            spans=spans,
            step_s=rounds.step_s,
            window_s=window_s,
            mode=self.mode,
            devices=summary.devices,
            critical_path=critical_path(run, self.dependencies, last, window_s[0] or -inf, hosts),  # from the very start: tasks of 0 s too
            memory=memory,
            bubble_share=summary.bubble_share,
            exposed_transfer_s=summary.exposed_transfer_s,
            settled=rounds.settled,
            period_lengths_s=tuple(rounds.lengths_s),
        )


def _launches(task: Task, cost: Cost, recipe: Recipe) -> int:
    if recipe.route is not None and recipe.route.alias:
        return 0  # an event, and no copy
    return 1 if task.body.resource is Resource.HOST else cost.launches  # a call, which takes a place in the stream's queue


def _last_ended(run: Unrolled, periods: int, end_s: float) -> int:
    """The execution of the first `periods` periods that ended at `end_s`."""
    return max(number for number in range(periods * run.size) if run.end_s[number] == end_s)
