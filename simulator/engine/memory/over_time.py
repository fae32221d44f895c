"""Bytes over time, by one rule that the simulator, validation and the executors share.

A carried storage is allocated all the time. Every other storage has one instance per iteration, which lives from the start of its first
access to the end of its last; an executor frees it when as many tasks have accessed it as `access_counts` says. On a GPU that runs several
streams it lives to the end of the task after which the stream that allocated it may have its memory again (`release.releases`). An instance
of an input lives from the start of its iteration's first task. If a copy gives a storage a second name (`Copy(means="alias")`), both names
share the memory of the first, which stays allocated until neither is accessed any more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from simulator.engine.memory.release import Releases, owners, releases
from simulator.machine.machine import Machine
from simulator.plan.dependencies import dependencies_of
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT
from traces.documents.comparison import MemoryNeed
from traces.documents.timeline import Span
from traces.errors import Code, SchedcastError

# Memory that the library of matrix products keeps for each stream on which it has run one, as long as the process lives.


class Scratch(NamedTuple):
    """Bytes allocated in addition to a plan's values: `kept_bytes` by device all the time, `task_bytes` by task while it runs.

    `releases`: when GPUs have the memory of values again that several streams access; None if each device has one stream, or is no GPU.
    """

    kept_bytes: Mapping[str, int] = MappingProxyType({})
    task_bytes: Mapping[str, int] = MappingProxyType({})
    releases: Releases | None = None

    @classmethod
    def of(cls, plan: Plan, machine: Machine, graph: bool = False) -> "Scratch":
        """The workspaces of the plan's lanes, and on GPUs what its tasks make for themselves.

        `graph`: the plan runs in CUDA graphs, which also hold the values that cross the border between two. On a CPU, whose peaks executors
        read between tasks, only the workspaces count.
        """
        gpus = {device.name for device in machine.devices if device.kind == "gpu"}
        own = {task.name: sum(task.body.temporaries(task)) for task in plan.tasks if task.device in gpus}
        kept = Counter(workspace_bytes(plan, machine)) + Counter(border_bytes(plan) if graph else {})
        lanes = {task.lane for task in plan.tasks if task.device in gpus}
        later = plan.derived(releases, dependencies_of(plan, machine)) if len(lanes) > len({device for device, _ in lanes}) else None
        return cls(dict(kept), {name: size for name, size in own.items() if size}, later)


NO_SCRATCH = Scratch()


def workspace_bytes(plan: Plan, machine: Machine) -> dict[str, int]:
    """Bytes of the workspaces of the plan's lanes by device; devices without any are omitted."""
    lanes = {task.lane for task in plan.tasks if task.body.has_products}
    total: dict[str, int] = {}
    for device, _ in lanes:
        total[device] = total.get(device, 0) + machine.device(device).workspace_bytes
    return {device: size for device, size in total.items() if size}


def across_border(plan: Plan) -> dict[int, list[str]]:
    """By age, the values of an iteration that a CUDA graph reads which begins `age` periods after the iteration did.

    A graph reads them from separate tensors, to which the previous graph has copied them at its end.
    """
    written = {operand.value: task.lag for task in plan.tasks for operand in task.writes}
    storage_lag = {plan.storage_of(plan.values[name].operand()): at for name, at in written.items()}
    crossing: dict[int, dict[str, None]] = {age: {} for age in range(1, plan.largest_lag + 1)}
    for task in plan.tasks:
        for operand in task.inputs:
            for age in range(storage_lag.get(plan.storage_of(operand), 0) + 1, task.lag + 1):
                crossing[age][operand.value] = None
    return {age: list(names) for age, names in crossing.items()}


def border_bytes(plan: Plan) -> dict[str, int]:
    """By device, the bytes of the tensors from which CUDA graphs read what crosses their border."""
    total: dict[str, int] = {}
    for names in across_border(plan).values():
        for name in {plan.values[name].storage for name in names} - plan.carried:
            storage = plan.storages[name]
            total[storage.device] = total.get(storage.device, 0) + storage.bytes
    return total


#: (time in s, bytes allocated from that time on) pairs in order of time.
Steps = tuple[tuple[float, int], ...]


def access_counts(plan: Plan) -> dict[str, int]:
    """Number of tasks of one iteration that access each per-iteration storage. After that many accesses its instance can be freed."""
    counts: dict[str, int] = {}
    for names in plan.instances:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts


def carried_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of carried storages by device."""
    total = dict.fromkeys(plan.devices, 0)
    for name in plan.carried:
        storage = plan.storages[name]
        total[storage.device] = total.get(storage.device, 0) + storage.bytes
    return total


def least_bytes(plan: Plan, machine: Machine) -> dict[str, int]:
    """Bytes by memory that a plan holds at some moment, whatever its tasks take: never more than it does hold.

    A stream runs its tasks one after another. So while one of them runs, everything that the stream's tasks access before and after it in
    the same iteration is allocated. The fullest device of a memory counts, with the stream of the most tasks.
    """
    carried, kept = carried_bytes(plan), workspace_bytes(plan, machine)
    lanes = Counter(task.lane for task in plan.tasks if not task.lag)
    least: dict[str, int] = {}
    for device in plan.devices:
        lane = max((own for own in lanes if own[0] == device), key=lanes.__getitem__, default=None)
        mine = np.array([task.lane == lane and not task.lag for task in plan.tasks], bool)
        held = int(held_along(plan, device, mine).max(initial=0))
        memory = machine.device(device).memory
        least[memory] = max(least.get(memory, 0), held + carried[device] + kept.get(device, 0))
    return least


def held_along(plan: Plan, device: str, mine: np.ndarray, own: bool = False) -> np.ndarray:
    """By task, the bytes of per-iteration storages of a device that the tasks `mine` access no later than this one, and no earlier.

    `own`: only of storages that no other task accesses before these do.
    """
    names, task_of, border, _, sizes, places = plan.derived(_accesses)
    changes = np.zeros(len(plan.tasks) + 1, np.int64)
    if names:
        first = np.minimum.reduceat(np.where(mine[task_of], task_of, len(plan.tasks)), border)
        last = np.maximum.reduceat(np.where(mine[task_of], task_of, -1), border)
        lives = (first <= last) & (places == device)
        if own:
            lives &= first == np.minimum.reduceat(task_of, border)
        np.add.at(changes, first[lives], sizes[lives])
        np.subtract.at(changes, last[lives] + 1, sizes[lives])
    return np.cumsum(changes)[:-1]


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of storage instances. Instance i is of storage `names[storage[i]]` and lives from `begin_s[i]` to `end_s[i]`.

    `begin_s` is inf for an instance that is never accessed, `end_s` is inf for one that is never freed.
    """

    names: tuple[str, ...]
    storage: np.ndarray
    begin_s: np.ndarray
    end_s: np.ndarray


def lifetimes(plan: Plan, spans: Sequence[Span], later: Releases | None = None) -> Lifetimes:
    """Lifetimes of the instances that the spans of a predicted or measured timeline of `plan` access. `later`: `Scratch.releases`.

    An instance whose last access, or the task that releases it, is not among the spans is never freed.
    """
    names, task_of, border, is_fed, _, _ = plan.derived(_accesses)
    if not names or not spans:
        return Lifetimes(names, np.empty(0, np.int64), np.empty(0), np.empty(0))
    begins, ends, after = [], [], plan.derived(_releasing, later) if later is not None else ()
    times_s = _by_iteration(plan, spans)
    for iteration, (started, ended) in times_s.items():
        first = np.minimum.reduceat(started[task_of], border)
        first[is_fed] = np.where(np.isfinite(first[is_fed]), started.min(), first[is_fed])
        begins.append(first)
        ends.append(np.maximum.reduceat(ended[task_of], border))
        for later_by, places, tasks in after:
            releasing = times_s.get(iteration + later_by)
            ends[-1][places] = np.maximum(ends[-1][places], releasing[1][tasks] if releasing is not None else np.inf)
    return Lifetimes(names, np.tile(np.arange(len(names)), len(begins)), np.concatenate(begins), np.concatenate(ends))


def _releasing(plan: Plan, later: Releases) -> list[tuple[int, list[int], list[int]]]:
    """Which tasks release storages in steps that repeat: by how many iterations a task is ahead, the storages, and the task of each."""
    number = {name: place for place, name in enumerate(plan.derived(_accesses).names)}
    released_by: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for index, items in enumerate(later.steady):
        for name, age in items:
            if name in number:
                places, tasks = released_by[age - plan.tasks[index].lag]
                places.append(number[name])
                tasks.append(index)
    return [(later_by, *own) for later_by, own in released_by.items()]


class _Accesses(NamedTuple):
    """All accesses of one iteration, storage by storage, so that `reduceat` finds first starts and last ends in one pass.

    `names`: the per-iteration storages. `task_of`: by access, the index of the task. `border`: by storage, its first access. `is_fed`: by
    storage, whether it is an input's. `sizes`, `places`: by storage, its bytes and its device.
    """

    names: tuple[str, ...]
    task_of: np.ndarray
    border: np.ndarray
    is_fed: np.ndarray
    sizes: np.ndarray
    places: np.ndarray


