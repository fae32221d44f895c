"""What occupies a device's memory at its peak: bytes by kind of value, and the largest storages with their layers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from simulator.engine.memory.kinds import storage_kinds
from simulator.engine.memory.over_time import Steps, lifetimes
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import SCRATCH
from traces.documents.timeline import AtPeak, Holder, Span, Timeline

#: Number of storages that are listed.
LISTED = 5


def at_peak(
    plan: Plan, timeline: Timeline, memory: Mapping[str, Steps], kept_bytes: Mapping[str, int] = MappingProxyType({})
) -> tuple[AtPeak, ...]:
    """The contents of every device's memory at its first peak; a peak in the steady period is preferred to one outside it.

    `memory`: the result of `memory_over_time` for the timeline's spans and `kept_bytes`, which count as scratch.
    """
    instances, kinds, layers = lifetimes(plan, timeline.spans), plan.derived(storage_kinds), plan.derived(_layers)
    copies = plan.derived(_copies)
    carried_of, spans_of = defaultdict(list), defaultdict(list)
    for name in plan.carried:
        carried_of[plan.storages[name].device].append((name, plan.storages[name].bytes))
    for span in timeline.spans:
        spans_of[span.device].append(span)
    numbers = {device: number for number, device in enumerate(plan.devices)}
    device_of = np.array([numbers.get(plan.storages[name].device, -1) for name in instances.names], dtype=int)[instances.storage]
    peaks = []
    for device, number in numbers.items():
        moment_s = _peak_time(memory[device], timeline.window_s)
        alive = (device_of == number) & (instances.begin_s <= moment_s) & (instances.end_s > moment_s)
        names = [instances.names[i] for i in instances.storage[alive].tolist()]
        carried, fresh = carried_of[device], [(name, plan.storages[name].bytes) for name in names]
        by_kind: dict[str, int] = {SCRATCH: kept_bytes.get(device, 0)}
        for name, size in (*carried, *fresh):
            by_kind[kinds[name]] = by_kind.get(kinds[name], 0) + size
        running = _running(spans_of[device], moment_s)
        start = timeline.window_s[0]
        peaks.append(
            AtPeak(
                device=device,
                bytes=sum(by_kind.values()),
                time_s=moment_s - start,
                task=running.task if running else "",
                layer=running.layer if running else "",
                phase=running.phase if running else "",
                by_kind={kind: size for kind, size in sorted(by_kind.items(), key=lambda item: (-item[1], item[0])) if size},
                largest=tuple(
                    Holder(storage=name, kind=kinds[name], layer=layers.get(name, ""), bytes=size)
                    for name, size in sorted(fresh, key=lambda item: (-item[1], item[0]))[:LISTED]
                ),
                replicated_bytes=sum(size for name, size in carried if len(copies.get(name, ())) > 1),
            )
        )
    return tuple(peaks)


def _peak_time(steps: Steps, window_s: tuple[float, float]) -> float:
    """The first time in `window_s` at which the most bytes are held, or the first such time at all if none is in the window."""
    highest = max(held for _, held in steps)
    moments = [time_s for time_s, held in steps if held == highest]
    return next((time_s for time_s in moments if window_s[0] <= time_s < window_s[1]), moments[0])


def _running(spans: Sequence[Span], moment_s: float) -> Span | None:
    """The span of a device that runs at `moment_s`: one with a layer is preferred, then the one that started last."""
    running = [span for span in spans if span.start_s <= moment_s < span.end_s]
    return max(running, key=lambda span: (bool(span.layer), span.start_s), default=None)


def _layers(plan: Plan) -> dict[str, str]:
    """Storage -> layer of the first task that writes it, or else of the first that mutates or reads it."""
    layers: dict[str, str] = {}
    for pick in ("writes", "mutates", "reads"):
        for task in plan.tasks:
            for operand in getattr(task, pick):
                if task.layer:
                    layers.setdefault(plan.storage_of(operand), task.layer)
    return layers


def _copies(plan: Plan) -> dict[str, set[str]]:
    """Carried storage -> devices, not counting the host, that hold a copy of the same tensor of the job."""
    places: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for value in plan.values.values():
        if value.storage in plan.carried and value.source is not None and value.device != HOST:
            key = f"{value.source.value}{value.source.views}"
            places.setdefault(key, set()).add(value.device)
            sources.setdefault(value.storage, set()).add(key)
    return {storage: set().union(*(places[key] for key in keys)) for storage, keys in sources.items()}
