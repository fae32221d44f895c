"""Bytes on a device by kind (parameters, optimizer state, activations, ...) over the steady period."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from simulator.engine.memory.over_time import NO_SCRATCH, Scratch, Steps, lifetimes, steps_of, thinned, while_running
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, SCRATCH
from traces import units
from traces.documents.comparison import MemoryNeed
from traces.documents.timeline import AtPeak, HeldByKind, Holder, Span, Timeline

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
    scratch: Scratch = NO_SCRATCH,
) -> dict[str, HeldByKind]:
    """Bytes by kind within `window_s`, per device. `scratch`: as in `memory_over_time`.

    If there are more than `most` instants, those with the most allocated bytes are retained.
    """
    instances, kinds = lifetimes(plan, spans, scratch.releases), plan.derived(storage_kinds)
    devices = dict.fromkeys((*plan.devices, *(plan.storages[name].device for name in (*plan.carried, *instances.names))))
    sizes = np.array([plan.storages[name].bytes for name in instances.names] or [0], np.int64)
    place = np.array([(plan.storages[name].device, kinds[name]) for name in instances.names] or [("", "")])
    carried: dict[tuple[str, str], int] = {(device, SCRATCH): size for device, size in scratch.kept_bytes.items()}
    for name in plan.carried:
        where = (plan.storages[name].device, kinds[name])
        carried[where] = carried.get(where, 0) + plan.storages[name].bytes
    memory = {}
    for device in devices:
        by_kind = {}
        for kind in STACKED:
            chosen = (place[:, 0] == device) & (place[:, 1] == kind)
            others = while_running(spans, scratch, device) if kind == SCRATCH else []
            if (device, kind) in carried or others or bool(chosen.any()):
                by_kind[kind] = steps_of(instances, sizes * chosen, carried.get((device, kind), 0), window_s[0], others)
        memory[device] = _on_one_axis(by_kind, window_s, most)
    return memory


def with_memory(timeline: Timeline, plan: Plan, limits_bytes: Mapping[str, int] | None = None, scratch: Scratch = NO_SCRATCH) -> Timeline:
    """`timeline` with its memory over time thinned to what figures show, and by kind. `scratch`: that of its memory."""
    return replace(
        timeline,
        memory={device: thinned(steps, MOST_STEPS) for device, steps in timeline.memory.items()},
        memory_kinds=memory_by_kind(plan, timeline.spans, timeline.window_s, scratch=scratch),
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
        total = np.sum(list(held.values()), axis=0)
        bins = np.minimum(((times - start) / (end - start) * most).astype(int), most - 1)
        chosen = np.lexsort((-total, bins))  # within a bin, the highest first
        chosen = np.sort(chosen[np.append(True, bins[chosen][1:] != bins[chosen][:-1])])
        times, held = times[chosen], {kind: counts[chosen] for kind, counts in held.items()}
    return HeldByKind(tuple(times.tolist()), {kind: tuple(counts.tolist()) for kind, counts in held.items()})


# What occupies a device's memory at its peak: bytes by kind of value, and the largest storages with their layers.


#: Number of storages that are listed.
LISTED = 5


def at_peak(plan: Plan, timeline: Timeline, scratch: Scratch = NO_SCRATCH) -> tuple[AtPeak, ...]:
    """The contents of every device's memory at its first peak; a peak in the steady period is preferred to one outside it.

    `scratch`: that of the timeline's memory.
    """
    instances, kinds = lifetimes(plan, timeline.spans, scratch.releases), plan.derived(storage_kinds)
    layers, copies = plan.derived(_layers), plan.derived(_copies)
    carried_of, spans_of = defaultdict(list), defaultdict(list)
    for name in plan.carried:
        carried_of[plan.storages[name].device].append((name, plan.storages[name].bytes))
    for span in timeline.spans:
        spans_of[span.device].append(span)
    numbers = {device: number for number, device in enumerate(plan.devices)}
    device_of = np.array([numbers.get(plan.storages[name].device, -1) for name in instances.names], dtype=int)[instances.storage]
    peaks = []
    for device, number in numbers.items():
        moment_s = _peak_time(timeline.memory[device], timeline.window_s)
        alive = (device_of == number) & (instances.begin_s <= moment_s) & (instances.end_s > moment_s)
        names = [instances.names[i] for i in instances.storage[alive].tolist()]
        carried, fresh = carried_of[device], [(name, plan.storages[name].bytes) for name in names]
        own = sum(size for start_s, end_s, size in while_running(spans_of[device], scratch, device) if start_s <= moment_s < end_s)
        by_kind: dict[str, int] = {SCRATCH: scratch.kept_bytes.get(device, 0) + own}
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
    """The first time in `window_s` at which the most bytes are allocated, or the first such time overall if none is in the window."""
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


# What a memory holds, and that it is too small, in words: the same in predictions and in refusals.


#: The kinds of values, in words.
KIND_NAMES = MappingProxyType({
    PARAMETER: "parameters", OPTIMIZER_STATE: "optimizer state", BUFFER: "buffers", INPUT: "inputs", ACTIVATION: "activations",
    GRADIENT: "gradients", SCRATCH: "scratch",
})  # fmt: skip
#: A storage is named if it holds at least this share of the peak.
NAMED_SHARE = 0.02


def peak_words(peak: AtPeak) -> str:
    """Return a phrase that says what a device holds at its peak, and when the peak is."""
    when = f" at {units.duration(peak.time_s)}" if peak.time_s >= 0 else " before the steady state"
    where = f" in {peak.layer} {peak.phase}" if peak.layer else f" in {peak.task}" if peak.task else ""
    phrases = []
    for kind, size in peak.by_kind.items():
        own = [storage for storage in peak.largest if storage.kind == kind and storage.bytes >= NAMED_SHARE * peak.bytes]
        named = ", ".join(f"{storage.layer or storage.storage} {units.memory(storage.bytes)}" for storage in own[:2])
        if size >= NAMED_SHARE * peak.bytes:
            phrases.append(f"{KIND_NAMES[kind]} {units.memory(size)}{f' (largest: {named})' if named else ''}")
    return f"peak of {units.memory(peak.bytes)} allocated on {peak.device}{when}{where}: {', '.join(phrases)}"


def need_words(need: MemoryNeed) -> str:
    """Return what of a need is allocated, reserved by PyTorch, or not PyTorch's; empty if that is not known."""
    known = max(need.allocated_bytes or 0, need.reserved_bytes or 0)
    what = "allocated" if need.reserved_bytes is None else "reserved by PyTorch"
    beside = need.needed_bytes - known
    if not known or not beside:
        return what if known else ""
    return f"{units.memory(known)} {what}, {units.memory(beside)} of the driver and the CUDA context"


