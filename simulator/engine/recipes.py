"""How each task runs: what it needs of SMs, links and time.

The last-level cache: which share of a task's reads is still in it.

Two periods of the plan are walked in issue order with one least-recently-used list of storages per memory, and the second period counts.
With lags beyond 1 there are more periods, until every task meets an instance that was walked. The same mechanism serves ops and updates, so
it gives the locality gain of optimizer fusion.
"""

from collections import OrderedDict
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from simulator.engine.costs.cost import Cost
from simulator.engine.kernels import Shape, shape_of
from simulator.engine.links import Links
from simulator.engine.memory.over_time import access_counts
from simulator.engine.routes import ALIAS_ROUTE, Route
from simulator.engine.scenario import Scenario
from simulator.machine.machine import HostLane, Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Resource, Task


class Cache:
    """Resident bytes per storage (by number), least recently used first, at most `capacity` in all."""

    __slots__ = ("_capacity", "_resident", "_used")

    def __init__(self, capacity: int):
        """The cache is empty at first."""
        self._capacity = capacity
        self._used = 0.0
        self._resident: OrderedDict[int, float] = OrderedDict()

    def touch(self, storage: int, touched_bytes: float, storage_bytes: float) -> float:
        """Use `touched_bytes` of a storage: load what is missing and evict the least recently used. Returns the share that was resident.

        The resident bytes may lie anywhere in the storage, so the same share of any of its bytes is resident.
        """
        residents = self._resident
        resident = residents.get(storage, 0.0)
        if resident >= storage_bytes:
            if storage in residents:
                residents.move_to_end(storage)
            else:
                residents[storage] = resident  # no bytes
            return 1.0
        share, capacity = resident / storage_bytes, self._capacity
        now = min(storage_bytes, resident + touched_bytes * (1.0 - share), capacity)
        used = self._used + (now - resident)
        residents[storage] = now
        residents.move_to_end(storage)
        while used > capacity:
            oldest = next(iter(residents))
            oldest_bytes = residents[oldest]
            if oldest_bytes <= used - capacity:
                used -= oldest_bytes
                del residents[oldest]
            else:
                residents[oldest] = oldest_bytes - (used - capacity)
                used -= used - capacity
        self._used = used
        return share

    def drop(self, storage: int) -> None:
        """Drop a freed storage: the next allocation takes its memory, and with it its place in the cache."""
        self._used -= self._resident.pop(storage, 0.0)


def resident_shares(plan: Plan, machine: Machine) -> list[float]:
    """Per task, the share of the bytes it reads and mutates that is in the cache; 1 for a task that reads nothing."""
    capacities = tuple((memory.name, memory.cache_bytes) for memory in machine.memories)
    return plan.derived(_walked, capacities, tuple((device.name, device.memory) for device in machine.devices))


def _walked(plan: Plan, capacities: tuple[tuple[str, int], ...], memories: tuple[tuple[str, str], ...]) -> list[float]:
    """`resident_shares`, with the bytes of the cache by memory, and the memory by device."""
    caches = {memory: Cache(capacity) for memory, capacity in capacities}
    cache_of = {device: caches[memory] for device, memory in memories}
    counts = access_counts(plan)
    number = {name: position for position, name in enumerate(plan.storages)}
    count = len(number)

    @cache
    def place(value: str) -> tuple[int, int, int, int, Cache | None]:
        """(number, its increase per iteration, the value's bytes, its storage's bytes, cache) of a value."""
        storage = plan.storages[plan.values[value].storage]
        increase = count if storage.name in counts else 0  # a new instance, so a new number, per iteration
        whole = plan.values[value].operand().bytes
        return number[storage.name], increase, whole, storage.bytes, cache_of.get(storage.device)

    def accesses(operands: tuple[Operand, ...]) -> list[tuple[int, int, int, int, Cache]]:
        """(number, its increase per iteration, bytes touched, bytes, cache) of operands. Those on the host are in no cache."""
        cached = []
        for operand in operands:
            first, increase, whole, size, lru = place(operand.value)
            if lru is not None:
                cached.append((first, increase, operand.bytes if operand.views else whole, size, lru))
        return cached

    walks = []
    for task, instances in zip(plan.tasks, plan.instances, strict=True):
        freed = [(number[s], counts[s], lru) for s in instances if (lru := cache_of.get(plan.storages[s].device)) is not None]
        walks.append((task.lag, accesses(task.inputs), accesses(task.writes), freed))
    shares = [1.0] * len(walks)
    uses_left: dict[int, int] = {}
    for period in range(1 + max(1, plan.largest_lag)):
        for index, (lag, read, written, freed) in enumerate(walks):
            iteration = period - lag
            total = present = 0.0
            for storage, increase, touched, size, lru in read:
                present += touched * lru.touch(storage + increase * iteration, touched, size)
                total += touched
            for storage, increase, touched, size, lru in written:
                lru.touch(storage + increase * iteration, touched, size)
            for storage, uses, lru in freed:
                instance = storage + count * iteration
                uses_left[instance] = left = uses_left.get(instance, uses) - 1
                if not left:
                    lru.drop(instance)
            shares[index] = present / total if total else 1.0
    return shares


