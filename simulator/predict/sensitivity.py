"""What a predicted step time depends on: seconds by source of error, on the critical path and on every other lane.

A *source* is a number that may be wrong, with one standard deviation of its logarithm. All seconds of one source are too long or too short
together:

- a measured cost, or one fitted to its own relative: its key;
- another fitted cost: its op class, because a fit that is wrong about one layer is wrong about the others; they share their draws, each
  with its own deviation (`intervals.TOGETHER`);
- a cost from the table of efficiencies: its op class and the number that dominates it (compute, memory or least time, which differ in
  their error), because that number is too optimistic or too pessimistic for the whole class;
- what the host does: dispatching, recording and awaiting events, launching graphs, calling back, and issue times that are not a key's own.
  Those that are assumed of a host, rather than learned of an op class, are one number for all classes;
- a CPU's overhead per task, and the time to wake a worker;
- how much fresh memory a step of plain PyTorch obtains from the system;
- latencies and bandwidths of links, on which collectives run too;
- the slow-down of concurrent tasks, if no interference runs were measured in the precision of the plan's products.

A *chain* is the work that must follow one another within a step: the critical path, what each stream executes, what each host issues. The
step takes as long as the longest chain. If errors change which one that is, the step follows.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simulator.engine.costs.cost import DATASHEET, Cost
from simulator.engine.costs.model import linked
from simulator.engine.hosts import IssueTimes, called_s
from simulator.engine.routes import Route
from simulator.engine.simulation import Simulation
from simulator.machine.machine import HostLane
from simulator.plan.task import Resource
from simulator.predict.intervals import EXACT, TOGETHER, Sensitivity, clipped_seconds, relative_deviation
from traces.documents.timeline import Timeline

#: The error of the slow-down of concurrent tasks if no interference runs were measured: a factor of two either way.
UNMEASURED_SLOW_DOWN = 0.7
#: The parts of a host's time that are figures of its lane.
_HOST_FIGURES = ("dispatch_s", "record_s", "wait_s", "switch_s")

#: Seconds by source.
Parts = dict[str, float]


def sensitivity(simulation: Simulation, timeline: Timeline, co_runs: bool = False, issued: frozenset[str] | None = None) -> Sensitivity:
    """Return the sources of a predicted timeline's step time and its chains. `co_runs`: whether slow-downs were measured.

    `issued`: the tasks that hosts issue in that time; None for all of a period.
    """
    return _Attribution(simulation, timeline, co_runs, issued).sensitivity()


def issued_seconds(simulation: Simulation, timeline: Timeline) -> list[dict[str, float]]:
    """What each host that issues tasks one by one spends on each of them, by name, in a steady period."""
    return [] if simulation.scenario.is_graph else [issues.seconds for issues in _Attribution(simulation, timeline).issues.values()]


@dataclass
class _Attribution:
    """Attributes spans of one timeline to sources, and collects the sources' deviations."""

    simulation: Simulation
    timeline: Timeline
    co_runs: bool = False
    issued: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.deviations: dict[str, float] = {}
        self.scenario = scenario = self.simulation.scenario
        self._machine = scenario.machine
        own = zip(scenario.plan.tasks, scenario.costs, self.simulation.recipes, strict=True)
        self._tasks = {task.name: (task, cost, recipe) for task, cost, recipe in own}
        self.issues = {host.name: _Issues(host, self) for host in self.scenario.hosts.values() if host is not None}

    def sensitivity(self) -> Sensitivity:
        """The critical path first, then streams and hosts."""
        beside = self._streams()
        if not self.scenario.is_graph:
            beside += [issues.period(self.issued) for issues in self.issues.values()]
        chains = [self._path(), *(self._within_step(chain) for chain in beside)]
        used = {source for chain in chains for source in chain}
        deviations = {source: deviation for source, deviation in self.deviations.items() if source in used}
        return Sensitivity(self.timeline.step_s, tuple(chain for chain in chains if chain), deviations)

    def _within_step(self, chain: Parts) -> Parts:
        """The chain, shortened to the step if it is longer: the work of a stream that runs ahead may differ from step to step."""
        total_s = sum(chain.values())
        scale = min(1.0, self.timeline.step_s / total_s) if total_s else 1.0
        return {source: seconds * scale for source, seconds in chain.items()}

    def _path(self) -> Parts:
        """The critical path, per step. Time between its spans is a gap between graph nodes, or the waking of a worker."""
        total: Parts = defaultdict(float)
        path, covered_s = self.timeline.critical_path, 0.0
        for position, span in enumerate(path):
            length_s = clipped_seconds(span, self.timeline.window_s)
            covered_s += length_s
            if span.task in self._tasks:
                _add(total, self.parts(span.task, length_s))
            elif span.task in self.issues and position + 1 < len(path):
                _add(total, self.issues[span.task].before(path[position + 1].task, length_s))
            else:
                total[EXACT] += length_s
        start, end = self.timeline.window_s
        if path and end - start > covered_s:
            total[self._gap()] += end - start - covered_s
        scale = self.timeline.step_s / (end - start) if end > start else 0.0
        return {source: seconds * scale for source, seconds in total.items()}

    def _gap(self) -> str:
        device = self._machine.device(self.scenario.plan.devices[0])
        host = self.scenario.hosts[device.name]
        if host is None:
            return self.source("wake_s", device.errors.get("wake_s", 0.0))
        return self.source("node_gap_s", max(host.errors.get(name, 0.0) for name in ("node_gap_s", "cross_gap_s")))

    def _streams(self) -> list[Parts]:
        """What each stream executes per step: every task once, for as long as it took last. A stream may run ahead of the window."""
        latest = {span.task: span for span in self.timeline.spans if span.start_s < self.timeline.window_s[1]}
        lanes: dict[tuple[str, str], Parts] = {}
        for span in latest.values():
            _add(lanes.setdefault((span.device, span.lane), defaultdict(float)), self.parts(span.task, span.end_s - span.start_s))
        return list(lanes.values())

    def source(self, name: str, deviation: float) -> str:
        """The source called `name`; EXACT without a deviation."""
        if not deviation:
            return EXACT
        self.deviations[name] = deviation
        return name

    def parts(self, name: str, length_s: float) -> Iterator[tuple[str, float]]:
        """Yield (source, seconds) of `length_s` seconds of a task."""
        task, cost, recipe = self._tasks[name]
        device, host = self._machine.device(task.device), self.scenario.hosts[task.device]
        overhead_s = cost.overhead_s + (device.task_overhead_s if host is None else 0.0)
        overhead = self.source("task_overhead_s", device.errors.get("task_overhead_s", 0.0))
        resource = task.body.resource
        if linked(task) and (route := recipe.route) is not None and not route.alias:
            overhead_s = min(overhead_s, length_s)
            yield overhead, overhead_s
            yield from self._transfer(route, length_s - overhead_s)
        elif task.body.on_host:
            yield self._cost_source(cost), length_s
        elif resource is Resource.HOST:
            waiting_s = min(length_s, overhead_s if host is None else host.callback_s)
            yield (overhead if host is None else self.source("callback_s", host.errors.get("callback_s", 0.0))), waiting_s
            yield EXACT, length_s - waiting_s
        elif resource is Resource.COMPUTE:
            alone_s = cost.cold_s + overhead_s
            own_s = length_s if self.co_runs or not cost.group else min(length_s, alone_s)
            fixed_s, fresh_s = (own_s * part_s / alone_s if alone_s else 0.0 for part_s in (overhead_s, cost.fresh_s))
            yield overhead, fixed_s - fresh_s
            yield self.source(f"fresh memory{TOGETHER}{cost.fresh_error:.2g}", cost.fresh_error), fresh_s
            yield self._cost_source(cost), own_s - fixed_s
            yield self.source("slow-down", UNMEASURED_SLOW_DOWN), length_s - own_s
        else:
            yield overhead, length_s

    def _cost_source(self, cost: Cost) -> str:
        deviation = relative_deviation(cost)
        if cost.common:
            return self.source(f"{cost.common}{TOGETHER}{deviation:.2g}", deviation)
        name = f"{cost.op_class} {deviation:g}" if cost.source == DATASHEET and cost.op_class else cost.key
        return self.source(name, deviation)

    @cached_property
    def indices(self) -> dict[str, list[int]]:
        """The tasks of each device."""
        indices = defaultdict(list)
        for index, task in enumerate(self.scenario.plan.tasks):
            indices[task.device].append(index)
        return indices

    def _transfer(self, route: Route, length_s: float) -> Iterator[tuple[str, float]]:
        """The errors of links with equal deviations are perfectly correlated."""
        latency_s = min(route.latency_s, length_s)
        yield self.source(f"link latency {route.latency_error:g}", route.latency_error), latency_s
        yield self.source(f"link bandwidth {route.bandwidth_error:g}", route.bandwidth_error), length_s - latency_s


