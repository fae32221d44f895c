"""Bytes on a device by kind (parameters, optimizer state, activations, ...) over the steady period."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from simulator.engine.memory.over_time import Steps, lifetimes, steps_of, thinned
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, SCRATCH
from traces.documents.timeline import HeldByKind, Span, Timeline

#: Kinds in the order in which figures stack them. A storage with values of several kinds has the kind that comes first.
STACKED = (PARAMETER, OPTIMIZER_STATE, BUFFER, INPUT, ACTIVATION, GRADIENT, SCRATCH)
#: Most instants of a steady period, and most steps of a timeline, in a document: more than a figure or a screen is wide.
MOST_INSTANTS, MOST_STEPS = 600, 4000


def storage_kinds(plan: Plan) -> dict[str, str]:
    """The kind of every storage."""
    rank = {kind: place for place, kind in enumerate(STACKED)}
    kinds: dict[str, str] = {}
    for value in plan.values.values():
        if value.storage not in kinds or rank[value.kind] < rank[kinds[value.storage]]:
            kinds[value.storage] = value.kind
    return kinds


def memory_by_kind(
    plan: Plan,
    spans: Sequence[Span],
    window_s: tuple[float, float],
    most: int = MOST_INSTANTS,
    kept_bytes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, HeldByKind]:
    """Bytes by kind within `window_s`, per device. `kept_bytes`: as in `memory_over_time`; they count as scratch.

    If there are more than `most` instants, those at which the device holds the most are kept.
    """
    instances, kinds = lifetimes(plan, spans), plan.derived(storage_kinds)
    devices = dict.fromkeys((*plan.devices, *(plan.storages[name].device for name in (*plan.carried, *instances.names))))
    sizes = np.array([plan.storages[name].bytes for name in instances.names] or [0], np.int64)
    place = np.array([(plan.storages[name].device, kinds[name]) for name in instances.names] or [("", "")])
    carried: dict[tuple[str, str], int] = {(device, SCRATCH): size for device, size in kept_bytes.items()}
    for name in plan.carried:
        where = (plan.storages[name].device, kinds[name])
        carried[where] = carried.get(where, 0) + plan.storages[name].bytes
    memory = {}
    for device in devices:
        by_kind = {}
        for kind in STACKED:
            chosen = (place[:, 0] == device) & (place[:, 1] == kind)
            if (device, kind) in carried or bool(chosen.any()):
                by_kind[kind] = steps_of(instances, sizes * chosen, carried.get((device, kind), 0), window_s[0])
        memory[device] = _on_one_axis(by_kind, window_s, most)
    return memory


def with_memory(
    timeline: Timeline,
    plan: Plan,
    memory: Mapping[str, Steps],
    limits_bytes: Mapping[str, int] | None = None,
    kept_bytes: Mapping[str, int] = MappingProxyType({}),
) -> Timeline:
    """`timeline` with its memory over time, thinned to what figures show, and its memory by kind."""
    return replace(
        timeline,
        memory={device: thinned(steps, MOST_STEPS) for device, steps in memory.items()},
        memory_kinds=memory_by_kind(plan, timeline.spans, timeline.window_s, kept_bytes=kept_bytes),
        limits_bytes=dict(limits_bytes or {}),
    )


def _on_one_axis(by_kind: Mapping[str, Steps], window_s: tuple[float, float], most: int) -> HeldByKind:
    """The steps of all kinds on one time axis, within the window."""
    start, end = window_s
    times = np.unique([start, *(time_s for steps in by_kind.values() for time_s, _ in steps if start < time_s < end)])
    held = {}
    for kind, steps in by_kind.items():
        at = np.searchsorted([time_s for time_s, _ in steps], times, side="right") - 1
        values = np.array([count for _, count in steps])
        held[kind] = np.where(at >= 0, values[np.maximum(at, 0)], values[0])
    if len(times) > most:
        total = sum(held.values())
        bins = np.minimum(((times - start) / (end - start) * most).astype(int), most - 1)
        chosen = np.lexsort((-total, bins))  # within a bin, the highest first
        chosen = np.sort(chosen[np.append(True, bins[chosen][1:] != bins[chosen][:-1])])
        times, held = times[chosen], {kind: counts[chosen] for kind, counts in held.items()}
    return HeldByKind(tuple(times.tolist()), {kind: tuple(counts.tolist()) for kind, counts in held.items()})
