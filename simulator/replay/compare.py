"""Compare a replay with its recording: period, busy time per stream, exposed communication, and the works with the largest errors.

*GPU period*: let B(i) be the end of the last device work of the iterations up to i. The length of iteration i is B(i) − B(i−1), and the
period is the mean length of all iterations but the first. If there is only one iteration, the period is its length, from the end of the
work before it (or its own first start) to its end. This is not the profiler's step, because the host may run ahead of the device.

*Exposed communication*: the time per iteration (of those that count for the period) in which a collective runs on a device and no compute
kernel does; the mean over the devices with collectives. Copies and memory sets count as neither.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean

from simulator.plan.task import Task
from simulator.replay.nodes import is_host
from simulator.replay.replay import Replay, lane_name, predecessor
from traces.documents.replay_result import MisplacedKernel, ReplayStep, StreamBusy
from traces.documents.timeline import Span, Timeline, busy_seconds
from traces.formats.recording import COLLECTIVE, KERNEL
from traces.formats.synchronization import UNEXPLAINED_S

#: Start times with larger errors than this are reported.
MISPLACED_S = 1e-6


@dataclass(frozen=True)
class ReplayComparison:
    """A replay compared with its recording. Start times are counted from the beginning of the recording. `steps` have no parts yet."""

    period_measured_s: float
    period_simulated_s: float
    steps: tuple[ReplayStep, ...]
    streams: tuple[StreamBusy, ...]
    exposed_measured_s: float
    exposed_simulated_s: float
    worst: tuple[MisplacedKernel, ...]
    kernels: int

    @property
    def error(self) -> float:
        """simulated / measured − 1 of the period."""
        return self.period_simulated_s / self.period_measured_s - 1.0 if self.period_measured_s else 0.0

    @property
    def spread(self) -> float:
        """(longest − shortest) / mean of the recorded iterations that count for the period; 0 for a single one."""
        lengths = [step.measured_s for step in self.steps[1:]]
        return (max(lengths) - min(lengths)) / fmean(lengths) if len(lengths) > 1 and fmean(lengths) else 0.0


def compare(replay: Replay, simulated: Timeline, worst: int = 10) -> ReplayComparison:
    """Compare the timeline of `simulate_replay(replay)` with the recording. `worst`: how many misplaced works to explain.

    Raises ValueError for a replay without a recorded timeline.
    """
    measured = device_part(replay, replay.recording)
    predicted = device_part(replay, simulated)
    sides = [(boundaries(replay, times_of(t)), t) for t in (measured, predicted)]
    lengths = [[b - a for a, b in pairwise(borders)] for borders, _ in sides]
    steps = tuple(ReplayStep(name=step.name, measured_s=m, simulated_s=s) for step, m, s in zip(replay.steps, *lengths, strict=True))
    counted = [(*counted_steps(borders), t) for borders, t in sides]
    exposed_m, exposed_s = (_exposed(replay, t, begin, end) / number for begin, end, number, t in counted)
    period_m, period_s = ((end - begin) / number for begin, end, number, _ in counted)
    misplaced = _worst(replay, measured, simulated, predicted, worst)
    return ReplayComparison(
        period_measured_s=period_m,
        period_simulated_s=period_s,
        steps=steps,
        streams=_streams(counted),
        exposed_measured_s=exposed_m,
        exposed_simulated_s=exposed_s,
        worst=misplaced,
        kernels=len(measured.spans),
    )


def times_of(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Return start and end by task."""
    return {span.task: (span.start_s, span.end_s) for span in timeline.spans}


def boundaries(replay: Replay, times: Mapping[str, tuple[float, float]]) -> list[float]:
    """Return the start of the first iteration, followed by the end of each iteration's device work.

    The start is the end of the work before the first iteration, or the start of its first work if there is none before it. `times`: start
    and end by task.
    """
    position, steps = replay.position, replay.steps
    rows = enumerate(zip(replay.rows.tasks, replay.rows.on_host, strict=True))
    works = [(index, times[task.name]) for index, (task, on_host) in rows if not on_host and task.name in times]
    firsts, reached = [index for index, _ in works], []
    latest = float("-inf")
    for _, (_, end_s) in works:
        latest = max(latest, end_s)
        reached.append(latest)
    before = bisect_right(firsts, position[steps[0].first_task] - 1)
    last = bisect_right(firsts, position[steps[0].last_task])
    begin = reached[before - 1] if before else min(start_s for _, (start_s, _) in works[:last])
    ends = (reached[bisect_right(firsts, position[step.last_task]) - 1] for step in steps)
    return list(accumulate([begin, *ends], max))  # a damaged recording may issue work of an iteration before that of the previous one


def counted_steps(borders: Sequence[float]) -> tuple[float, float, int]:
    """Return start, end and number of the iterations that count: all but the first, unless it is the only one. For `boundaries`."""
    counted = borders[1:] if len(borders) > 2 else borders
    return counted[0], counted[-1], len(counted) - 1


