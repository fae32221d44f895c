"""A lower bound of a plan's step time, cheaper than its forecast: no steady state that the engine simulates is shorter.

In the steady state no step is shorter than any of these:

- *dependencies*: a cycle of tasks, each of which waits for the one before it (along a dependency, or on its serial stream), divided by the
  number of periods that it spans. Every task takes its time alone. This is the critical path on a machine whose SMs, memories and
  links are never shared; the work of each stream is one such cycle.
- *compute*: what the kernels on a device need of its SMs, divided by their number;
- *memory bandwidth*: what all kernels on a memory draw of its bandwidth;
- *links*: the time for which transfers hold one direction of a link, and the bytes on a channel divided by its bandwidth;
- *host*: what the host spends on issuing one period's tasks.

Concurrent tasks are slower than alone, never faster, except with fitted multipliers below 1; then every kernel counts with the smallest
time that they allow.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.capacity import STREAMS, Capacity, least_shares
from simulator.engine.clock import Clock
from simulator.engine.hosts import IssueTimes, called_s
from simulator.engine.links import Links
from simulator.engine.recipes import Recipe, recipes_of
from simulator.engine.scenario import Scenario
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import Resource

DEPENDENCIES, HOST = "dependencies", "host"
#: Periods in which the longest cycle is sought, in addition to those that dependencies span.
_PERIODS = 5


@dataclass(frozen=True)
class Bound:
    """No step is shorter than `step_s` seconds, because of `by`: the largest of the module's bounds."""

    step_s: float
    by: str


def lower_bound(scenario: Scenario) -> Bound:
    """Return the bound of a plan."""
    links = Links(Clock(), scenario.machine)
    recipes = recipes_of(scenario, links)
    shared = Capacity(scenario, recipes, links)
    needed_s = shared.needed_s
    bounds = {
        DEPENDENCIES: max(needed_s.pop(STREAMS), _longest_cycle(scenario.dependencies, shared.least_s)),
        **needed_s,
        HOST: 0.0 if scenario.is_graph else _host(scenario, recipes),
    }
    by = max(bounds, key=bounds.__getitem__)
    return Bound(bounds[by], by)


def work_bound(scenario: Scenario) -> Bound:
    """Return a smaller bound, which needs no dependencies: the time of the longest stream's own tasks with warm caches."""
    work_s: dict[tuple[str, int], float] = defaultdict(float)
    plan = scenario.plan
    for task, runs, seconds in zip(plan.tasks, plan.runs, least_compute_s(scenario), strict=True):
        work_s[task.lane] += runs * seconds
    return Bound(max(work_s.values(), default=0.0), DEPENDENCIES)


def least_compute_s(scenario: Scenario) -> list[float]:
    """By task, the least seconds that it takes with warm caches, whatever runs concurrently; 0 for tasks that compute nothing."""
    plan, machine = scenario.plan, scenario.machine
    lanes: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for task in plan.tasks:
        lanes[machine.device(task.device).memory].add(task.lane)
    least = least_shares(scenario, lanes)
    least_s = []
    for task, cost in zip(plan.tasks, scenario.costs, strict=True):
        host = machine.host(task.device)
        gap_s = 0.0 if host is None else min(0.0, host.launch_gap_s) * cost.launches - cost.fed_s
        seconds = max(0.0, min(cost.warm_s, cost.cold_s) + gap_s) * least[machine.device(task.device).memory]
        least_s.append(seconds if task.body.resource is Resource.COMPUTE else 0.0)
    return least_s


def together(bounds: Sequence[tuple[int, Bound]]) -> Bound:
    """The bound of a run that follows several plans, from their iterations and bounds; the time to drain them is extra."""
    iterations = sum(count for count, _ in bounds)
    longest = max(bounds, key=lambda own: own[0] * own[1].step_s)[1]
    return Bound(sum(count * bound.step_s for count, bound in bounds) / iterations, longest.by)


def _longest_cycle(dependencies: Dependencies, alone_s: Sequence[float]) -> float:
    """The most seconds per period of a cycle of waiting tasks.

    Periods follow one another with nothing but these waits. On the chain of waits that ends last, a task that occurs again closes a cycle.
    """
    row = dependencies.waits(dependencies.steady)
    size, reach = len(dependencies.tasks), max((edge.delta for edges in row for edge in edges), default=0)
    lane_last: dict[tuple[str, int], int] = {}
    end_s = [0.0] * (size * (reach + _PERIODS))
    before = [-1] * len(end_s)
    lanes = [task.lane for task in dependencies.tasks]
    number = 0
    for period in range(reach + _PERIODS):
        for lane, edges, seconds in zip(lanes, row, alone_s, strict=True):
            start, latest = 0.0, lane_last.get(lane, -1)
            if latest >= 0:
                start = end_s[latest]
            for edge in edges:
                earlier = (period - edge.delta) * size + edge.index
                if earlier >= 0 and end_s[earlier] > start:
                    start, latest = end_s[earlier], earlier
            end_s[number], before[number], lane_last[lane] = start + seconds, latest, number
            number += 1
    longest = 0.0
    seen: dict[int, int] = {}
    number = max(range(len(end_s)), key=end_s.__getitem__, default=-1)
    while number >= 0:
        later = seen.get(number % size)
        if later is not None:
            longest = max(longest, (end_s[later] - end_s[number]) / (later // size - number // size))
        seen[number % size] = number
        number = before[number]
    return longest


def _host(scenario: Scenario, recipes: Sequence[Recipe]) -> float:
    costs, dependencies, launches = scenario.costs, scenario.dependencies, [recipe.launches for recipe in recipes]
    longest = 0.0
    for host in {host.name: host for host in scenario.hosts.values() if host is not None}.values():
        issue_s = {
            index: called_s(host, task, costs[index]) for index, task in enumerate(scenario.plan.tasks) if task.device in host.devices
        }
        times = IssueTimes(host, dependencies, launches, issue_s, None).in_period(dependencies.steady)
        longest = max(longest, sum(times.values()))
    return longest
