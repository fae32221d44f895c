"""Where the time of a step goes, and the difference between two step times as parts that add up to it.

Step times are compared between two plans, and between a prediction and its measurement. Between two plans, each part is the difference of
the seconds that `step_parts` accounts to it. For the work of a phase this is divided once
more. Let P be its seconds on the critical path and W what all its tasks take alone. If P changes by p and W by w, then

- of p, as much as has the sign of w and is not more than w is *work*: the tasks themselves take more or less time;
- the rest of p is *overlap*: tasks left the critical path, because they now run concurrently with others, or came onto it.

Both have the sign of p. So one phase is never said to take less time and more.

The parts of one step: every instant of a steady period belongs to exactly one part. The critical path leads from the end of the period back
to its start. An instant at which

- the host runs belongs to LAUNCHES;
- nothing on the path runs (a sleeping worker wakes, a gap between the nodes of a CUDA graph) belongs to IDLE;
- a task runs is divided: what the task takes longer than alone, because others use cores, SMs, bandwidth or links, belongs to CONTENTION;
  the executor's own time per task (on a CPU, where no host lane has it) to LAUNCHES; the rest, which has the page faults of fresh memory,
  to the work of the task's phase. The division is the same at every instant of a task.

So the parts of a timeline add up to its step time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from simulator.engine.simulation import Simulation
from simulator.plan.task import BACKWARD, COLLECTIVE, FORWARD, TRANSFER, UPDATE
from traces.documents.comparison import Change
from traces.documents.timeline import Span, Timeline

COMMUNICATION, LAUNCHES, CONTENTION, IDLE = "communication", "launches", "contention", "idle"
#: Parts that are the work of tasks; all phases but these are transfers or collectives.
WORK = (FORWARD, BACKWARD, UPDATE, COMMUNICATION)


@dataclass(frozen=True, slots=True)
class TaskSeconds:
    """The time of a task. `alone_s`: while nothing else runs, with the executor's own time per task, `overhead_s`."""

    alone_s: float
    overhead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OnPath:
    """A task on the critical path, per step.

    `runs`: its executions on the path; one that is on it for half its length counts half. `seconds`: their work and contention.
    """

    task: str
    part: str
    runs: float
    seconds: float


@dataclass(frozen=True)
class StepParts:
    """The parts of one step, in seconds.

    `on_path`: by part; adds up to `step_s`. `work`: by part in WORK, what the tasks of all lanes and devices take alone, whether or not
    they are on the path. `tasks`: the tasks on the path.
    """

    step_s: float
    on_path: Mapping[str, float]
    work: Mapping[str, float]
    tasks: tuple[OnPath, ...] = ()


def part_of(phase: str) -> str:
    """The part in WORK to which the work of a phase belongs."""
    return COMMUNICATION if phase in (TRANSFER, COLLECTIVE) else phase


def task_seconds(simulation: Simulation) -> dict[str, TaskSeconds]:
    """What each task takes. With a host lane, the executor's time per task is the host's."""
    scenario = simulation.scenario
    overhead_s = {name: scenario.machine.device(name).task_overhead_s if host is None else 0.0 for name, host in scenario.hosts.items()}
    return {
        task.name: TaskSeconds(alone, overhead_s[task.device] + cost.overhead_s - cost.fresh_s)
        for task, cost, alone in zip(scenario.plan.tasks, scenario.costs, simulation.alone_s, strict=True)
    }


def step_parts(timeline: Timeline, seconds: Mapping[str, TaskSeconds]) -> StepParts:
    """Divide the step of a predicted timeline. `seconds` by task.

    The parts are those of the steady period, divided by its number of steps (if the periods did not settle, scaled to the step time).
    """
    start_s, end_s = timeline.window_s
    length_s = end_s - start_s
    if length_s <= 0:
        return StepParts(timeline.step_s, {IDLE: timeline.step_s}, {})
    scale = timeline.step_s / length_s
    spans = {(span.task, span.start_s): span for span in timeline.spans}
    on_path: dict[str, float] = defaultdict(float)
    tasks: dict[str, OnPath] = {}
    reached_s = start_s
    for entry in timeline.critical_path:
        from_s, until_s = max(entry.start_s, reached_s), min(entry.end_s, end_s)
        if until_s <= from_s:
            continue
        on_path[IDLE] += (from_s - reached_s) * scale
        reached_s = until_s
        span = spans.get((entry.task, entry.start_s))
        if span is None:
            on_path[LAUNCHES] += (until_s - from_s) * scale
            continue
        runs = (until_s - from_s) / (span.end_s - span.start_s) * scale
        work_s, overhead_s, contention_s = _divided(span, seconds[span.task])
        part = part_of(span.phase)
        on_path[part] += work_s * runs
        on_path[LAUNCHES] += overhead_s * runs
        on_path[CONTENTION] += contention_s * runs
        before = tasks.get(span.task, OnPath(span.task, part, 0.0, 0.0))
        tasks[span.task] = OnPath(span.task, part, before.runs + runs, before.seconds + (work_s + contention_s) * runs)
    on_path[IDLE] += (end_s - reached_s) * scale
    return StepParts(timeline.step_s, dict(on_path), _work(timeline, seconds, scale), tuple(tasks.values()))


