"""Why one schedule is faster or slower than another: their critical paths compared, phase by phase and cause by cause, in words."""

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

#: Differences below this share of the baseline's step are not worth a sentence.
LEAST_SHARE = 0.005

#: Why the tasks counted in a sentence did not start earlier. Running right behind one's predecessor, by data or by lane, is the ordinary
#: case and needs no words: which of the two it was says nothing about the time.
_BEHIND = frozenset({Cause.DEPENDENCY, Cause.LANE, Cause.START})
_HELD_UP = {
    Cause.LAUNCH: "held up by the host that issues them",
    Cause.LINK: "held up by a link",
    Cause.SMS: "held up by SMs or cores that others used",
}
_NAMES = {"host": "issuing tasks from the host", "transfer": "the transfers", "collective": "the collectives"}


def explain(baseline: Timeline, other: Timeline) -> list[str]:
    """Sentences, the first on the step times, then one per phase (and what held it up) in which the critical paths differ, largest first.

    Milliseconds are per step. Each sentence counts the tasks on the critical path only; what runs beside it costs no time.
    """
    lines = [_overall(baseline.step_s, other.step_s)]
    for timeline, name in ((baseline, "baseline"), (other, "other")):
        if not timeline.critical_path:
            return [*lines, f"the {name} timeline carries no critical path, so nothing can be said about its causes"]
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


#: What kinds of values are called.
KIND_NAMES = MappingProxyType({
    PARAMETER: "parameters", OPTIMIZER_STATE: "optimizer state", BUFFER: "buffers", INPUT: "inputs", ACTIVATION: "activations",
    GRADIENT: "gradients", SCRATCH: "scratch",
})  # fmt: skip
#: The largest storages are named where they hold at least this share of the peak.
NAMED_SHARE = 0.02


def peak_words(found: AtPeak) -> str:
    """What a device holds at its peak, and when that is: one phrase."""
    when = f" at {units.duration(found.time_s)}" if found.time_s >= 0 else " on the way to the steady state"
    where = f" in {found.layer} {found.phase}" if found.layer else f" in {found.task}" if found.task else ""
    parts = []
    for kind, size in found.by_kind.items():
        own = [each for each in found.largest if each.kind == kind and each.bytes >= NAMED_SHARE * found.bytes]
        named = f" (largest: {', '.join(f'{each.layer or each.storage} {units.memory(each.bytes)}' for each in own[:2])})" if own else ""
        if size >= NAMED_SHARE * found.bytes:
            parts.append(f"{KIND_NAMES[kind]} {units.memory(size)}{named}")
    return f"peak of {units.memory(found.bytes)} on {found.device}{when}{where}: {', '.join(parts)}"


def overfull_words(found: "Forecast", memory: Memory) -> list[str]:
    """What needs a memory that is too small: the peak of the device that holds the most of it, and how many others share it."""
    there = [each for each in found.at_peak if found.machine.memory_name(each.device) == memory.name]
    if not there:
        return [f"the host holds {units.memory(found.memory_bytes[memory.name])}"]
    most = max(there, key=lambda each: each.bytes)
    others = [f"{each.device} {units.memory(each.bytes)} at its own peak" for each in there if each is not most]
    return [peak_words(most), *([f"in the same memory {', '.join(others)}"] if others else [])]


def _grouped(seconds: dict[tuple[str, Cause], float]) -> dict[tuple[str, str], float]:
    """Seconds by phase and what held its tasks up ("" for nothing but their predecessors)."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for (phase, cause), value in seconds.items():
        found[phase, "" if cause in _BEHIND else _HELD_UP[cause]] += value
    return found


def path_seconds(timeline: Timeline) -> dict[tuple[str, Cause], float]:
    """Seconds per step of the critical path by phase and by the cause that held its tasks up."""
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
