"""What the bytes on a device are: parameters, optimizer state, activations and so on, over the steady period."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.memory.over_time import Steps, lives, steps, thinned
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, SCRATCH
from traces.memory_use import HeldByKind
from traces.timeline import Span, Timeline

#: In the order in which pictures stack them; of a storage with values of several kinds, the first says what it is.
STACKED = (PARAMETER, OPTIMIZER_STATE, BUFFER, INPUT, ACTIVATION, GRADIENT, SCRATCH)
#: Instants of a steady period, and of a timeline, that a document keeps: more than a picture is wide, or a screen shows.
MOST_INSTANTS, MOST_STEPS = 600, 4000


def storage_kinds(plan: Plan) -> dict[str, str]:
    """The kind of every storage's values."""
    rank = {kind: place for place, kind in enumerate(STACKED)}
    found: dict[str, str] = {}
    for value in plan.values.values():
        if value.storage not in found or rank[value.kind] < rank[found[value.storage]]:
            found[value.storage] = value.kind
    return found


def memory_by_kind(plan: Plan, spans: Sequence[Span], window_s: tuple[float, float], most: int = MOST_INSTANTS) -> dict[str, HeldByKind]:
    """Bytes by kind within `window_s`, by device; of more than `most` instants, those at which the device holds the most."""
    found, kinds = lives(plan, spans), storage_kinds(plan)
    devices = dict.fromkeys((*plan.devices, *(plan.storages[name].device for name in (*plan.carried, *found.names))))
    sizes = np.array([plan.storages[name].bytes for name in found.names] or [0], np.int64)
    place = np.array([(plan.storages[name].device, kinds[name]) for name in found.names] or [("", "")])
    always: dict[tuple[str, str], int] = {}
    for name in plan.carried:
        where = (plan.storages[name].device, kinds[name])
        always[where] = always.get(where, 0) + plan.storages[name].bytes
    made = {}
    for device in devices:
        own = {
            kind: steps(found, sizes * ((place[:, 0] == device) & (place[:, 1] == kind)), always.get((device, kind), 0), window_s[0])
            for kind in STACKED
            if (device, kind) in always or bool(((place[:, 0] == device) & (place[:, 1] == kind)).any())
        }
        made[device] = _joined(own, window_s, most)
    return made


def with_memory(timeline: Timeline, plan: Plan, memory: Mapping[str, Steps], limits_bytes: Mapping[str, int] | None = None) -> Timeline:
    """`timeline` with its memory over time, thinned out to what pictures show, and by kind."""
    return replace(
        timeline,
        memory={device: thinned(each, MOST_STEPS) for device, each in memory.items()},
        memory_kinds=memory_by_kind(plan, timeline.spans, timeline.window_s),
        limits_bytes=dict(limits_bytes or {}),
    )


def _joined(own: Mapping[str, Steps], window_s: tuple[float, float], most: int) -> HeldByKind:
    """The kinds' steps on one axis of time, within the window."""
    start, end = window_s
    times = np.unique([start, *(time_s for each in own.values() for time_s, _ in each if start < time_s < end)])
    held = {}
    for kind, each in own.items():
        at = np.searchsorted([time_s for time_s, _ in each], times, side="right") - 1
        values = np.array([count for _, count in each])
        held[kind] = np.where(at >= 0, values[np.maximum(at, 0)], values[0])
    if len(times) > most:
        total = sum(held.values())
        bins = np.minimum(((times - start) / (end - start) * most).astype(int), most - 1)
        chosen = np.lexsort((-total, bins))  # within a bin, the highest first
        chosen = np.sort(chosen[np.append(True, bins[chosen][1:] != bins[chosen][:-1])])
        times, held = times[chosen], {kind: each[chosen] for kind, each in held.items()}
    return HeldByKind(tuple(times.tolist()), {kind: tuple(each.tolist()) for kind, each in held.items()})
