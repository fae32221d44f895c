"""Bytes over time: the one rule, for the simulator, the validator and the executors.

A carried storage lives always. Every other storage has one instance per iteration, which lives from the start of its first access to the
end of its last; an executor drops it when as many tasks have accessed it as `access_counts` says. Inputs are fed: their instance is there
from the start of its iteration's first task.
"""

from collections.abc import Sequence

import numpy as np

from traces.timeline import Span

from .plan import INPUT, Plan


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


def carried_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of carried storages by device."""
    held = dict.fromkeys(plan.devices, 0)
    for name in plan.carried:
        storage = plan.storages[name]
        held[storage.device] = held.get(storage.device, 0) + storage.bytes
    return held


def memory_over_time(plan: Plan, spans: Sequence[Span]) -> dict[str, tuple[tuple[float, int], ...]]:
    """(time in s, bytes held from then on) by device, from the spans of a predicted or a measured timeline of `plan`.

    An instance whose last access is not among the spans stays. At one instant what ends goes before what starts comes.
    """
    begun = min((span.start_s for span in spans), default=0.0)
    held = carried_bytes(plan)
    changes = _changes(plan, spans)
    for device in sorted({plan.storages[name].device for name in access_counts(plan)}):
        held.setdefault(device, 0)
    result = {}
    for device, base in held.items():
        times, grown = changes.get(device, (np.empty(0), np.empty(0, np.int64)))
        order = np.lexsort((grown, times))
        times, total = times[order], base + np.cumsum(grown[order])
        latest = np.append(times[1:] != times[:-1], True) if len(times) else np.empty(0, bool)
        steps = list(zip(times[latest].tolist(), total[latest].tolist(), strict=True))
        result[device] = tuple(steps if steps and steps[0][0] <= begun else [(begun, base), *steps])
    return result


def peaks(memory: dict[str, tuple[tuple[float, int], ...]]) -> dict[str, int]:
    """The most bytes held at any time, by device."""
    return {device: max(held for _, held in steps) for device, steps in memory.items()}


def _changes(plan: Plan, spans: Sequence[Span]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(times, bytes that come or go) by device."""
    used = plan.instances
    names = list(access_counts(plan))
    if not names or not spans:
        return {}
    # All accesses of one iteration, storage by storage, so that reduceat finds first starts and last ends in one pass.
    number = {name: position for position, name in enumerate(names)}
    accesses = sorted((number[name], index) for index, storages in enumerate(used) for name in storages)
    storage_of = np.array([storage for storage, _ in accesses])
    task_of = np.array([index for _, index in accesses])
    border = np.searchsorted(storage_of, np.arange(len(names)))
    devices = np.array([plan.storages[name].device for name in names])
    sizes = np.array([plan.storages[name].bytes for name in names], np.int64)
    fed = {value.storage for value in plan.values.values() if value.kind == INPUT}
    is_fed = np.array([name in fed for name in names])

    times: dict[str, list[np.ndarray]] = {device: [] for device in devices.tolist()}
    grown: dict[str, list[np.ndarray]] = {device: [] for device in devices.tolist()}
    for starts, ends in _by_iteration(plan, spans):
        first = np.minimum.reduceat(starts[task_of], border)
        last = np.maximum.reduceat(ends[task_of], border)
        first[is_fed] = np.where(np.isfinite(first[is_fed]), starts.min(), first[is_fed])
        for device in times:
            here = devices == device
            for moments, sign in ((first, 1), (last, -1)):
                known = here & np.isfinite(moments)
                times[device].append(moments[known])
                grown[device].append(sign * sizes[known])
    return {device: (np.concatenate(times[device]), np.concatenate(grown[device])) for device in times}


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
