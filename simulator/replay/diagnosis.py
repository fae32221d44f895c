"""Where the time of a recorded step goes: computing, communication that no kernel hides, copies, and idle time by cause.

Each moment of a device belongs to one part: a kernel runs; else a collective moves data; else a collective waits for another rank; else a
copy or memory set runs; else the device is idle. Idle time belongs to what the next work waited for last:

- *host*: its launch. The host was busy with Python and launches while the device ran dry.
- *synchronization*: its launch as well, but the host had been blocked by the device until it ran dry: a synchronizing call or a blocking
  copy. Nothing could be queued.
- *dependency*: work of another stream.
- *other rank*: work of another device.
- *between kernels*: the work before it in its stream. Every kernel has such a pause.
- *unexplained*: nothing that was recorded.

The parts of a device sum to the step time; with several devices, parts are means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from simulator.plan.task import Task
from simulator.replay.compare import arrivals, boundaries, counted_steps, device_part, times_of
from simulator.replay.nodes import ARRIVAL, HOST, LOST_LAUNCH
from simulator.replay.replay import Replay
from simulator.replay.waits import predecessors
from traces.recording.recording import COLLECTIVE, KERNEL
from traces.recording.synchronisation import UNEXPLAINED_S
from traces.timeline import Span, Timeline, busy_seconds


class Part(StrEnum):
    """What a device does at one moment of a step."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    OTHER_RANK = "other rank"
    COPIES = "copies"
    HOST = "host"
    SYNCHRONIZATION = "synchronization"
    DEPENDENCY = "dependency"
    BETWEEN_KERNELS = "between kernels"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class PartTime:
    """Seconds per step of one part, and their share of the step time."""

    part: Part
    seconds: float
    share: float


def diagnose(replay: Replay, timeline: Timeline) -> tuple[PartTime, ...]:
    """Return every part of the mean step, in the order of `Part`. `timeline`: the recording of `replay`, or its simulation."""
    begin_s, end_s, steps = counted_steps(boundaries(replay.plan, replay.steps, times_of(timeline)))
    devices: dict[str, list[Span]] = {}
    for span in device_part(replay.plan, timeline).spans:
        devices.setdefault(span.device, []).append(span)
    causes = _Causes(replay, timeline)
    totals = dict.fromkeys(Part, 0.0)
    for spans in devices.values():
        for part, seconds in _device_parts(spans, causes, begin_s, end_s).items():
            totals[part] += seconds / (steps * len(devices))
    step_s = (end_s - begin_s) / steps
    return tuple(PartTime(part, seconds, seconds / step_s if step_s else 0.0) for part, seconds in totals.items())


def _device_parts(spans: Sequence[Span], causes: "_Causes", begin_s: float, end_s: float) -> dict[Part, float]:
    """Return the seconds of one device by part, for all steps from `begin_s` to `end_s`."""
    parts = dict.fromkeys(Part, 0.0)
    covered: list[Span] = []
    before_s = 0.0
    for part, own in causes.busy(spans):
        covered += own
        covered_s = busy_seconds(covered, begin_s, end_s)
        parts[part], before_s = covered_s - before_s, covered_s
    idle: dict[Part, list[float]] = {}
    reached_s = begin_s
    for span in sorted(spans, key=lambda span: (span.start_s, causes.position[span.task])):
        if span.start_s > reached_s and reached_s < end_s:
            for part, seconds in causes.idle(span, reached_s, end_s):
                idle.setdefault(part, []).append(seconds)
        reached_s = max(reached_s, span.end_s)
    if reached_s < end_s:  # nothing more is recorded on this device, while others still work
        idle.setdefault(Part.OTHER_RANK, []).append(end_s - reached_s)
    return {part: seconds + fsum(idle.get(part, ())) for part, seconds in parts.items()}


class _Causes:
    """Finds out why a device is busy or idle, from the times of one timeline."""

    def __init__(self, replay: Replay, timeline: Timeline):
        tasks = replay.plan.tasks
        self.position = {task.name: index for index, task in enumerate(tasks)}
        self._tasks: Mapping[str, Task] = {task.name: task for task in tasks}
        self._ends_s = {span.task: span.end_s for span in timeline.spans}
        self._waited_for = predecessors(tasks, self._ends_s)
        self._gaps = {device.name: device.task_overhead_s for device in replay.machine.devices}
        self._arrival_of = arrivals(replay.plan)
        self._all_arrived_s = self._last_arrivals(device_part(replay.plan, timeline))

    def _last_arrivals(self, devices: Timeline) -> dict[str, float]:
        """Return by joined collective when the last rank arrived."""
        arrived_s = {self._arrival_of[span.task]: span.start_s for span in devices.spans if span.task in self._arrival_of}
        return {
            name: max((arrived_s[other] for other in self._tasks[name].after if other in arrived_s), default=0.0)
            for name in self._arrival_of
        }

    def busy(self, spans: Sequence[Span]) -> list[tuple[Part, list[Span]]]:
        """Return the spans of a device by part, in order of precedence. A collective that waits for another rank is cut in two."""
        kernels, moving, waiting, others = [], [], [], []
        for span in spans:
            category = self._tasks[span.task].body.category
            if category == KERNEL:
                kernels.append(span)
            elif category != COLLECTIVE:
                others.append(span)
            else:
                arrived_s = min(max(span.start_s, self._all_arrived_s.get(span.task, span.start_s)), span.end_s)
                waiting.append(_cut(span, span.start_s, arrived_s))
                moving.append(_cut(span, arrived_s, span.end_s))
        return [(Part.COMPUTE, kernels), (Part.COMMUNICATION, moving), (Part.OTHER_RANK, waiting), (Part.COPIES, others)]

    def idle(self, span: Span, idle_s: float, end_s: float) -> list[tuple[Part, float]]:
        """Return the causes of the idle time from `idle_s` to the start of `span`, or to `end_s` if that is earlier: parts and seconds."""
        until_s = min(span.start_s, end_s)
        first = self._arrival_of.get(span.task, span.task)
        name = self._waited_for.get(first)
        if name is None:
            return [(Part.UNEXPLAINED, until_s - idle_s)]
        ready_s = min(max(self._ends_s[name], idle_s), until_s)
        if span.start_s - max(self._ends_s[name], idle_s) <= UNEXPLAINED_S + self._gaps[span.device]:
            return [(self._cause(span, name, idle_s), until_s - idle_s)]
        return [(self._cause(span, name, idle_s), ready_s - idle_s), (Part.UNEXPLAINED, until_s - ready_s)]

    def _cause(self, span: Span, name: str, idle_s: float) -> Part:
        """Return why `span` started no earlier, if `name` was the last that it waited for and the device was idle from `idle_s` on."""
        before = self._tasks[name]
        if before.device != HOST:
            if before.device != span.device or ARRIVAL in name:
                return Part.OTHER_RANK
            return Part.BETWEEN_KERNELS if f"stream {before.stream}" == span.lane else Part.DEPENDENCY
        if self._ends_s[name] <= idle_s:
            return Part.BETWEEN_KERNELS
        while True:
            if LOST_LAUNCH in name:
                return Part.UNEXPLAINED
            earlier = self._waited_for.get(name)
            if earlier is None:
                return Part.HOST
            if self._tasks[earlier].device != HOST:
                return Part.SYNCHRONIZATION
            if self._ends_s[earlier] <= idle_s:
                return Part.HOST
            name = earlier


def _cut(span: Span, start_s: float, end_s: float) -> Span:
    return Span(span.task, span.device, span.lane, start_s, end_s, span.phase)