def device_part(replay: Replay, timeline: Timeline) -> Timeline:
    """Return the device work of a replay's timeline; a joined collective starts with its own arrival."""
    arrival_of = replay.arrivals
    rows = zip(replay.rows.tasks, replay.rows.on_host, strict=True)
    works = {task.name for task, on_host in rows if not on_host} - set(arrival_of.values())
    starts = {span.task: span.start_s for span in timeline.spans}
    return replace(
        timeline,
        spans=tuple(
            replace(span, start_s=starts[arrival_of[span.task]]) if arrival_of.get(span.task) in starts else span
            for span in timeline.spans
            if span.task in works
        ),
    )


def _streams(sides: Sequence[tuple[float, float, int, Timeline]]) -> tuple[StreamBusy, ...]:
    busy: list[dict[tuple[str, str], float]] = []
    for begin_s, end_s, steps, timeline in sides:
        lanes: dict[tuple[str, str], list[Span]] = {}
        for span in timeline.spans:
            lanes.setdefault((span.device, span.lane), []).append(span)
        busy.append({lane: busy_seconds(spans, begin_s, end_s) / steps for lane, spans in lanes.items()})
    simulated = busy[1]
    return tuple(
        StreamBusy(device=device, stream=stream, measured_s=measured_s, simulated_s=simulated.get((device, stream), 0.0))
        for (device, stream), measured_s in busy[0].items()
    )


def _exposed(replay: Replay, timeline: Timeline, begin_s: float, end_s: float) -> float:
    """Return the seconds in the window with a collective and without a compute kernel, as the mean over the devices with collectives."""
    rows = zip(replay.rows.tasks, replay.rows.on_host, strict=True)
    category = {task.name: task.body.category for task, on_host in rows if not on_host}
    collectives: dict[str, list[Span]] = {}
    kernels: dict[str, list[Span]] = {}
    for span in timeline.spans:
        kinds = {COLLECTIVE: collectives, KERNEL: kernels}
        if category[span.task] in kinds:
            kinds[category[span.task]].setdefault(span.device, []).append(span)
    exposed_s = []
    for device, spans in collectives.items():
        others = kernels.get(device, [])
        exposed_s.append(busy_seconds(spans + others, begin_s, end_s) - busy_seconds(others, begin_s, end_s))
    return fmean(exposed_s) if exposed_s else 0.0


def _worst(replay: Replay, measured: Timeline, simulated: Timeline, predicted: Timeline, count: int) -> tuple[MisplacedKernel, ...]:
    """Return the works with the largest errors. Of the works with a common cause, only the one with the largest error counts."""
    tasks = {task.name: task for task in replay.tasks}
    recorded = {span.task: span.start_s for span in measured.spans}
    starts = {span.task: span.start_s for span in predicted.spans}
    end_of = {span.task: span.end_s for span in simulated.spans}
    ends_s, arrival_of, position = [end_of.get(name) for name in tasks], replay.arrivals, replay.position

    def critical(name: str) -> str | None:
        """The task that ended last of all that a work waited for in the simulation; for a joined collective: before its arrival."""
        before = predecessor(replay.rows, ends_s, position[arrival_of.get(name, name)])
        return replay.rows.tasks[before].name if before >= 0 else None

    errors = {name: starts[name] - recorded[name] for name in recorded if name in starts}
    roots: dict[str, str] = {}  # in issue order, so that the predecessor of a work has its root already
    for name in tasks:
        if name in errors:
            before = critical(name)
            inherits = before in roots and abs(errors[name] - errors[before]) <= 0.5 * abs(errors[name])
            roots[name] = roots[before] if before is not None and inherits else name
    misplaced: dict[str, MisplacedKernel] = {}
    for name in sorted(roots, key=lambda name: -abs(errors[name])):
        if len(misplaced) == count or abs(errors[name]) <= MISPLACED_S:
            break
        root = roots[name]
        if root not in misplaced:
            reason = _reason(tasks, root, critical(root), errors[root])
            if root != name:
                reason = f"follows {root}, {abs(errors[root]) * 1e6:.0f} us {'late' if errors[root] > 0 else 'early'}: {reason}"
            misplaced[root] = MisplacedKernel(
                task=name,
                device=tasks[name].device,
                stream=lane_name(tasks[name]),
                measured_start_s=recorded[name],
                simulated_start_s=starts[name],
                reason=reason,
            )
    return tuple(misplaced.values())


def _reason(tasks: dict[str, Task], name: str, predecessor: str | None, error_s: float) -> str:
    launched = predecessor is not None and is_host(tasks[predecessor])
    same_stream = predecessor is not None and tasks[predecessor].lane == tasks[name].lane
    if error_s < -UNEXPLAINED_S:
        return "the recording waits for something that left no trace: an event without ids, or SMs that were taken"
    if error_s < 0:
        return "its launch took longer than usual" if launched else "the pause before it was longer than usual"
    if predecessor is None:
        return "it waits for nothing"
    if launched:
        return f"the host reaches {tasks[predecessor].body.label!r} later"
    return (
        f"its stream is still busy with {predecessor}" if same_stream else f"waits for {predecessor} on stream {tasks[predecessor].stream}"
    )
