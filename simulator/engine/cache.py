"""The last-level cache: which share of a task's reads is still in it.

Two periods of the plan are walked in issue order with one least-recently-used list of storages per memory, and the second period counts.
With lags beyond 1 there are more periods, until every task meets an instance that was walked. The same mechanism serves ops and updates, so
it gives the locality gain of optimizer fusion.
"""

from collections import OrderedDict
from functools import cache

from simulator.engine.memory.over_time import access_counts
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Operand


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
        freed = [(number[s], counts[s], cache_of.get(plan.storages[s].device)) for s in instances]
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
                if not left and lru is not None:
                    lru.drop(instance)
            shares[index] = present / total if total else 1.0
    return shares
