"""How long the tasks of one period occupy shared resources: streams, SMs, memory bandwidth and links. No steady step is shorter.

- *streams*: what the tasks of a serial stream take one after another;
- *compute*: what the kernels on a device need of its SMs, divided by their number;
- *memory bandwidth*: what all kernels on a memory draw of its bandwidth;
- *links*: the time for which transfers hold one direction of a link, and the bytes on a channel divided by its bandwidth.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property

from simulator.engine.links import Links
from simulator.engine.recipes import Recipe
from simulator.engine.scenario import Scenario
from simulator.engine.sms import Shape

# Which lanes share SMs, memory bandwidth or links, so that the speed of one depends on whether another runs.


def sharing_lanes(
    scenario: Scenario, recipes: Sequence[Recipe], lanes: Mapping[tuple[str, int], Sequence[int]], contended: Collection[str]
) -> list[list[int]]:
    """Groups of at least two lanes, by number, that share something, directly or through others of the group.

    `lanes`: tasks by (device, stream). `contended`: devices whose SMs or memory several lanes use.
    """
    machine = scenario.machine
    #: Two kernels of one memory may slow each other down even if its bandwidth is enough for both.
    any_pair = bool(scenario.pair_multipliers) or any(machine.device(name).shared_overhead_s for name in contended)
    users: dict[Hashable, list[int]] = defaultdict(list)
    draws: dict[str, dict[int, float]] = defaultdict(dict)
    for lane, ((device, _), indices) in enumerate(lanes.items()):
        for index in indices:
            shape = recipes[index].shape
            for own in recipes[index].on(device):
                if shape is not None and own in contended:
                    if lane not in users["SMs", own]:
                        users["SMs", own].append(lane)
                    drawn = draws[machine.device(own).memory]
                    drawn[lane] = max(drawn.get(lane, 0.0), shape.memory_share)
        for index in indices:
            route = recipes[index].route
            if route is not None and not route.alias:
                for place in (*(("queue", d) for d in route.directions), *(("channel", c) for c in route.channels)):
                    if lane not in users[place]:
                        users[place].append(lane)
    for memory, shares in draws.items():
        if any_pair or sum(shares.values()) > 1.0:
            users["bandwidth", memory] = list(shares)
    return _joined(users.values())


def _joined(groups: Collection[Sequence[int]]) -> list[list[int]]:
    """The groups, as one where they have a member in common; without those of one member."""
    joined: list[set[int]] = []
    for group in groups:
        own = set(group)
        apart = []
        for other in joined:
            if own & other:
                own |= other
            else:
                apart.append(other)
        joined = [*apart, own]
    return sorted(sorted(group) for group in joined if len(group) > 1)


STREAMS, COMPUTE, BANDWIDTH, LINKS = "streams", "compute", "memory bandwidth", "links"


class Capacity:
    """What a plan's tasks, in one period, need of a machine. Tasks whose recipe has no shape share no SMs and no bandwidth."""

    def __init__(self, scenario: Scenario, recipes: Sequence[Recipe], links: Links):
        plan, machine = scenario.plan, scenario.machine
        self._plan, self._machine, self._recipes, self._links = plan, machine, recipes, links
        lanes: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for task, recipe in zip(plan.tasks, recipes, strict=True):
            for place in recipe.on(task.device):
                lanes[machine.device(place).memory].add(task.lane)
        self._least = least_shares(scenario, lanes)

    @property
    def needed_s(self) -> dict[str, float]:
        """By what is shared, the seconds of a period for which it is needed."""
        return {STREAMS: self._streams_s(), COMPUTE: self._compute_s(), BANDWIDTH: self._bandwidth_s(), LINKS: self._links_s()}

    @cached_property
    def least_s(self) -> list[float]:
        """By task, the least seconds that it takes, whatever runs at the same time."""
        least_s = []
        for task, recipe in zip(self._plan.tasks, self._recipes, strict=True):
            moving_s = self._links.alone_s(recipe.route, recipe.moved_bytes) if recipe.route is not None else 0.0
            share = self._least[self._machine.device(task.device).memory] if recipe.shape is not None else 1.0
            least_s.append(recipe.seconds * share + moving_s)
        return least_s

    def _streams_s(self) -> float:
        work_s: dict[tuple[str, int], float] = defaultdict(float)
        for task, seconds in zip(self._plan.tasks, self.least_s, strict=True):
            work_s[task.lane] += seconds
        return max(work_s.values(), default=0.0)

    def _compute_s(self) -> float:
        taken: dict[str, float] = defaultdict(float)
        for task, recipe, seconds in zip(self._plan.tasks, self._recipes, self.least_s, strict=True):
            if (shape := recipe.shape) is None:
                continue
            for place in recipe.on(task.device):
                device = self._machine.device(place)
                kernel_s = seconds if shape.held else min(seconds, recipe.seconds)
                taken[device.name] += kernel_s * (1.0 if device.kind == "cpu" else _needed(shape)) / device.sms
        return max(taken.values(), default=0.0)

    def _bandwidth_s(self) -> float:
        drawn: dict[str, float] = defaultdict(float)
        for task, recipe in zip(self._plan.tasks, self._recipes, strict=True):
            if recipe.shape is not None and not recipe.shape.held:
                memory = self._machine.device(task.device).memory
                drawn[memory] += recipe.seconds * self._least[memory] * recipe.shape.memory_share
        return max(drawn.values(), default=0.0)

    def _links_s(self) -> float:
        held: dict[object, float] = defaultdict(float)
        for recipe in self._recipes:
            if recipe.route is None or recipe.route.alias:
                continue
            alone_s = self._links.alone_s(recipe.route, recipe.moved_bytes)
            for direction in recipe.route.directions:
                held["direction", direction] += alone_s
            for channel, load in zip(recipe.route.channels, recipe.route.loads, strict=True):
                held["channel", channel] += recipe.moved_bytes * load / self._links.capacity(channel)
        return max(held.values(), default=0.0)


def least_shares(scenario: Scenario, lanes: Mapping[str, set[tuple[str, int]]]) -> dict[str, float]:
    """By memory, the least share of its solo time that a kernel can take while others run. `lanes`: those that have kernels."""
    excess = min(0.0, min(scenario.pair_multipliers.values(), default=1.0) - 1.0)
    return {memory.name: max(1e-6, 1.0 + excess * max(0, len(lanes.get(memory.name, ())) - 1)) for memory in scenario.machine.memories}


def _needed(shape: Shape) -> float:
    """SMs with which a kernel reaches full speed, on average over its waves; a CPU's task has its core whatever it does with it."""
    return ((shape.waves - 1) * shape.x_need + shape.x_last) / shape.waves