def _accesses(plan: Plan) -> _Accesses:
    owner, carried = owners(plan), plan.carried
    used = [tuple(dict.fromkeys(owner.get(name, name) for name in names)) for names in plan.instances]
    names = tuple(name for name in dict.fromkeys(name for accessed in used for name in accessed) if name not in carried)
    number = {name: position for position, name in enumerate(names)}
    accesses = sorted((number[name], index) for index, accessed in enumerate(used) for name in accessed if name in number)
    storage_of = np.array([storage for storage, _ in accesses], np.int64)
    border = np.searchsorted(storage_of, np.arange(len(names)))
    fed = {value.storage for value in plan.values.values() if value.kind == INPUT}
    return _Accesses(
        names,
        np.array([index for _, index in accesses], np.int64),
        border,
        np.array([name in fed for name in names], bool),
        np.array([plan.storages[name].bytes for name in names], np.int64),
        np.array([plan.storages[name].device for name in names], str),
    )


def memory_over_time(plan: Plan, spans: Sequence[Span], scratch: Scratch = NO_SCRATCH) -> dict[str, Steps]:
    """Bytes allocated over time by device, and on the host if the plan has values there. At one instant, frees come before allocations.

    >>> from simulator.plan.bodies.host import Host
    >>> from simulator.plan.task import Storage, Task, Value
    >>> w, h = (Value(name, (1,), (1,), "float32", "cpu:0", kind, storage=name) for name, kind in (("w", "parameter"), ("h", "activation")))
    >>> forward = Task("forward", Host(1.0), "cpu:0", reads=(w.operand(),), writes=(h.operand(),))
    >>> backward = Task("backward", Host(2.0), "cpu:0", reads=(h.operand(),))
    >>> storages = {"w": Storage("w", 400, "cpu:0"), "h": Storage("h", 800, "cpu:0")}
    >>> plan = Plan("tiny", (forward, backward), {"w": w, "h": h}, storages)
    >>> spans = Span("forward", "cpu:0", "0", 0.0, 1.0, "forward"), Span("backward", "cpu:0", "0", 1.0, 3.0, "backward")
    >>> memory_over_time(plan, spans)
    {'cpu:0': ((0.0, 1200), (3.0, 400))}
    """
    start_s = min((span.start_s for span in spans), default=0.0)
    instances = lifetimes(plan, spans, scratch.releases)
    devices = np.array([plan.storages[name].device for name in instances.names] or [""])
    sizes = np.array([plan.storages[name].bytes for name in instances.names] or [0], np.int64)
    carried = carried_bytes(plan)
    for device in sorted({plan.storages[name].device for name in instances.names}):
        carried.setdefault(device, 0)
    return {
        device: steps_of(
            instances, sizes * (devices == device), base + scratch.kept_bytes.get(device, 0), start_s, while_running(spans, scratch, device)
        )
        for device, base in carried.items()
    }


def while_running(spans: Sequence[Span], scratch: Scratch, device: str) -> list[tuple[float, float, int]]:
    """(start, end, bytes) of what the tasks of a device hold for themselves while they run."""
    own = scratch.task_bytes
    return [(span.start_s, span.end_s, own[span.task]) for span in spans if own and span.device == device and span.task in own]


def steps_of(instances: Lifetimes, sizes: np.ndarray, base: int, start_s: float, others: Sequence[tuple[float, float, int]] = ()) -> Steps:
    """Bytes allocated over time by storages of the given sizes (0 omits a storage), on top of `base`; the first step is at `start_s`.

    `others`: begin, end and bytes of other allocations.
    """
    counted = (sizes > 0)[instances.storage]
    begin_s, end_s, held = (
        (np.array(column) for column in zip(*others, strict=True)) if others else (np.empty(0), np.empty(0), np.empty(0, int))
    )
    own = np.concatenate([sizes[instances.storage[counted]], held])
    times = np.concatenate([instances.begin_s[counted], begin_s, instances.end_s[counted], end_s])
    changes = np.concatenate([own, -own])
    finite = np.isfinite(times)
    times, changes = times[finite], changes[finite]
    order = np.lexsort((changes, times))
    times, total = times[order], base + np.cumsum(changes[order])
    latest = np.append(times[1:] != times[:-1], True) if len(times) else np.empty(0, bool)
    steps = tuple(zip(times[latest].tolist(), total[latest].tolist(), strict=True))
    return steps if steps and steps[0][0] <= start_s else ((start_s, base), *steps)


def summed_over_devices(memory: Mapping[str, Steps]) -> Steps:
    """Bytes that all devices of `memory` hold together, over time."""
    changes: list[tuple[float, int]] = []
    for steps in memory.values():
        before = 0
        for time_s, held in steps:
            changes.append((time_s, held - before))
            before = held
    totals: dict[float, int] = {}
    total = 0
    for time_s, change in sorted(changes):
        total += change
        totals[time_s] = total
    return tuple(totals.items())


