"""The last-level cache: which share of what a task reads is still there.

Two periods of the plan are walked in issue order with one least-recently-used list of storages per memory; the second period counts (with
lags beyond 1, as many more as it takes until every task meets an instance that was walked). This one mechanism serves ops and updates, and
so what optimizer fusion gains by locality.
"""

from collections import OrderedDict

from simulator.machine.machine import Machine
from simulator.memory.over_time import access_counts
from simulator.plan.plan import Plan
from simulator.plan.task import Operand


class Cache:
    """Resident bytes per storage (by number), least recently used first, at most `capacity` in all."""

    __slots__ = ("_capacity", "_resident", "_used")

    def __init__(self, capacity: int):
        """Empty."""
        self._capacity = capacity
        self._used = 0.0
        self._resident: OrderedDict[int, float] = OrderedDict()

    def touch(self, storage: int, touched_bytes: float, storage_bytes: float) -> float:
        """Use `touched_bytes` of a storage, bring in what is missing, evict the least recently used. Returns the share that was there.

        The resident bytes of a storage may lie anywhere in it, so of any part the same share is there.
        """
        resident = self._resident.pop(storage, 0.0)
        if resident >= storage_bytes:
            self._resident[storage] = resident
            return 1.0
        share = resident / storage_bytes
        now = min(storage_bytes, resident + touched_bytes * (1.0 - share), self._capacity)
        self._used += now - resident
        self._resident[storage] = now
        while self._used > self._capacity:
            oldest, held = next(iter(self._resident.items()))
            evicted = min(held, self._used - self._capacity)
            self._used -= evicted
            if evicted == held:
                del self._resident[oldest]
            else:
                self._resident[oldest] = held - evicted
        return share

    def drop(self, storage: int) -> None:
        """Forget a storage that was freed: its memory, and its place in the cache, go to the next allocation."""
        self._used -= self._resident.pop(storage, 0.0)


def resident_shares(plan: Plan, machine: Machine) -> list[float]:
    """Per task, the share of the bytes it reads and mutates that it finds in the cache; 1 for a task that reads nothing."""
    caches = {memory.name: Cache(memory.cache_bytes) for memory in machine.memories}
    cache_of = {device.name: caches[device.memory] for device in machine.devices}
    counts = access_counts(plan)
    number = {name: position for position, name in enumerate(plan.storages)}
    count = len(number)

    def places(operands: tuple[Operand, ...]) -> list[tuple[int, int, int, int, Cache]]:
        """(number, its increase per iteration, bytes touched, bytes, cache) of operands; what lies on the host is in no cache."""
        found = []
        for operand in operands:
            storage = plan.storages[plan.values[operand.value].storage]
            cache = cache_of.get(storage.device)
            if cache is not None:
                increase = count if storage.name in counts else 0  # a new instance, so a new number, per iteration
                found.append((number[storage.name], increase, operand.bytes, storage.bytes, cache))
        return found

    walks = []
    for task, instances in zip(plan.tasks, plan.instances, strict=True):
        freed = [(number[s], counts[s], cache_of.get(plan.storages[s].device)) for s in instances]
        walks.append((task.lag, places(task.inputs), places(task.writes), freed))
    shares = [1.0] * len(walks)
    left: dict[int, int] = {}
    largest_lag = max((task.lag for task in plan.tasks), default=0)
    for period in range(1 + max(1, largest_lag)):
        for index, (lag, read, written, instances) in enumerate(walks):
            iteration = period - lag
            total = present = 0.0
            for storage, increase, touched, size, cache in read:
                present += touched * cache.touch(storage + increase * iteration, touched, size)
                total += touched
            for storage, increase, touched, size, cache in written:
                cache.touch(storage + increase * iteration, touched, size)
            for storage, uses, cache in instances:
                instance = storage + count * iteration
                left[instance] = now_left = left.get(instance, uses) - 1
                if not now_left and cache is not None:
                    cache.drop(instance)
            shares[index] = present / total if total else 1.0
    return shares