class Recipe(NamedTuple):
    """How one task runs. Without `shape` and `route` it shares nothing, and takes `seconds` whatever else runs.

    With a `shape`, it is a kernel of `seconds`. With a `route`, it is a transfer of `moved_bytes` after `seconds` of overhead. With both, a
    core does the transfer if the shape is `held`, else a kernel runs first. A collective's kernel occupies SMs on each of `devices`.
    `crossed`: it is no node of its CUDA graph but an edge (an alias), and the gap for crossing lanes came before it. `launches`: those that
    take a place in the queue of its stream.
    """

    seconds: float
    priority: int = 0
    shape: Shape | None = None
    route: Route | None = None
    moved_bytes: float = 0.0
    crossed: bool = False
    launches: int = 1
    devices: tuple[str, ...] = ()

    def on(self, device: str) -> tuple[str, ...]:
        """The devices whose SMs it takes, if `device` is that of its lane."""
        return () if self.shape is None else self.devices or (device,)

    @property
    def alone(self) -> bool:
        """Whether the task shares nothing, so that its end follows from its start."""
        return self.shape is None and (self.route is None or self.route.alias)


def recipes_of(scenario: Scenario, links: Links) -> list[Recipe]:
    """One recipe per task of the plan. `links`: the machine's. Raises SchedcastError for a link that it lacks."""
    plan, machine, costs, graph = scenario.plan, scenario.machine, scenario.costs, scenario.is_graph
    cache_matters = any(cost.warm_s != cost.cold_s for cost in costs)
    shares = resident_shares(plan, machine) if cache_matters else [0.0] * len(costs)
    waits = scenario.dependencies.waits(scenario.dependencies.steady)
    sites = {name: _Site(machine, name, plan) for name in plan.devices}
    recipes = []
    for task, cost, share, awaited in zip(plan.tasks, costs, shares, waits, strict=True):
        site = sites[task.device]
        seconds = cost.cold_s - (cost.cold_s - cost.warm_s) * share
        if not graph and site.host is not None:
            seconds -= cost.fed_s
        gap_s = 0.0 if graph else _launch_gap_s(task, cost, site.host)
        recipe = _recipe(task, cost, max(0.0, seconds + gap_s), gap_s, site, links)
        if graph and recipe.route is not None and recipe.route.alias and task.body.resource is Resource.LINK:
            recipe = recipe._replace(crossed=bool(awaited))
        recipes.append(recipe)
    distinct = links.distinct(recipe.route for recipe in recipes if recipe.route is not None)
    return [recipe if recipe.route is None else recipe._replace(route=distinct[id(recipe.route)]) for recipe in recipes]


