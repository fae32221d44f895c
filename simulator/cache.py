"""The last-level cache: which share of what a task reads is still there.

Two periods of the plan are walked in issue order with one least-recently-used list of storages per memory; the second period counts (with
lags beyond 1, as many more as it takes until every task meets an instance that was walked). This one mechanism serves ops and updates, and
so what optimizer fusion gains by locality.
"""

from collections import OrderedDict
from collections.abc import Hashable

from .machine import Machine
from .memory import access_counts
from .plan import Operand, Plan


class Cache:
    """Resident bytes per storage, least recently used first, at most `capacity` in all."""

    __slots__ = ("_capacity", "_resident", "_used")

    def __init__(self, capacity: int):
        """Empty."""
        self._capacity = capacity
        self._used = 0.0
        self._resident: OrderedDict[Hashable, float] = OrderedDict()

    def touch(self, storage: Hashable, touched_bytes: float, storage_bytes: float) -> float:
        """Use `touched_bytes` of a storage, bring in what is missing, evict the least recently used. Returns the share that was there.

        The resident bytes of a storage may lie anywhere in it, so of any part the same share is there.
        """
        resident = self._resident.pop(storage, 0.0)
        share = min(1.0, resident / storage_bytes) if storage_bytes else 1.0
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

    def drop(self, storage: Hashable) -> None:
        """Forget a storage that was freed: its memory, and its place in the cache, go to the next allocation."""
        self._used -= self._resident.pop(storage, 0.0)


def resident_shares(plan: Plan, machine: Machine) -> list[float]:
    """Per task, the share of the bytes it reads and mutates that it finds in the cache; 1 for a task that reads nothing."""
    memory_of = {device.name: device.memory for device in machine.devices}
    caches = {memory.name: Cache(memory.cache_bytes) for memory in machine.memories}
    counts = access_counts(plan)
    left: dict[tuple[str, int], int] = {}
    walks = []
    for task, instances in zip(plan.tasks, plan.instances, strict=True):
        walks.append((task.lag, _placed(plan, task.inputs, memory_of), _placed(plan, task.writes, memory_of), instances))
    shares = [1.0] * len(walks)
    largest_lag = max((task.lag for task in plan.tasks), default=0)
    for period in range(1 + max(1, largest_lag)):
        for index, (lag, read, written, instances) in enumerate(walks):
            iteration = period - lag
            total = present = 0.0
            for storage, touched, size, memory in read:
                name = (storage, iteration) if storage in counts else storage
                present += touched * caches[memory].touch(name, touched, size)
                total += touched
            for storage, touched, size, memory in written:
                name = (storage, iteration) if storage in counts else storage
                caches[memory].touch(name, touched, size)
            for storage in instances:
                name = (storage, iteration)
                left[name] = left.get(name, counts[storage]) - 1
                if not left[name]:
                    memory = memory_of.get(plan.storages[storage].device)
                    if memory is not None:
                        caches[memory].drop(name)
            shares[index] = present / total if total else 1.0
    return shares


def _placed(plan: Plan, operands: tuple[Operand, ...], memory_of: dict[str, str]) -> list[tuple[str, int, int, str]]:
    """(storage, bytes touched, bytes, memory) of operands in a memory of the machine; what lies on the host is in none."""
    found = []
    for operand in operands:
        storage = plan.storages[plan.values[operand.value].storage]
        memory = memory_of.get(storage.device)
        if memory is not None:
            found.append((storage.name, operand.bytes, storage.bytes, memory))
    return found