def _divided(span: Span, own: TaskSeconds) -> tuple[float, float, float]:
    """Seconds of a span's work, of the executor's own time, and of contention. They add up to the span's length."""
    overhead_s = min(own.overhead_s, own.alone_s, span.end_s - span.start_s)
    return own.alone_s - overhead_s, overhead_s, span.end_s - span.start_s - own.alone_s


def _work(timeline: Timeline, seconds: Mapping[str, TaskSeconds], scale: float) -> dict[str, float]:
    """Seconds per step that all tasks take alone, by part. A span that crosses the border of the period counts with its share inside."""
    start_s, end_s = timeline.window_s
    work: dict[str, float] = defaultdict(float)
    for span in timeline.window():
        inside_s = min(span.end_s, end_s) - max(span.start_s, start_s)
        work_s, _, _ = _divided(span, seconds[span.task])
        work[part_of(span.phase)] += work_s * inside_s / (span.end_s - span.start_s) * scale if inside_s > 0 else 0.0
    return dict(work)


#: The part by which a measured step differs from the recorded one whose tasks were compared.
UNEXPLAINED = "not explained by task times"
#: Time between the tasks of the predicted critical path: for launches, other lanes, or the executor itself.
WAITING = "waiting between tasks"
#: Parts smaller than this share of the step are rounding errors, and are omitted.
ROUNDING = 1e-12


def overlap_of(part: str) -> str:
    """The name of the part by which work of `part` left the critical path."""
    return f"overlap of {part}"


def waterfall(before: StepParts, after: StepParts) -> tuple[Change, ...]:
    """The parts of `after.step_s` − `before.step_s`, in a fixed order.

    Updates take 1 s less of the critical path, but still half a second of work: the other half of a second runs concurrently.

    >>> before = StepParts(4.0, on_path={"forward": 3.0, "update": 1.0}, work={"forward": 3.0, "update": 1.0})
    >>> after = StepParts(3.0, on_path={"forward": 3.0}, work={"forward": 3.0, "update": 0.5})
    >>> [(change.part, change.seconds) for change in waterfall(before, after)]
    [('update', -0.5), ('overlap of update', -0.5)]
    """
    changes: dict[str, float] = {}
    for part in _ordered(before.on_path, after.on_path):
        change = after.on_path.get(part, 0.0) - before.on_path.get(part, 0.0)
        if part in (LAUNCHES, CONTENTION, IDLE):
            changes[part] = change
        else:
            changes[part] = _toward(change, after.work.get(part, 0.0) - before.work.get(part, 0.0))
            changes[overlap_of(part)] = change - changes[part]
    return _without_rounding(changes, max(before.step_s, after.step_s))


def measured_waterfall(
    predicted: StepParts, measured: Timeline, measured_step_s: float, recorded_step_s: float | None = None
) -> tuple[Change, ...]:
    """The parts of `measured_step_s` − `predicted.step_s`.

    A phase has the difference of the measured and the predicted times of its tasks on the predicted critical path. WAITING has the
    difference of the time between them, in the step that `measured` shows. The rest, which is UNEXPLAINED, is by how much that step differs
    from `measured_step_s`. `recorded_step_s`: the length of that step without reference kernels; None if it has none.
    """
    if recorded_step_s is None:
        window_s = measured.window_s[1] - measured.window_s[0]
        steps = max(1, round(window_s / measured_step_s)) if measured.mode == "graph" else 1
        recorded_step_s = window_s / steps
    durations = mean_durations(measured)
    changes = dict.fromkeys(_ordered(predicted.on_path), 0.0)
    measured_path_s = predicted_path_s = 0.0
    for task in predicted.tasks:
        seconds = task.runs * durations[task.task] if task.task in durations else task.seconds
        changes[task.part] += seconds - task.seconds
        measured_path_s += seconds
        predicted_path_s += task.seconds
    changes[WAITING] = (recorded_step_s - measured_path_s) - (predicted.step_s - predicted_path_s)
    changes[UNEXPLAINED] = measured_step_s - recorded_step_s
    return _without_rounding(changes, max(predicted.step_s, measured_step_s))


def _ordered(*parts: Mapping[str, float]) -> list[str]:
    """The names in any of `parts`: work in the order of a step, then the others."""
    names = {name for each in parts for name in each}
    known = [name for name in (*WORK, LAUNCHES, CONTENTION, IDLE) if name in names]
    return [*sorted(names.difference(known)), *known]


def _toward(change: float, other: float) -> float:
    """As much of `change` as `other` explains: 0 if their signs differ, else the one nearer to 0."""
    return 0.0 if change * other <= 0 else min(change, other, key=abs)


def _without_rounding(changes: Mapping[str, float], step_s: float) -> tuple[Change, ...]:
    return tuple(Change(part=part, seconds=seconds) for part, seconds in changes.items() if abs(seconds) > ROUNDING * step_s)


def mean_durations(timeline: Timeline) -> dict[str, float]:
    """Mean seconds of an execution, by task: of those in the period that the timeline shows, or else of all."""
    durations: dict[str, list[float]] = {}
    for spans in (timeline.window(), timeline.spans):
        earlier = frozenset(durations)
        for span in spans:
            if span.task not in earlier:
                durations.setdefault(span.task, []).append(span.end_s - span.start_s)
    return {task: fmean(lengths) for task, lengths in durations.items()}


def total_s(changes: Sequence[Change]) -> float:
    """The difference that the parts add up to."""
    return sum(change.seconds for change in changes)
