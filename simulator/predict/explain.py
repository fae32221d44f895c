"""Explain in words why one schedule is faster or slower than another: compare their critical paths by phase and cause."""

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.machine.machine import Memory
from simulator.plan.task import ACTIVATION, BUFFER, GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER, SCRATCH
from simulator.predict.intervals import clipped_seconds
from traces import units
from traces.memory_use import AtPeak
from traces.timeline import Cause, Timeline

if TYPE_CHECKING:
    from simulator.predict.forecast import Forecast

#: Differences below this share of the baseline's step get no sentence.
LEAST_SHARE = 0.005

#: Causes that need no words: the task started directly after its predecessor, by data or by lane. Which of the two does not matter.
_ORDINARY = frozenset({Cause.DEPENDENCY, Cause.LANE, Cause.START})
#: Causes of a later start, in words.
_HELD_UP = {
    Cause.LAUNCH: "held up by the host that issues them",
    Cause.LINK: "held up by a link",
    Cause.SMS: "held up by SMs or cores that others used",
}
_NAMES = {"host": "issuing tasks from the host", "transfer": "the transfers", "collective": "the collectives"}


def explain(baseline: Timeline, other: Timeline) -> list[str]:
    """Return sentences: the first about the step times, then one for each phase (and cause of delay) in which the critical paths differ.

    The largest difference comes first. Milliseconds are per step. Only tasks on the critical path count, because other tasks take no
    additional time.
    """
    lines = [_overall(baseline.step_s, other.step_s)]
    for timeline, name in ((baseline, "baseline"), (other, "other")):
        if not timeline.critical_path:
            return [*lines, f"the {name} timeline has no critical path, so the causes are unknown"]
    before, after = _grouped(path_seconds(baseline)), _grouped(path_seconds(other))
    changes = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in before | after}
    least = LEAST_SHARE * baseline.step_s
    ranked = sorted((item for item in changes.items() if abs(item[1]) > least), key=lambda item: (-abs(item[1]), item[0]))
    for (phase, held_up), change in ranked:
        was, now = (units.duration(side.get((phase, held_up), 0.0)) for side in (before, after))
        subject = _NAMES.get(phase, f"the {phase} phase")
        verb = "take" if phase in ("transfer", "collective") else "takes"
        less = "less" if change < 0 else "more"
        tasks = f" in tasks {held_up}" if held_up else ""
        lines.append(f"{subject} {verb} {units.duration(abs(change))} {less} on the critical path: {now} instead of {was}{tasks}")
    if not ranked:
        lines.append(f"no phase differs by more than {LEAST_SHARE:.1%} of the step on the critical path")
    return lines


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
    return f"peak of {units.memory(peak.bytes)} on {peak.device}{when}{where}: {', '.join(phrases)}"


def overfull_words(forecast: "Forecast", memory: Memory) -> list[str]:
    """Return phrases that say what fills a memory that is too small: the peak of the device that holds most of it, and its other devices.

    If no device uses the memory, the host fills it.
    """
    peaks = [peak for peak in forecast.at_peak if forecast.machine.memory_name(peak.device) == memory.name]
    if not peaks:
        return [f"the host holds {units.memory(forecast.memory_bytes[memory.name])}"]
    largest = max(peaks, key=lambda peak: peak.bytes)
    others = [f"{peak.device} {units.memory(peak.bytes)} at its own peak" for peak in peaks if peak is not largest]
    return [peak_words(largest), *([f"in the same memory {', '.join(others)}"] if others else [])]


def _grouped(seconds: dict[tuple[str, Cause], float]) -> dict[tuple[str, str], float]:
    """Sum the seconds by phase and by cause of delay in words ("" for an ordinary start directly after a predecessor)."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for (phase, cause), value in seconds.items():
        sums[phase, "" if cause in _ORDINARY else _HELD_UP[cause]] += value
    return sums


def path_seconds(timeline: Timeline) -> dict[tuple[str, Cause], float]:
    """Return the seconds per step of the critical path, by phase and by the cause of each task's start time."""
    seconds: dict[tuple[str, Cause], float] = defaultdict(float)
    length = timeline.window_s[1] - timeline.window_s[0]
    per_step = timeline.step_s / length if length > 0 else 0.0
    for span in timeline.critical_path:
        seconds[span.phase, span.cause] += clipped_seconds(span, timeline.window_s) * per_step
    return dict(seconds)


def _overall(before_s: float, after_s: float) -> str:
    if not before_s or not after_s:
        return f"the step takes {units.duration(after_s)} instead of {units.duration(before_s)}"
    ratio = before_s / after_s
    word = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times as long"
    return f"the step takes {units.duration(after_s)} instead of {units.duration(before_s)}: {word}"