def thinned(steps: Steps, most: int) -> Steps:
    """At most `most` of the steps: the highest of each short interval, and always the first, the last and the peak."""
    if len(steps) <= most:
        return steps
    (first_s, _), (last_s, _) = steps[0], steps[-1]
    bins = max(1, most - 2)
    highest: dict[int, tuple[float, int]] = {}
    for step in steps[1:-1]:
        place = min(bins - 1, int((step[0] - first_s) / (last_s - first_s) * bins))
        if place not in highest or step[1] > highest[place][1]:
            highest[place] = step
    return (steps[0], *highest.values(), steps[-1])


def peaks(memory: Mapping[str, Steps]) -> dict[str, int]:
    """The most bytes allocated at any time, by device."""
    return {device: max(held for _, held in steps) for device, steps in memory.items()}


def _by_iteration(plan: Plan, spans: Sequence[Span]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By iteration, start and end times by task index; infinite for tasks that have not run."""
    position = {task.name: index for index, task in enumerate(plan.tasks)}
    of_iteration: dict[int, list[Span]] = {}
    for span in spans:
        of_iteration.setdefault(span.iteration, []).append(span)
    times_s = {}
    for iteration, own in of_iteration.items():
        indices = [position[span.task] for span in own]
        started, ended = np.full(len(position), np.inf), np.full(len(position), np.inf)
        started[indices], ended[indices] = [span.start_s for span in own], [span.end_s for span in own]
        times_s[iteration] = started, ended
    return times_s


# What each memory of a machine must hold at its highest moment, against its size.


class TooLargeError(SchedcastError):
    """A strategy does not even plan a job, because what it must hold exceeds a memory by `excess_bytes`."""

    code = Code.MEMORY

    def __init__(self, message: str, excess_bytes: int):
        super().__init__(message)
        self.excess_bytes = excess_bytes


def bytes_by_memory(memory: Mapping[str, Steps], machine: Machine) -> dict[str, int]:
    """The most bytes in each of the machine's memories at one moment. On a CPU this includes the host's bytes.

    `memory`: bytes over time by device (`over_time.memory_over_time`).
    """
    places: dict[str, dict[str, Steps]] = {}
    for place, steps in memory.items():
        places.setdefault(machine.memory_name(place), {})[place] = steps
    names = {own.name for own in machine.memories}
    return {name: max(count for _, count in summed_over_devices(steps)) for name, steps in places.items() if name in names}


#: What PyTorch cannot allocate of a GPU's memory, of any size. The driver's share: 0.9 of 80 GiB (PyTorch's out-of-memory messages say
#: "total capacity of 79.10 GiB" of an H100, 79.15 GiB of an A100; of 16 GiB of a V100, nvidia-smi shows 16,160 MiB). The CUDA context of
#: the process: 0.5 GiB (the same messages: memory in use less what PyTorch has reserved, with one GPU), and at most an eighth of a memory,
#: or of a limit, that is no real card's. NCCL's buffers come on top, 1 to 5 GiB in such messages; they are not counted.
_DRIVER_SHARE, _CONTEXT_BYTES, _CONTEXT_SHARE = 0.9 / 80, 2**29, 1 / 8


def beside_bytes(size_bytes: int) -> int:
    """Bytes of a GPU's memory, or of a limit of it, that its driver and the CUDA context of the process take."""
    return int(size_bytes * _DRIVER_SHARE) + min(_CONTEXT_BYTES, int(size_bytes * _CONTEXT_SHARE))


def memory_needs(
    allocated_bytes: Mapping[str, int], machine: Machine, reserved_bytes: Mapping[str, int] = MappingProxyType({})
) -> tuple[MemoryNeed, ...]:
    """The needs by memory, in the machine's order; unused memories are omitted.

    `reserved_bytes`: what PyTorch's allocator reserves of GPUs' memories. A GPU needs that, at least what is allocated, and `beside_bytes`.
    """
    gpus = {device.memory for device in machine.devices if device.kind == "gpu"}
    needs = []
    for memory in machine.memories:
        allocated, reserved = allocated_bytes.get(memory.name), reserved_bytes.get(memory.name)
        if allocated is not None:
            beside = beside_bytes(memory.size_bytes) if memory.name in gpus else 0
            needs.append(
                MemoryNeed(
                    name=memory.name,
                    needed_bytes=max(allocated, reserved or 0) + beside,
                    size_bytes=memory.size_bytes,
                    allocated_bytes=allocated,
                    reserved_bytes=reserved,
                )
            )
    return tuple(needs)


def excess_bytes(needs: Iterable[MemoryNeed]) -> int:
    """By how many bytes the memory that is exceeded most is too small; negative if all are large enough."""
    return max((need.needed_bytes - need.size_bytes for need in needs), default=0)
