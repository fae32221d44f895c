"""What PyTorch's caching allocator takes of a GPU's memory for a plan: more than the plan holds, since blocks are cached and split.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its usual settings. A request is rounded up to 512 bytes. Requests of up to
1 MiB share segments of 2 MiB, those below 10 MiB segments of 20 MiB, and each larger one gets its own segment, in steps of 2 MiB. The
smallest free block of the same stream serves a request, and is split if the rest is worth it; free neighbors in a segment become one block
again. A segment stays reserved, for its stream alone, until memory runs out: then the allocator returns the segments that hold nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulator.engine.memory.over_time import Scratch, beside_bytes
from simulator.engine.memory.release import owners, releases
from simulator.machine.machine import Machine
from simulator.plan.dependencies import Dependencies, dependencies_of
from simulator.plan.plan import Plan, program
from simulator.plan.task import INPUT, OPTIMIZER_STATE, Task

_MIB = 2**20
_ROUND, _SMALL, _SMALL_SEGMENT, _LARGE, _LARGE_SEGMENT, _STEP = 512, _MIB, 2 * _MIB, 10 * _MIB, 20 * _MIB, 2 * _MIB
#: Steps after the first ones of a plan, in which its optimizer state is made and its lags fill up.
_STEPS = 3


@dataclass(eq=False)
class Block:
    """A part of a segment. `pool`: its stream, and whether it is for small requests."""

    size: int
    pool: tuple[object, bool]
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


@dataclass
class CachingAllocator:
    """Blocks of one GPU's memory. `limit_bytes`: what it may reserve; it goes beyond only if returning cached segments does not do.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(3 * _MIB, stream=0)
    >>> allocator.release(block)
    >>> allocator.reserved_bytes // _MIB  # the segment that 3 MiB take; it stays reserved
    20
    """

    limit_bytes: float = float("inf")
    reserved_bytes: int = 0
    highest_bytes: int = 0
    _free: dict[tuple[object, bool], list[tuple[int, int, Block]]] = field(default_factory=dict)  # by pool, the smallest first
    _order: int = 0

    def allocate(self, size: int, stream: object) -> Block:
        """A block of at least `size` bytes for work of a stream."""
        size = max(_ROUND, -(-size // _ROUND) * _ROUND)
        small = size <= _SMALL
        pool = (stream, small)
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (size,))
        block = free.pop(at)[2] if at < len(free) else self._segment(size, pool)
        rest = block.size - size
        if rest >= _ROUND if small else rest > _SMALL:
            self._put(Block(rest, pool, before=block, after=block.after))
            block.size = size
        block.free = False
        return block

    def release(self, block: Block) -> None:
        """Let later requests of the block's stream have it."""
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._take(other)
                block.size += other.size
                if other is block.before:
                    block.before = other.before
                else:
                    block.after = other.after
        self._put(block)

    def _segment(self, size: int, pool: tuple[object, bool]) -> Block:
        segment = _SMALL_SEGMENT if pool[1] else _LARGE_SEGMENT if size < _LARGE else -(-size // _STEP) * _STEP
        if self.reserved_bytes + segment > self.limit_bytes:
            for blocks in self._free.values():
                for _, _, block in [entry for entry in blocks if entry[2].before is None and entry[2].after is None]:
                    self._take(block)
                    self.reserved_bytes -= block.size
        self.reserved_bytes += segment
        self.highest_bytes = max(self.highest_bytes, self.reserved_bytes)
        return Block(segment, pool)

    def _put(self, block: Block) -> None:
        """Make a block free, and its neighbors know it."""
        block.free = True
        if block.before is not None:
            block.before.after = block
        if block.after is not None:
            block.after.before = block
        self._order += 1
        insort(self._free[block.pool], (block.size, self._order, block))

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        at = bisect_left(free, (block.size,))
        free.pop(next(place for place in range(at, len(free)) if free[place][2] is block))


def reserved_bytes(plan: Plan, machine: Machine, scratch: Scratch) -> dict[str, int]:
    """By the name of each of the machine's memories that GPUs of the plan use, the most that PyTorch's allocator reserves in it.

    Tasks allocate as they are issued. Optimizer state is made by the first update. Storage is freed once the order of the streams allows it
    (`release.releases`). The allocator returns cached segments before it would exceed the memory's size less `beside_bytes`.
    """
    gpus = [device for device in plan.devices if machine.device(device).kind == "gpu"]
    if not gpus:
        return {}
    memories = {device: machine.memory_name(device) for device in gpus}
    sizes = {memory.name: memory.size_bytes for memory in machine.memories}
    allocators = {name: CachingAllocator(sizes[name] - beside_bytes(sizes[name])) for name in memories.values()}
    watched = {device: allocators[name] for device, name in memories.items()}
    _Steps(plan, dependencies_of(plan, machine), watched).run(scratch.kept_bytes)
    return {name: allocator.highest_bytes for name, allocator in allocators.items()}


class _Steps:
    """Steps of a plan whose tasks allocate and free. `allocators`: by device; those of other devices are not watched."""

    def __init__(self, plan: Plan, dependencies: Dependencies, allocators: dict[str, CachingAllocator]):
        self._plan, self._dependencies, self._allocators = plan, dependencies, allocators
        self._releases = plan.derived(releases, dependencies)
        self._owner = owners(plan)
        self._held: dict[tuple[str, int], Block] = {}
        kinds = {value.storage: value.kind for value in plan.values.values()}
        self._inputs = dict.fromkeys(name for name, kind in kinds.items() if kind == INPUT)  # in order; a plan may have thousands
        self._states = {name for name in plan.carried if kinds[name] == OPTIMIZER_STATE}

    def run(self, kept_bytes: Mapping[str, int]) -> None:
        """Run all steps. `kept_bytes`: by device, the bytes that stay allocated from the first step on."""
        periods = self._dependencies.steady + _STEPS
        for name in sorted(self._plan.carried - self._states):
            self._allocate(name, -1, 0)
        for device, size in kept_bytes.items():
            if device in self._allocators:
                self._allocators[device].allocate(size, (device, 0))
        last = -1
        for period, index, task in program(self._dependencies.tasks, periods, periods):
            if period != last:
                last = period
                for name in self._inputs:
                    self._release(name, period - 1)
                    self._allocate(name, period, 0)
            self._issue(period, index, task)

    def _issue(self, period: int, index: int, task: Task) -> None:
        iteration = period - task.lag
        for operand in task.mutates if self._states else ():
            name = self._plan.storage_of(operand)
            if name in self._states:
                self._states.discard(name)
                self._allocate(name, -1, task.stream)
        for name in self._plan.instances[index]:
            own = self._owner.get(name, name)
            if own not in self._plan.carried and own not in self._inputs:
                self._allocate(own, iteration, task.stream)
        allocator = self._allocators.get(task.device)
        if allocator is not None:
            made = [allocator.allocate(size, (task.device, task.stream)) for size in task.body.temporaries(task)]
            for block in made:
                allocator.release(block)
        for name, of in self._freed(period, index):
            self._release(self._owner.get(name, name), of)

    def _freed(self, period: int, index: int) -> Iterator[tuple[str, int]]:
        yield from self._releases.early.get((period, index), ())
        for name, age in self._releases.steady[index]:
            if period - age >= self._releases.first:
                yield name, period - age

    def _allocate(self, name: str, iteration: int, stream: int) -> None:
        storage = self._plan.storages[name]
        allocator = self._allocators.get(storage.device)
        if allocator is not None and (name, iteration) not in self._held:
            self._held[name, iteration] = allocator.allocate(storage.bytes, (storage.device, stream))

    def _release(self, name: str, iteration: int) -> None:
        block = self._held.pop((name, iteration), None)
        if block is not None:
            self._allocators[self._plan.storages[name].device].release(block)
