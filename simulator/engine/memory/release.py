"""When an executor that allocates per lane may free an instance of a storage: the rule of `over_time`, for GPUs.

A GPU's caching allocator returns memory to the stream that allocated it and hands it out again only to that stream. An instance may
therefore be freed once its last access has been issued and its allocating lane (the lane of its first access) is ordered after every access
on other lanes. Order is followed with vector clocks through the edges that need an event (`Dependencies.waits`). A storage that a copy
makes a second name of another's memory is freed with it: accesses under both names count. Each device runs its part of a collective on its
lane of the task's stream, and none ends before all have begun.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from operator import itemgetter

from simulator.plan.dependencies import Dependencies, Edge
from simulator.plan.plan import Plan, program
from simulator.plan.task import INPUT, Resource, Task

#: An instance counts as never released if its allocating lane is not ordered after the last access within this many further periods.
LOOK_AHEAD = 3


#: An execution that an instance waits for, its number among those whose last access was issued, its key, and the last access by lane.
_Pending = tuple[int, int, tuple[str, int], dict[int, int]]


@dataclass(frozen=True, eq=False)
class Releases:
    """Instances that may be freed after a task has been issued.

    `early[period, task]`: (storage, iteration) pairs of the iterations before `first`, after which the pattern repeats.
    `steady[task]`: (storage, age) pairs of all iterations from `first` on; age is the task's period minus the iteration.
    `never_released`: storages that the order of the lanes never releases.
    """

    early: dict[tuple[int, int], tuple[tuple[str, int], ...]]
    steady: tuple[tuple[tuple[str, int], ...], ...]
    first: int
    never_released: frozenset[str]

    @property
    def oldest(self) -> int:
        """The largest age: the number of periods after its first for which an instance has to stay allocated."""
        return max((age for items in self.steady for _, age in items), default=0)


def owners(plan: Plan) -> dict[str, str]:
    """Storage -> the storage whose memory it uses, for storages that a copy makes an alias of another."""
    owner: dict[str, str] = {}
    for task in plan.tasks:
        if task.body.aliases:
            for read, write in zip(task.reads, task.writes, strict=bool(task.writes)):
                source = plan.storage_of(read)
                owner[plan.storage_of(write)] = owner.get(source, source)
    return owner


def releases(plan: Plan, dependencies: Dependencies) -> Releases:
    """Derive when instances may be freed."""
    tasks = dependencies.tasks
    first = dependencies.steady
    periods = first + dependencies.largest_lag + LOOK_AHEAD + 1
    early: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    steady: list[list[tuple[str, int]]] = [[] for _ in tasks]
    released = set()
    for (period, index), storage, iteration in _released(plan, dependencies, periods):
        if iteration < first:
            early[period, index].append((storage, iteration))
        elif iteration == first:
            steady[index].append((storage, period - iteration))
            released.add(storage)
    every = {name for names in plan.instances for name in names} - _fed(plan)
    return Releases({at: tuple(items) for at, items in early.items()}, tuple(map(tuple, steady)), first, frozenset(every - released))


def drain_releases(plan: Plan, dependencies: Dependencies, iterations: int) -> dict[tuple[int, int], tuple[tuple[str, int], ...]]:
    """What may be freed while a plan drains: by (period, task), the (storage, iteration) pairs after it.

    All lanes have ended before the drain begins. In it, tasks that would order lanes are missing, so that `Releases.steady` does not hold.
    What no lane's order releases is missing here too.
    """
    if not dependencies.largest_lag:
        return {}
    alike = min(iterations, dependencies.steady + 1)  # the drain is the same after any larger number
    later = iterations - alike
    freed: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    for (period, index), storage, iteration in _released(plan, dependencies, alike + dependencies.largest_lag, alike):
        if period >= alike:
            freed[period + later, index].append((storage, iteration + later))
    return {at: tuple(items) for at, items in freed.items()}


def _fed(plan: Plan) -> set[str]:
    return {value.storage for value in plan.values.values() if value.kind == INPUT}


def _released(plan: Plan, dependencies: Dependencies, periods: int, iterations: int | None = None):
    """Yield ((period, task), storage, iteration) in the order in which instances of the unrolled program may be freed.

    It ends once all instances that steady steps repeat are freed, or after `periods`. With `iterations`, it drains after so many, before
    which all lanes are waited for.
    """
    tasks, fed = dependencies.tasks, _fed(plan)
    owner = {name: of for name, of in owners(plan).items() if of not in fed and of not in plan.carried}
    used = [tuple(dict.fromkeys(owner.get(name, name) for name in names)) for names in plan.instances]
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, of in owner.items():
        names_of[of].append(name)
    size = len(tasks)
    running = [_lanes(plan, task) for task in tasks]
    lanes = {lane: number for number, lane in enumerate(dict.fromkeys(chain.from_iterable(running)))}
    lanes_of = [[lanes[lane] for lane in own] for own in running]
    counts = Counter(name for names in used for name in names)
    clocks = [[-1] * len(lanes) for _ in lanes]  # per lane, the last execution on every lane that its next task is ordered after
    clock_after: dict[int, list[int]] = {}  # clock at the end of an execution that other lanes wait for
    recorded = {edge.index for period in range(dependencies.steady + 1) for edges in dependencies.waits(period) for edge in edges}
    open_: dict[tuple[str, int], list] = {}  # [allocating lane, accesses left, last access by lane]
    #: By allocating lane: what has had its last access since the lane's last task; and by another lane, what waits until the lane is
    #: ordered after an execution there, the earliest first.
    fresh: list[list[_Pending]] = [[] for _ in lanes]
    blocked: list[dict[int, list[_Pending]]] = [{} for _ in lanes]
    closed = kept = 0  # kept: the instances up to the first steady iteration that are not freed yet
    last = [-1] * len(lanes)  # the last execution on each lane
    draining = False
    waits: list[list[tuple[Edge, ...]]] = []  # by period
    for period, index, task in program(tasks, periods if iterations is None else iterations, periods):
        if iterations is None and not (index or kept) and period > dependencies.steady + dependencies.largest_lag:
            return
        own, number = lanes_of[index], period * size + index
        if iterations is not None and period >= iterations and not draining:
            draining = True
            for clock in clocks:
                clock[:] = last
        clock = clocks[own[0]]
        while len(waits) <= period:
            waits.append(dependencies.waits(len(waits), iterations))
        for edge in waits[period][index]:
            if not draining or period - edge.delta >= (iterations or 0):
                clock[:] = map(max, clock, clock_after[(period - edge.delta) * size + edge.index])
        if len(own) > 1:
            clock[:] = map(max, *(clocks[lane] for lane in own))
        for lane in own:
            clock[lane] = last[lane] = number
        for lane in own[1:]:
            clocks[lane][:] = clock
        if index in recorded or draining:
            clock_after[number] = clock.copy()
        for name in used[index]:
            if name in fed:
                continue
            lane = own[0] if len(own) == 1 else lanes[plan.storages[name].device, task.stream]
            key = (name, period - task.lag)
            if key not in open_:
                open_[key] = [lane, counts[name], {}]
                kept += key[1] <= dependencies.steady
            entry = open_[key]
            entry[1] -= 1
            entry[2][lane] = number
            if not entry[1]:
                closed += 1
                fresh[entry[0]].append((-1, closed, key, entry[2]))
                del open_[key]
        for lane in own:
            candidates, fresh[lane] = fresh[lane], []
            for other, waiting in blocked[lane].items():
                while waiting and waiting[0][0] <= clock[other]:
                    candidates.append(heappop(waiting))
            for _, order, key, accesses in sorted(candidates, key=itemgetter(1)):
                blocking = next((other for other, last in accesses.items() if clock[other] < last), None)
                if blocking is not None:
                    heappush(blocked[lane].setdefault(blocking, []), (accesses[blocking], order, key, accesses))
                    continue
                kept -= key[1] <= dependencies.steady
                for name in (key[0], *names_of[key[0]]):
                    yield (period, index), name, key[1]


def _lanes(plan: Plan, task: Task) -> list[tuple[str, int]]:
    """The lanes that run a task, its own first: of a collective, one on each device that has operands of it."""
    lanes = [task.lane]
    if task.body.resource is Resource.COLLECTIVE:
        lanes += [(plan.values[operand.value].device, task.stream) for operand in (*task.reads, *task.writes, *task.mutates)]
    return list(dict.fromkeys(lanes))