class _Issues:
    """The time of one host, by source: of each task that it issues, in order."""

    def __init__(self, host: HostLane, of: _Attribution):
        """Split what `engine.hosts` says of each task: it is linear in the host's figures and in the tasks' issue times."""
        plan, costs, dependencies = of.scenario.plan, of.scenario.costs, of.scenario.dependencies
        launches = [recipe.launches for recipe in of.simulation.recipes]
        self._graph, self._of = of.scenario.is_graph, of
        self._indices = sorted(index for device in host.devices for index in of.indices.get(device, ()))
        self._position = {plan.tasks[index].name: position for position, index in enumerate(self._indices)}
        self._graph_source = of.source("graph_launch_s", host.errors.get("graph_launch_s", 0.0))
        issue_s = {i: called_s(host, plan.tasks[i], costs[i]) for i in self._indices}
        known = {index: None if seconds is None else 0.0 for index, seconds in issue_s.items()}

        def times(lane: HostLane, issue: Mapping[int, float | None]) -> dict[int, float]:
            return IssueTimes(lane, dependencies, launches, issue, None).in_period(dependencies.steady)

        zeros: dict[str, Any] = dict.fromkeys(_HOST_FIGURES, 0.0)
        nothing = replace(host, **zeros)
        self._parts: dict[int, Parts] = {index: defaultdict(float) for index in self._indices}
        for figure in _HOST_FIGURES:
            source = of.source(figure, host.errors.get(figure, 0.0))
            for index, seconds in times(replace(nothing, **{figure: getattr(host, figure)}), known).items():
                self._parts[index][source] += seconds
        for index, seconds in times(nothing, issue_s).items():
            cost = costs[index]
            assumed = cost.source == DATASHEET and cost.issue_error == host.errors.get("loop_s")
            name = "loop_s" if assumed else f"issue {cost.op_class} {cost.issue_error:g}"
            self._parts[index][of.source(name, cost.issue_error)] += seconds

    @property
    def seconds(self) -> dict[str, float]:
        """What the host spends on each task, by name."""
        return {task: sum(self._parts[self._indices[position]].values()) for task, position in self._position.items()}

    def period(self, issued: frozenset[str] | None = None) -> Parts:
        """The host's time in one period, or for some of its tasks."""
        total: Parts = defaultdict(float)
        for task, position in self._position.items():
            if issued is None or task in issued:
                _add(total, self._parts[self._indices[position]].items())
        return total

    def before(self, task: str, length_s: float) -> Iterator[tuple[str, float]]:
        """Yield (source, seconds) of the `length_s` seconds of issuing that end with the launch of a task; period after period.

        If some tasks are issued alone, again and again, it is their mix.
        """
        if self._of.issued is not None and not self._graph:
            mix = self.period(self._of.issued)
            total_s = sum(mix.values())
            yield from ((source, length_s * seconds / total_s) for source, seconds in mix.items() if total_s)
            return
        whole_period = self.period()
        period_s = sum(whole_period.values())
        if self._graph or not period_s or task not in self._position:
            yield self._graph_source if self._graph else EXACT, length_s
            return
        whole, left_s = divmod(length_s, period_s)
        yield from ((source, whole * seconds) for source, seconds in whole_period.items())
        position = self._position[task]
        while left_s > 1e-12 * period_s:
            parts = self._parts[self._indices[position]]
            issue_s = sum(parts.values())
            taken_s = min(left_s, issue_s)
            if taken_s:
                yield from ((source, seconds * taken_s / issue_s) for source, seconds in parts.items())
            left_s -= taken_s
            position = (position - 1) % len(self._indices)


def _add(total: Parts, parts: Iterable[tuple[str, float]]) -> None:
    for source, seconds in parts:
        if seconds:
            total[source] += seconds
