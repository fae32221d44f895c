"""From measured task times to steps, losses and a timeline."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simulator.memory.kinds import with_memory
from simulator.memory.over_time import memory_over_time
from simulator.plan.plan import Plan
from traces.timeline import DeviceUse, Span, Timeline, busy_seconds


@dataclass(frozen=True)
class Measured:
    """One task's execution. `anchor_s` was spent on the anchor op just before it, on the same core.

    `device`: where it ran, if not known from the task: all devices run a collective.
    """

    index: int
    period: int
    start_s: float
    end_s: float
    core: int
    anchor_s: float = 0.0
    device: str = ""


@dataclass(frozen=True)
class ChunkTimes:
    """What one call of `run` measured.

    `steps_s`: seconds per step, one for every period, or graph of periods, after the call's first (which starts with idle lanes).
    `times`: every task's; empty where the backend measures them apart (`Executable.trace`). `ends_s`: seconds from the beginning of the
    call to the end of every period.
    """

    steps_s: tuple[float, ...]
    times: tuple[Measured, ...] = ()
    ends_s: tuple[float, ...] = ()


def period_ends(times: Sequence[Measured]) -> dict[int, float]:
    """When the last task issued in each period, or before it, ended; in the order of periods."""
    ends: dict[int, float] = {}
    for item in times:
        ends[item.period] = max(ends.get(item.period, 0.0), item.end_s)
    reached, found = 0.0, {}
    for period in sorted(ends):
        reached = found[period] = max(reached, ends[period])
    return found


def ends_from_start(times: Sequence[Measured]) -> tuple[float, ...]:
    """Seconds from the first task's start to the end of each period, without anchors.

    An anchor's time is subtracted where it lies on the measured critical path: on one lane, all of it.
    """
    anchors = critical_anchors(times)
    before_s, reached_s, found = min((item.start_s - item.anchor_s for item in times), default=0.0), 0.0, []
    for period, end_s in period_ends(times).items():
        reached_s += end_s - before_s - anchors.get(period, 0.0)
        before_s = end_s
        found.append(reached_s)
    return tuple(found)


def lengths(ends_s: Sequence[float]) -> tuple[float, ...]:
    """Seconds from each end to the next."""
    return tuple(after - before for before, after in pairwise(ends_s))


def critical_anchors(times: Sequence[Measured]) -> dict[int, float]:
    """Anchor seconds on the measured critical path, by period.

    The path is walked back from the last end: to the task that ended last before the anchor of the current one began.
    """
    if not any(item.anchor_s for item in times):
        return {}
    by_end = sorted(times, key=lambda m: m.end_s)
    found: dict[int, float] = defaultdict(float)
    position = len(by_end) - 1
    while position >= 0:
        item = by_end[position]
        found[item.period] += item.anchor_s
        begun = item.start_s - item.anchor_s
        position -= 1
        while position >= 0 and by_end[position].end_s > begun:
            position -= 1
    return dict(found)


def without_anchors(times: Sequence[Measured]) -> list[Measured]:
    """The times of one lane as they would have been without anchors."""
    moved, shift_s = [], 0.0
    for item in sorted(times, key=lambda m: m.start_s):
        shift_s += item.anchor_s
        moved.append(replace(item, start_s=item.start_s - shift_s, end_s=item.end_s - shift_s, anchor_s=0.0))
    return moved


def timeline_of(
    plan: Plan,
    times: Sequence[Measured],
    per_step: tuple[float, ...],
    mode: str = "eager",
    peak_bytes: Mapping[str, int] | None = None,
) -> Timeline:
    """Measured spans; the window is the last full period, in graph mode all periods of the graph.

    On one lane the time of anchors is taken out, and later spans move up. Memory over time is that of `simulator.memory`'s rule at the
    measured times; `peak_bytes` is the allocator's figure by device, where it is known.
    """
    if len({task.lane for task in plan.tasks}) == 1:
        times = without_anchors(times)
    zero = min(item.start_s - item.anchor_s for item in times)
    tasks = plan.tasks
    spans = tuple(
        Span(
            task=(task := tasks[item.index]).name,
            device=item.device or task.device,
            lane=f"stream {task.stream}",
            start_s=item.start_s - zero,
            end_s=item.end_s - zero,
            phase=task.phase,
            layer=task.layer,
            micro_batch=task.micro_batch,
            iteration=item.period - task.lag,
            period=item.period,
        )
        for item in sorted(times, key=lambda m: m.start_s)
    )
    ends = period_ends(times)
    run = Counter(period for _, period in {(span.task, span.period) for span in spans})
    full = [p for p in sorted(ends) if run[p] == len(tasks)] or sorted(ends)
    last = full[-1]
    before = last - 1 if mode == "eager" else full[0] - 1
    window = ((ends[before] - zero) if before in ends else spans[0].start_s, ends[last] - zero)
    step_s = statistics.median(per_step) if per_step else window[1] - window[0]
    length = window[1] - window[0]
    use = tuple(
        DeviceUse(
            name, busy_seconds([s for s in spans if s.device == name], *window) / length if length else 0.0, (peak_bytes or {}).get(name, 0)
        )
        for name in plan.devices
    )
    made = Timeline("measured", spans, step_s, window, mode, devices=use, period_lengths_s=per_step)
    return with_memory(made, plan, memory_over_time(plan, spans))
