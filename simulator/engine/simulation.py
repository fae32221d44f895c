"""The engine: turns a plan, a machine and the cost of each task alone into a timeline.

Lanes and hosts are SimPy processes (`lanes`, `hosts`), which share SMs and bandwidth (`sms`) and links (`links`). The same input gives the
same timeline to the bit: no clock, random number or hash order enters, and simultaneous events have one order (`clock`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from simulator.engine.capacity import Capacity, sharing_lanes
from simulator.engine.clock import Clock
from simulator.engine.costs.cost import Cost
from simulator.engine.hosts import EagerHost, GraphHost, IssueTimes, Streams, called_s
from simulator.engine.kernels import Pool
from simulator.engine.lanes import Lane
from simulator.engine.links import Links
from simulator.engine.memory.over_time import Steps, memory_over_time, peaks
from simulator.engine.recipes import Recipe, recipes_of
from simulator.engine.repetition import Repetition
from simulator.engine.scenario import EAGER, Scenario
from simulator.engine.sms import Sms
from simulator.engine.steady import FixedIterations, LongRun, SteadyState, long_run
from simulator.engine.summary import critical_path, summarize
from simulator.engine.world import Unrolled, World
from simulator.machine.machine import HostLane, Machine
from simulator.plan.plan import Plan
from traces.documents.timeline import Span, Timeline
from traces.process import gc_paused

#: A long run has this many times the launches that fit into the queue of a stream.
_FILLED = 2


def simulate(
    plan: Plan,
    machine: Machine,
    costs: Sequence[Cost],
    *,
    mode: str = EAGER,
    iterations: int | None = None,
    use_cache: bool = True,
    pair_multipliers: Mapping[tuple[str, str], float] | None = None,
    merge: bool = True,
) -> Timeline:
    """Predict the timeline of `plan` on `machine`.

    `costs`, `mode`, `pair_multipliers`: as in `Scenario`. `iterations=None` repeats the period until it is steady (`steady.SteadyState`),
    and `step_s` is that of the steady state; `iterations=n` runs exactly n iterations with prologue and drain, and `step_s` is the whole
    run divided by n. `use_cache=False`: every task is cold. `merge=False`: every task has separate events (`lanes`), which gives the same
    timeline more slowly.

    Raises ValueError for several plans, costs that do not fit the plan, or a mode that the machine lacks; SchedcastError for a
    device or link that the machine lacks, or a plan that is no graph (`Plan.check_graph`).

    >>> from simulator.machine.machine import Device, Memory
    >>> from simulator.plan.bodies.host import Host
    >>> from simulator.plan.task import Task
    >>> machine = Machine("two cores", (Device("cpu:0", "cpu", 2, {"fp32": 1e11}, "ram"),), (Memory("ram", 2**30, 1e11, 0),))
    >>> train = Task("train", Host(3.0), "cpu:0")
    >>> log = Task("log", Host(2.0), "cpu:0", stream=1, after=("train",))
    >>> costs = [Cost("", seconds, seconds) for seconds in (3.0, 2.0)]
    >>> timeline = simulate(Plan("tiny", (train, log), {}, {}), machine, costs, iterations=2)
    >>> [(span.task, span.start_s, span.end_s) for span in timeline.spans]
    [('train', 0.0, 3.0), ('log', 3.0, 5.0), ('train', 3.0, 6.0), ('log', 6.0, 8.0)]
    """
    if not use_cache:
        costs = [replace(cost, warm_s=cost.cold_s) for cost in costs]
    with gc_paused():
        return Simulation(Scenario(plan, machine, costs, mode, pair_multipliers or {}), iterations, merge).play().timeline()


class Simulation:
    """One simulated run: `Simulation(scenario).play()`, then `step_s`, `alone_s` or `timeline()`.

    `recipes`: how each task runs. `alone_s`: by task, the seconds that it takes while nothing else runs, with the caches as they are in its
    place in the plan. `wall_s`: the wall-clock seconds from derived dependencies and resolved costs to the last event.
    """

    def __init__(self, scenario: Scenario, iterations: int | None = None, merge: bool = True):
        """`iterations`, `merge`: as in `simulate`. Raises what `simulate` raises."""
        scenario.check()
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations is {iterations}; expected at least 1, or None for the steady state")
        self.scenario, self._iterations, self._merge = scenario, iterations, merge
        plan, dependencies, per_window = scenario.plan, scenario.dependencies, scenario.graph_iterations
        begin = time.perf_counter()
        self._env = Clock()
        launched = [not scenario.is_graph and scenario.hosts[task.device] is not None for task in plan.tasks]
        program = Unrolled(dependencies, iterations, launched)
        self._watch: SteadyState | FixedIterations = (
            SteadyState(dependencies.largest_lag, per_window, len(plan.tasks))
            if iterations is None or program.periods is None
            else FixedIterations(iterations, program.periods)
        )
        links = Links(self._env, scenario.machine)
        self.recipes = recipes = recipes_of(scenario, links)
        self.alone_s = tuple(
            recipe.seconds + (links.alone_s(recipe.route, recipe.moved_bytes) if recipe.route is not None else 0.0) for recipe in recipes
        )
        streams: dict[tuple[str, int], list[int]] = {}
        for index, task in enumerate(plan.tasks):
            streams.setdefault(task.lane, []).append(index)
        contended = self._contended(streams, recipes)
        for (device, _), indices in streams.items():
            for index in indices:
                if recipes[index].shape is not None and contended.keys().isdisjoint(recipes[index].on(device)):
                    recipes[index] = recipes[index]._replace(shape=None)
        needed = Capacity(scenario, recipes, links) if iterations is None and len(streams) > 1 else None
        #: What the tasks of a period need of what they share takes this long, so that no steady state is shorter.
        self._least_s = max(needed.needed_s.values()) if needed is not None else 0.0
        self._world = World(self._env, program, links, recipes=recipes, lanes=list(streams.values()), watch=self._watch, merge=merge)
        hosts = self._start(streams, contended)
        if isinstance(self._watch, SteadyState):
            sharing = sharing_lanes(scenario, recipes, streams, contended)
            repetition = Repetition(self._world, list(streams.values()), sharing, hosts, per_window)
            self._watch.exactly, self._watch.nearly = repetition.repeats, repetition.pace
            #: Iterations in which hosts that run ahead of several streams have filled their queues many times.
            self._until_full = max((_FILLED * host.depth // max(1, host.most_launches) for host, fed in hosts if len(fed) > 1), default=0)
        self._long_run: LongRun | None = None
        self.wall_s = time.perf_counter() - begin

    def _contended(self, streams: Streams, recipes: Sequence[Recipe]) -> dict[str, Sms]:
        """By device, the SMs that kernels of several lanes share. A kernel that meets no others takes its solo time and needs no SMs."""
        machine, plan, multipliers = self.scenario.machine, self.scenario.plan, self.scenario.pair_multipliers
        memory_of = {device: machine.device(device).memory for device in plan.devices}
        sharing: dict[str, int] = {}
        for (device, _), indices in streams.items():
            for memory in {memory_of[on] for index in indices for on in recipes[index].on(device) if on in memory_of}:
                sharing[memory] = sharing.get(memory, 0) + 1
        contended: dict[str, Sms] = {}
        for memory, lanes in sharing.items():
            if lanes > 1:
                devices = [device for device in plan.devices if memory_of[device] == memory]
                contended |= dict.fromkeys(devices, Sms(self._env, {device: self._pool(device) for device in devices}, multipliers))
        return contended

    def _pool(self, name: str) -> Pool:
        device = self.scenario.machine.device(name)
        process = name if self.scenario.machine.library else ""  # with a library of collectives, every device is a separate process
        return Pool(device.sms, device.wake_s, device.shared_overhead_s, process) if device.kind == "cpu" else Pool(device.sms)

    def _start(self, streams: Streams, contended: Mapping[str, Sms]) -> list[tuple[EagerHost, list[int]]]:
        """Start the processes. Hosts come first, so that launches of the first instant have arrived when lanes look for them.

        Returns the hosts that issue task by task, and the lanes that each feeds, by number.
        """
        fed: dict[str, tuple[HostLane, dict[tuple[str, int], list[int]]]] = {}
        for stream, indices in streams.items():
            if (lane := self.scenario.hosts[stream[0]]) is not None:
                fed.setdefault(lane.name, (lane, {}))[1][stream] = indices
        numbers = {stream: number for number, stream in enumerate(streams)}
        host_of: dict[tuple[str, int], EagerHost | GraphHost] = {}
        issuing: list[tuple[EagerHost, list[int]]] = []
        for lane, own in fed.values():
            host = self._host(lane, own)
            host_of |= dict.fromkeys(own, host)
            if isinstance(host, GraphHost):
                self._env.process(host.process())
            else:
                host.resume()
                issuing.append((host, [numbers[stream] for stream in own]))
        for stream, indices in streams.items():
            self._env.process(Lane(self._world, stream, indices, contended, host_of.get(stream)).process())
        return issuing

    def _host(self, host: HostLane, streams: Streams) -> EagerHost | GraphHost:
        """The process of a host lane that feeds `streams`."""
        if self.scenario.is_graph:
            return GraphHost(self._world, host, streams)
        tasks, costs = self.scenario.plan.tasks, self.scenario.costs
        issue_s = {index: called_s(host, tasks[index], costs[index]) for indices in streams.values() for index in indices}
        launches = [recipe.launches for recipe in self._world.recipes]
        times = IssueTimes(host, self.scenario.dependencies, launches, issue_s, self._iterations)
        awaited = frozenset(index for index in issue_s if tasks[index].body.blocks_host)
        return EagerHost(self._world, host.queue_depth, streams, times, launches, awaited)

    def play(self) -> "Simulation":
        """Run to the last event. Raises ValueError if the plan deadlocks."""
        begin = time.perf_counter()
        self._env.run_to_end()
        tasks = self.scenario.plan.tasks
        if not self._watch.over:
            stuck = ", ".join(repr(tasks[number % len(tasks)].name) for number in self._world.parked[:8])
            raise ValueError(
                f"plan {self.scenario.plan.strategy!r} cannot go on: {stuck} wait for tasks that are issued later; validate the plan"
            )
        if not self._watch.settled:
            self._long_run = long_run(self._seconds_of, len(tasks), self.scenario.graph_iterations, self._until_full)
        self.wall_s += time.perf_counter() - begin
        return self

    def _seconds_of(self, iterations: int) -> float:
        """Seconds of a run of `iterations` iterations."""
        return Simulation(self.scenario, iterations, self._merge).play().step_s * iterations

    @property
    def step_s(self) -> float:
        """Seconds per iteration. Known after `play`."""
        return self._watch.step_s if self._long_run is None else max(self._least_s, self._long_run.step_s)

    @property
    def settled(self) -> bool:
        """Whether `step_s` is known to be that of the steady state: the schedule repeats itself, or longer runs give the same."""
        return self._long_run is None or self._long_run.agrees

    @property
    def memory(self) -> dict[str, Steps]:
        """The `memory` of the timeline."""
        return memory_over_time(self.scenario.plan, self._spans, self.scenario.scratch)

    def timeline(self) -> Timeline:
        """The spans in order of (start, issue), and the summary of the steady window."""
        plan, watch, world, spans = self.scenario.plan, self._watch, self._world, self._spans
        window_s, memory = watch.window_s, self.memory
        summary = summarize(plan, spans, window_s, watch.steps, peaks(memory))
        hosts = [host.name for task in plan.tasks if (host := self.scenario.hosts[task.device]) is not None]
        named = hosts if len(hosts) == len(plan.tasks) else None
        last = _last_ended(world, len(watch.makespans), watch.makespans[-1])
        begin_s = window_s[0] or -inf  # from 0 s on: tasks of 0 s too
        return Timeline(
            kind="predicted",
            spans=spans,
            step_s=self.step_s,
            window_s=window_s,
            mode=self.scenario.mode,
            devices=summary.devices,
            critical_path=critical_path(world, self.scenario.dependencies, last, begin_s, named),
            memory=memory,
            bubble_share=summary.bubble_share,
            exposed_transfer_s=summary.exposed_transfer_s,
            settled=self.settled,
            period_lengths_s=tuple(watch.lengths_s),
        )

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        world, tasks = self._world, self.scenario.plan.tasks
        start_s, end_s = world.start_s, world.end_s
        fixed = [(t.name, t.device, f"stream {t.stream}", t.phase, t.layer, t.microbatch, t.lag, t.action) for t in tasks]
        spans, size = [], len(tasks)
        for number in world.ran():
            name, device, lane, phase, layer, microbatch, lag, action = fixed[number % size]
            period = number // size
            spans.append(Span(name, device, lane, start_s[number], end_s[number], phase, layer, microbatch, period - lag, period, action))
        return tuple(spans)


def _last_ended(world: World, periods: int, end_s: float) -> int:
    """The execution of the first `periods` periods that ended at `end_s`."""
    return max(number for number in range(periods * world.program.size) if world.end_s[number] == end_s)
