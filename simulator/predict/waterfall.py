"""The difference between two step times as parts that add up to it: between two plans, and between a prediction and its measurement.

Between two plans, each part is the difference of the seconds that `parts` accounts to it. For the work of a phase this is divided once
more. Let P be its seconds on the critical path and W what all its tasks take alone. If P changes by p and W by w, then

- of p, as much as has the sign of w and is not more than w is *work*: the tasks themselves take more or less time;
- the rest of p is *overlap*: tasks left the critical path, because they now run beside others, or came onto it.

Both have the sign of p. So one phase is never said to take less time and more.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from simulator.predict.parts import CONTENTION, IDLE, LAUNCHES, WORK, StepParts
from traces.documents.comparison import Change
from traces.documents.timeline import Timeline

#: The part by which a measured step differs from the recorded one whose tasks were compared.
UNEXPLAINED = "not explained by task times"
#: Time between the tasks of the predicted critical path: for launches, other lanes, or the executor itself.
WAITING = "waiting between tasks"
#: Parts smaller than this share of the step are rounding errors, and left out.
ROUNDING = 1e-12


def overlap_of(part: str) -> str:
    """The name of the part by which work of `part` left the critical path."""
    return f"overlap of {part}"


def waterfall(before: StepParts, after: StepParts) -> tuple[Change, ...]:
    """The parts of `after.step_s` − `before.step_s`, in a fixed order."""
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
    from `measured_step_s`. `recorded_step_s`: the length of that step without anchors; None if it has none.
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