def shortfall_words(needs: Sequence[MemoryNeed]) -> str:
    """Return a phrase that says by how much a plan does not fit: "needs 21.3 GiB, 16 GiB there, 5.3 GiB too much".

    It is about the memory that is exceeded most. If the machine has several, the phrase names it and counts the others that are too small.
    """
    overfull = sorted((need for need in needs if need.needed_bytes > need.size_bytes), key=lambda n: n.size_bytes - n.needed_bytes)
    worst, others = overfull[0], len(overfull) - 1
    name = f" in {worst.name}" if len(needs) > 1 else ""
    too = f"; {others} other {'memory is' if others == 1 else 'memories are'} too small as well" if others else ""
    own = f" ({words})" if (words := need_words(worst)) else ""
    return (
        f"needs {units.memory(worst.needed_bytes)}{own}{name}, {units.capacity(worst.size_bytes)} there,"
        f" {units.memory(worst.needed_bytes - worst.size_bytes)} too much{too}"
    )


def holders_words(peaks: Sequence[AtPeak]) -> str:
    """Return a phrase that says what the device with the highest peak holds, and the peaks of the other devices."""
    highest = max(peaks, key=lambda peak: peak.bytes)
    others = ", ".join(f"{peak.device} {units.memory(peak.bytes)}" for peak in peaks if peak is not highest)
    return peak_words(highest) + (f"; at their own peaks {others}" if others else "")


#: Of a plan that fits, but `MemoryNeed.at_limit`.
AT_LIMIT_WORDS = "fits, at its limit: PyTorch's allocator will free and retry"


def fitting_words(largest_batch: int | None, changes: Sequence[str], tried: bool = True) -> tuple[str, ...]:
    """Return phrases that name what fits in place of a plan that does not, once that was sought.

    `largest_batch`: the largest smaller batch, None if there is none. `changes`: options with which this batch fits. `tried`: whether any
    were tried.
    """
    batch = "no smaller batch is predicted to fit" if largest_batch is None else f"the largest batch that fits is {largest_batch}"
    if not tried:
        return batch, "no other changes were tried, each of which takes as long as this prediction"
    what = "it" if any("--batch " in change for change in changes) else "this batch"
    return (batch, f"{what} would fit with {', or '.join(changes)}") if changes else (batch,)
