"""Who holds a device's memory when it holds the most: by kind of value, and the largest storages with their layers."""

from collections.abc import Mapping, Sequence

from simulator.machine.machine import HOST
from simulator.memory.kinds import storage_kinds
from simulator.memory.over_time import Steps, lives
from simulator.plan.plan import Plan
from traces.memory_use import AtPeak, Holder
from traces.timeline import Span, Timeline

#: Storages that are named.
NAMED = 5


def at_peak(plan: Plan, timeline: Timeline, memory: Mapping[str, Steps]) -> tuple[AtPeak, ...]:
    """What every device of the plan holds at the first of its highest moments; one in the steady period, where there is one.

    `memory` as `memory_over_time` gives it for the timeline's spans.
    """
    found, kinds, layers = lives(plan, timeline.spans), storage_kinds(plan), _layers(plan)
    copies = _copies(plan)
    made = []
    for device in plan.devices:
        moment_s = _moment(memory[device], timeline.window_s)
        there = (found.begin_s <= moment_s) & (found.end_s > moment_s)
        held = [(name, plan.storages[name].bytes) for name in plan.carried if plan.storages[name].device == device]
        fresh = [(found.names[i], plan.storages[found.names[i]].bytes) for i in found.storage[there].tolist()]
        fresh = [(name, size) for name, size in fresh if plan.storages[name].device == device]
        by_kind: dict[str, int] = {}
        for name, size in (*held, *fresh):
            by_kind[kinds[name]] = by_kind.get(kinds[name], 0) + size
        running = _running(timeline.spans, device, moment_s)
        start = timeline.window_s[0]
        made.append(
            AtPeak(
                device=device,
                bytes=sum(by_kind.values()),
                time_s=moment_s - start,
                task=running.task if running else "",
                layer=running.layer if running else "",
                phase=running.phase if running else "",
                by_kind={kind: size for kind, size in sorted(by_kind.items(), key=lambda item: -item[1]) if size},
                largest=tuple(
                    Holder(storage=name, kind=kinds[name], layer=layers.get(name, ""), bytes=size)
                    for name, size in sorted(fresh, key=lambda item: (-item[1], item[0]))[:NAMED]
                ),
                replicated_bytes=sum(size for name, size in held if len(copies.get(name, ())) > 1),
            )
        )
    return tuple(made)


def _moment(each: Steps, window_s: tuple[float, float]) -> float:
    highest = max(held for _, held in each)
    moments = [time_s for time_s, held in each if held == highest]
    return next((time_s for time_s in moments if window_s[0] <= time_s < window_s[1]), moments[0])


def _running(spans: Sequence[Span], device: str, moment_s: float) -> Span | None:
    """What started last of what runs on a device then, before what does not compute."""
    here = [span for span in spans if span.device == device and span.start_s <= moment_s < span.end_s]
    return max(here, key=lambda span: (bool(span.layer), span.start_s), default=None)


def _layers(plan: Plan) -> dict[str, str]:
    """Storage -> layer of the first task that writes it, or else changes or reads it."""
    found: dict[str, str] = {}
    for pick in ("writes", "mutates", "reads"):
        for task in plan.tasks:
            for operand in getattr(task, pick):
                if task.layer:
                    found.setdefault(plan.storage_of(operand), task.layer)
    return found


def _copies(plan: Plan) -> dict[str, set[str]]:
    """Carried storage -> devices (the host is none) that hold the same one of the job's tensors."""
    places: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for value in plan.values.values():
        if value.storage in plan.carried and value.source is not None and value.device != HOST:
            key = f"{value.source.value}{value.source.views}"
            places.setdefault(key, set()).add(value.device)
            sources.setdefault(value.storage, set()).add(key)
    return {storage: set().union(*(places[key] for key in keys)) for storage, keys in sources.items()}
