"""Turns measured task times into step lengths and a timeline."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from simulator.engine.memory.contents import with_memory
from simulator.engine.memory.over_time import memory_over_time
from simulator.plan.plan import Plan
from traces.documents.timeline import DeviceUse, Span, Timeline, busy_seconds


@dataclass(frozen=True)
class Measured:
    """One execution of a task.

    `index`: the task's position in `Plan.every_task`. `period`: counted from the start of its plan. `reference_s`: seconds spent on the
    reference kernel just before the task, on the same core. `device`: where the task ran, if the task does not say so (all devices of a
    collective run it).
    """

    index: int
    period: int
    start_s: float
    end_s: float
    core: int
    reference_s: float = 0.0
    device: str = ""


@dataclass(frozen=True)
class PlanTimes:
    """What was measured of a plan of a run: step lengths, and how long it took to complete its last iterations, if that was done."""

    number: int
    steps_s: tuple[float, ...]
    drain_s: float | None = None


@dataclass(frozen=True)
class ChunkTimes:
    """The times that one call of `Executable.run` or `sync` measured.

    `steps_s`: seconds per step, one for each period (in graph mode each graph) after the first, which starts with idle lanes.
    `times`: one entry per task execution; empty if the backend measures task times separately (`Executable.trace`).
    `ends_s`: seconds from the start of the call to the end of each period. `parts`: of a run that follows several plans, what was
    measured of each, in the order of measuring.
    """

    steps_s: tuple[float, ...]
    times: tuple[Measured, ...] = ()
    ends_s: tuple[float, ...] = ()
    parts: tuple[PlanTimes, ...] = ()


def period_ends(times: Sequence[Measured]) -> dict[int, float]:
    """By period, in order: the time at which all tasks issued in this period or earlier have ended."""
    ends: dict[int, float] = {}
    for item in times:
        ends[item.period] = max(ends.get(item.period, 0.0), item.end_s)
    latest, latest_by_period = 0.0, {}
    for period in sorted(ends):
        latest = latest_by_period[period] = max(latest, ends[period])
    return latest_by_period


def ends_from_start(times: Sequence[Measured]) -> tuple[float, ...]:
    """Seconds from the first task's start to the end of each period, without reference kernels.

    A reference kernel's time is subtracted only if it lies on the measured critical path. On a single lane all reference kernels do.
    """
    on_path_s = critical_reference_s(times)
    before_s, elapsed_s, ends_s = min((item.start_s - item.reference_s for item in times), default=0.0), 0.0, []
    for period, end_s in period_ends(times).items():
        elapsed_s += max(0.0, end_s - before_s - on_path_s.get(period, 0.0))  # below zero only by rounding
        before_s = end_s
        ends_s.append(elapsed_s)
    return tuple(ends_s)


def step_without_reference_s(times: Sequence[Measured]) -> float | None:
    """Seconds of the last period without the reference kernels on its critical path; None without such kernels, or if it is alone."""
    steps_s = lengths(ends_from_start(times)) if any(item.reference_s for item in times) else ()
    return steps_s[-1] if steps_s else None


def lengths(ends_s: Sequence[float]) -> tuple[float, ...]:
    """Seconds from each end to the next."""
    return tuple(after - before for before, after in pairwise(ends_s))


def critical_reference_s(times: Sequence[Measured]) -> dict[int, float]:
    """Seconds of reference kernels on the measured critical path, by the period within whose length they were run.

    The path is followed backward from the task that ends last. The predecessor of a task is the task that ended last before this task's
    reference kernel began. A kernel before a task of one period may have run while the period before was still in progress on other lanes:
    it is counted by the time at which it ran, so that no period can lose more than its length.
    """
    if not any(item.reference_s for item in times):
        return {}
    by_end = sorted(times, key=lambda m: m.end_s)
    kernels: list[tuple[float, float]] = []
    position = len(by_end) - 1
    while position >= 0:
        item = by_end[position]
        begin_s = item.start_s - item.reference_s
        if item.reference_s:
            kernels.append((begin_s, item.start_s))
        position -= 1
        while position >= 0 and by_end[position].end_s > begin_s:
            position -= 1
    reference_s, before_s = {}, -inf
    for period, end_s in period_ends(times).items():
        reference_s[period] = sum(max(0.0, min(start_s, end_s) - max(begin_s, before_s)) for begin_s, start_s in kernels)
        before_s = end_s
    return reference_s


def without_reference(times: Sequence[Measured]) -> list[Measured]:
    """The times of one lane with the reference kernels removed and later tasks moved earlier by their length."""
    shifted, shift_s = [], 0.0
    for item in sorted(times, key=lambda m: m.start_s):
        shift_s += item.reference_s
        shifted.append(replace(item, start_s=item.start_s - shift_s, end_s=item.end_s - shift_s, reference_s=0.0))
    return shifted


def timeline_of(
    plan: Plan,
    times: Sequence[Measured],
    per_step: tuple[float, ...],
    mode: str = "eager",
    peak_bytes: Mapping[str, int] | None = None,
) -> Timeline:
    """The measured timeline of a plan. Its window is the last full period, or in graph mode all periods of the graph.

    `per_step`: measured seconds per step. `peak_bytes`: the allocator's figure by device, if known. On a single lane the reference kernels
    are removed and later spans move earlier. Memory over time follows from the rule in `simulator.engine.memory` and the measured times.
    """
    if len({task.lane for task in plan.tasks}) == 1:
        times = without_reference(times)
    zero = min(item.start_s - item.reference_s for item in times)
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
            microbatch=task.microbatch,
            iteration=item.period - task.lag,
            period=item.period,
            action=task.action,
        )
        for item in sorted(times, key=lambda m: m.start_s)
    )
    ends = period_ends(times)
    tasks_run = Counter(period for _, period in {(span.task, span.period) for span in spans})
    full = [p for p in sorted(ends) if tasks_run[p] == len(tasks)] or sorted(ends)
    last = full[-1]
    before = last - 1 if mode == "eager" else full[0] - 1
    window = ((ends[before] - zero) if before in ends else spans[0].start_s, ends[last] - zero)
    step_s = statistics.median(per_step) if per_step else window[1] - window[0]
    uses = device_uses(plan, spans, window, peak_bytes or {})
    memory = memory_over_time(plan, spans)
    return with_memory(Timeline("measured", spans, step_s, window, mode, devices=uses, memory=memory, period_lengths_s=per_step), plan)


def device_uses(plan: Plan, spans: Sequence[Span], window: tuple[float, float], peak_bytes: Mapping[str, int]) -> tuple[DeviceUse, ...]:
    busy_s = {name: busy_seconds([s for s in spans if s.device == name], *window) for name in plan.devices}
    length = window[1] - window[0]
    return tuple(DeviceUse(name, busy_s[name] / length if length else 0.0, peak_bytes.get(name, 0)) for name in plan.devices)