class _Site:
    """What the tasks of one device have in common."""

    def __init__(self, machine: Machine, name: str, plan: Plan):
        """`name`: the device's. `plan`: may have fewer devices than its collectives."""
        self.among = cache(lambda taking_part: tuple(device for device in taking_part if device in plan.members))
        self.counterparts = plan.counterparts
        device = machine.device(name)
        self.host = machine.host(name)
        self.overhead_s = device.task_overhead_s if self.host is None else 0.0  # with a host lane, the time per task is the host's
        self.on_core, self.library = device.kind == "cpu", bool(machine.library)
        self._sms, self._saturation_share = device.sms, machine.memory(name).saturation_share
        self._shared = device.sm is not None
        self._bytes_per_s = machine.memory(name).bandwidth_bytes_per_s
        self._shapes: dict[int, Shape] = {}

    def shape(self, cost: Cost) -> Shape:
        """The shape of a task of this cost. Many tasks share one cost, which outlives this object."""
        shape = self._shapes.get(id(cost))
        if shape is None:
            own = replace(cost, grid=1, blocks_per_sm=1) if self.on_core and (cost.grid, cost.blocks_per_sm) != (1, 1) else cost
            shape = self._shapes[id(cost)] = shape_of(own, self._sms, self._saturation_share, self._shared)
        return shape

    def occupied(self, route: Route) -> Shape:
        """The shape of the kernel that runs a collective on each of its devices. Its blocks wait for SMs, and hold them.

        The collective starts once a block runs on every device. If it waited for all blocks, collectives could wait for each other.
        """
        blocks = min(route.blocks, self._sms)
        return Shape(
            1,
            need=blocks,
            last_need=blocks,
            x_need=float(blocks),
            x_last=float(blocks),
            memory_share=min(1.0, route.draws_bytes_per_s / self._bytes_per_s),
            group="collective",
            held=True,
        )


def peer_copies(task: Task, host: HostLane | None) -> int:
    """How many copies from one GPU of a host to another the task makes: one for each tensor. 0 for other tasks."""
    body = task.body
    if host is None or not body.is_copy or body.aliases or body.resource is not Resource.LINK:
        return 0
    return len(task.reads) if body.ends is not None and set(body.ends) <= set(host.devices) else 0


def _launch_gap_s(task: Task, cost: Cost, host: HostLane | None) -> float:
    """What the task's kernels, or its call of the host, take longer than the cost says, because they are not nodes of a graph."""
    if host is None or not host.launch_gap_s:
        return 0.0
    return host.launch_gap_s * (1 if task.body.resource is Resource.HOST else cost.launches)


def _recipe(task: Task, cost: Cost, seconds: float, gap_s: float, site: _Site, links: Links) -> Recipe:
    body, resource, host = task.body, task.body.resource, site.host
    overhead_s = cost.overhead_s + site.overhead_s
    if resource is Resource.COLLECTIVE:
        route, moved = links.collective(body, body.payload_bytes(task))
        kernel = site.occupied(route) if route.blocks else None
        launches = 0 if route.alias else cost.launches
        return Recipe(
            overhead_s, task.priority, kernel, route, moved, launches=launches, devices=site.among(body.devices) if kernel else ()
        )
    if resource is Resource.LINK and body.ends[0] != body.ends[1]:
        route, moved = (ALIAS_ROUTE, 0.0) if body.aliases else links.transfers(site.counterparts(*body.ends), body.moved_bytes(task))
        copies = peer_copies(task, host) or 1  # one after another
        if copies > 1:
            route = route._replace(latency_s=route.latency_s * copies)
        # A worker moves the bytes, or the library's thread.
        core = site.shape(cost)._replace(held=True) if site.on_core and not site.library else None
        return Recipe(overhead_s, task.priority, core, route, moved, launches=0 if route.alias else cost.launches * copies)
    if resource is Resource.HOST:
        called_s = 0.0 if host is None or body.blocks_host or body.on_host else max(0.0, host.callback_s + gap_s)
        seconds = (cost.cold_s if body.on_host else body.duration_s) + (overhead_s if host is None else called_s)
        shape = site.shape(cost) if site.on_core and seconds else None
        return Recipe(seconds, task.priority, shape, launches=0 if body.blocks_host or body.on_host else 1)
    seconds += overhead_s
    recipe = Recipe(seconds, task.priority, site.shape(cost) if seconds else None, launches=cost.launches)
    if resource is Resource.COMPUTE and body.ends is not None:  # a kernel that copies
        recipe = recipe._replace(route=links.stated(*body.ends), moved_bytes=float(body.moved_bytes(task)))
    return recipe
