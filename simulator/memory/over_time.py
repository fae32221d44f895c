"""Bytes over time: the one rule, for the simulator, the validator and the executors.

A carried storage lives always. Every other storage has one instance per iteration, which lives from the start of its first access to the
end of its last; an executor drops it when as many tasks have accessed it as `access_counts` says. Inputs are fed: their instance is there
from the start of its iteration's first task. What a copy makes a second name of (`Copy(means="alias")`) is one memory, that of the first
name, until no name of it is accessed any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.plan.plan import Plan
from simulator.plan.task import INPUT
from traces.timeline import Span

#: (time in s, bytes held from then on), in order of time.
Steps = tuple[tuple[float, int], ...]


def access_counts(plan: Plan) -> dict[str, int]:
    """How many tasks of one iteration access each per-iteration storage. After that many have, its instance can go."""
    counts: dict[str, int] = {}
    for names in plan.instances:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return counts


def last_accesses(plan: Plan) -> list[tuple[str, ...]]:
    """Per task, the per-iteration storages whose last access in the sequential program it is."""
    used = plan.instances
    last: dict[str, int] = {}
    for index in sorted(range(len(used)), key=lambda i: plan.tasks[i].lag):  # an iteration meets its tasks in order of (lag, issue)
        for name in used[index]:
            last[name] = index
    return [tuple(name for name in names if last[name] == index) for index, names in enumerate(used)]


def owners(plan: Plan) -> dict[str, str]:
    """Storage -> the storage whose memory it is, for those that a copy makes a second name of another."""
    owner: dict[str, str] = {}
    for task in plan.tasks:
        if task.body.aliases:
            for read, write in zip(task.reads, task.writes, strict=bool(task.writes)):
                source = plan.storage_of(read)
                owner[plan.storage_of(write)] = owner.get(source, source)
    return owner


def carried_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of carried storages by device."""
    held = dict.fromkeys(plan.devices, 0)
    for name in plan.carried:
        storage = plan.storages[name]
        held[storage.device] = held.get(storage.device, 0) + storage.bytes
    return held


@dataclass(frozen=True)
class Lives:
    """When instances of storages are there: entry i is of `names[storage[i]]`, from `begin_s[i]` (inf: never) to `end_s[i]` (inf: on)."""

    names: tuple[str, ...]
    storage: np.ndarray
    begin_s: np.ndarray
    end_s: np.ndarray


def lives(plan: Plan, spans: Sequence[Span]) -> Lives:
    """The instances that the spans of a predicted or a measured timeline of `plan` make. One whose last access is not among them stays."""
    owner, carried = owners(plan), plan.carried
    used = [tuple(dict.fromkeys(owner.get(name, name) for name in names)) for names in plan.instances]
    names = tuple(name for name in dict.fromkeys(name for each in used for name in each) if name not in carried)
    if not names or not spans:
        return Lives(names, np.empty(0, np.int64), np.empty(0), np.empty(0))
    # All accesses of one iteration, storage by storage, so that reduceat finds first starts and last ends in one pass.
    number = {name: position for position, name in enumerate(names)}
    accesses = sorted((number[name], index) for index, each in enumerate(used) for name in each if name in number)
    storage_of = np.array([storage for storage, _ in accesses])
    task_of = np.array([index for _, index in accesses])
    border = np.searchsorted(storage_of, np.arange(len(names)))
    fed = {value.storage for value in plan.values.values() if value.kind == INPUT}
    is_fed = np.array([name in fed for name in names])
    begins, ends = [], []
    for started, ended in _by_iteration(plan, spans):
        first = np.minimum.reduceat(started[task_of], border)
        first[is_fed] = np.where(np.isfinite(first[is_fed]), started.min(), first[is_fed])
        begins.append(first)
        ends.append(np.maximum.reduceat(ended[task_of], border))
    return Lives(names, np.tile(np.arange(len(names)), len(begins)), np.concatenate(begins), np.concatenate(ends))


def memory_over_time(plan: Plan, spans: Sequence[Span]) -> dict[str, Steps]:
    """Bytes held over time by device (and by the host, where a plan has values there).

    At one instant what ends goes before what starts comes.
    """
    begun = min((span.start_s for span in spans), default=0.0)
    found = lives(plan, spans)
    devices = np.array([plan.storages[name].device for name in found.names] or [""])
    sizes = np.array([plan.storages[name].bytes for name in found.names] or [0], np.int64)
    held = carried_bytes(plan)
    for device in sorted({plan.storages[name].device for name in found.names}):
        held.setdefault(device, 0)
    return {device: steps(found, sizes * (devices == device), base, begun) for device, base in held.items()}


def steps(found: Lives, sizes: np.ndarray, base: int, begun: float) -> Steps:
    """Bytes held over time, `base` of them always, of storages of those sizes (0: does not count); from `begun` on at the latest."""
    counted = (sizes > 0)[found.storage]
    own = sizes[found.storage[counted]]
    times = np.concatenate([found.begin_s[counted], found.end_s[counted]])
    grown = np.concatenate([own, -own])
    known = np.isfinite(times)
    times, grown = times[known], grown[known]
    order = np.lexsort((grown, times))
    times, total = times[order], base + np.cumsum(grown[order])
    latest = np.append(times[1:] != times[:-1], True) if len(times) else np.empty(0, bool)
    made = tuple(zip(times[latest].tolist(), total[latest].tolist(), strict=True))
    return made if made and made[0][0] <= begun else ((begun, base), *made)


def together(memory: Mapping[str, Steps]) -> Steps:
    """Bytes that several devices hold at the same moment, over time."""
    changes: list[tuple[float, int]] = []
    for each in memory.values():
        before = 0
        for time_s, held in each:
            changes.append((time_s, held - before))
            before = held
    found: dict[float, int] = {}
    total = 0
    for time_s, change in sorted(changes):
        total += change
        found[time_s] = total
    return tuple(found.items())


def thinned(each: Steps, most: int) -> Steps:
    """At most `most` steps that show the same: of many steps within a short time, the highest. First, last and peak stay."""
    if len(each) <= most:
        return each
    (first_s, _), (last_s, _) = each[0], each[-1]
    bins = max(1, most - 2)
    kept: dict[int, tuple[float, int]] = {}
    for step in each[1:-1]:
        place = min(bins - 1, int((step[0] - first_s) / (last_s - first_s) * bins))
        if place not in kept or step[1] > kept[place][1]:
            kept[place] = step
    return (each[0], *kept.values(), each[-1])


def peaks(memory: Mapping[str, Steps]) -> dict[str, int]:
    """The most bytes held at any time, by device."""
    return {device: max(held for _, held in each) for device, each in memory.items()}


def _by_iteration(plan: Plan, spans: Sequence[Span]):
    """Per iteration, start and end by task index; infinite where the task has not run."""
    position = {task.name: index for index, task in enumerate(plan.tasks)}
    tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for span in spans:
        table = tables.get(span.iteration)
        if table is None:
            table = tables[span.iteration] = (np.full(len(position), np.inf), np.full(len(position), np.inf))
        index = position[span.task]
        table[0][index] = span.start_s
        table[1][index] = span.end_s
    return tables.values()
