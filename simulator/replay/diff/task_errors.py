"""How well each task of a validated step was predicted, and the likely cause of what was not: by task, phase, layer and op.

A task's seconds are the mean of its executions in the steady period. An error is measured less predicted, so it is positive for a task that
took longer than predicted.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

from simulator.engine.costs.contention import SMALL_S
from simulator.plan.task import COLLECTIVE, TRANSFER
from simulator.predict.waterfall import mean_durations
from traces.documents.comparison import Comparison
from traces.documents.timeline import Span, Timeline

#: A mean is disturbed if it is this many times the median of all recorded executions of the task.
DISTURBED = 1.5
#: Tasks run concurrently with others if they do so for this much more (or less) of their time than predicted.
BESIDE = 0.25
#: An error below this share of the prediction needs no cause.
SMALL_ERROR = 0.05
#: The suffixes of a task's name after its op: .dX, .dW, .dB, and numbers of microbatches and shards.
_SUFFIX = re.compile(r"[.@#:\s\[].*$")


class Cause(StrEnum):
    """The likely cause of a task's error."""

    PREDICTED = "as predicted"
    DISTURBED = "disturbed: other runs of it are shorter"
    BESIDE_MORE = "longer beside other tasks than predicted"
    BESIDE_LESS = "less beside other tasks than predicted"
    SHORT = "too short: the executor's own time dominates"
    COST = "its cost is not as calibrated"


@dataclass(frozen=True)
class TaskError:
    """One task, with its seconds per execution. `runs`: executions in the predicted steady period."""

    task: str
    phase: str
    layer: str
    op: str
    runs: int
    predicted_s: float
    measured_s: float
    cause: Cause

    @property
    def difference_s(self) -> float:
        """Seconds that the task adds to a steady period beyond the prediction."""
        return self.runs * (self.measured_s - self.predicted_s)


@dataclass(frozen=True)
class GroupError:
    """Tasks of one phase, layer or op, with their seconds in a steady period, one after another."""

    name: str
    tasks: int
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Measured less predicted seconds."""
        return self.measured_s - self.predicted_s


#: By what tasks are grouped.
GROUPS: dict[str, Callable[[TaskError], str]] = {
    "phase": lambda error: error.phase,
    "layer": lambda error: error.layer or error.task,
    "op": lambda error: error.op,
}


def task_errors(comparison: Comparison) -> list[TaskError]:
    """Return the tasks that are in both timelines, the largest error first."""
    predicted, measured = comparison.predicted, comparison.measured
    predicted_s, measured_s = mean_durations(predicted), mean_durations(measured)
    lengths: dict[str, list[float]] = defaultdict(list)
    for span in measured.spans:
        lengths[span.task].append(span.end_s - span.start_s)
    beside = tuple(_beside(timeline) for timeline in (predicted, measured))
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in predicted.window():
        spans[span.task].append(span)
    errors = []
    for task in spans.keys() & measured_s.keys():
        span = spans[task][0]
        seconds = predicted_s[task], measured_s[task]
        cause = _cause(*seconds, median(lengths[task]), *(shares.get(task, 0.0) for shares in beside))
        errors.append(TaskError(task, span.phase, span.layer, op_of(span), len(spans[task]), *seconds, cause=cause))
    return sorted(errors, key=lambda error: (-abs(error.difference_s), error.task))


def op_of(span: Span) -> str:
    """Return the op that a span runs: convolution_backward of features.0/convolution_backward.dW; for data movement, its first word."""
    if span.phase in (TRANSFER, COLLECTIVE):
        return span.task.partition(" ")[0]
    return _SUFFIX.sub("", span.task.rpartition("/")[2]) or span.task


def grouped(errors: Iterable[TaskError], by: str) -> list[GroupError]:
    """Return the errors by a key of GROUPS, the largest first."""
    members: dict[str, list[TaskError]] = defaultdict(list)
    for error in errors:
        members[GROUPS[by](error)].append(error)
    groups = [
        GroupError(name, len(own), sum(e.runs * e.predicted_s for e in own), sum(e.runs * e.measured_s for e in own))
        for name, own in members.items()
    ]
    return sorted(groups, key=lambda group: (-abs(group.difference_s), group.name))


def _cause(predicted_s: float, measured_s: float, usual_s: float, predicted_beside: float, measured_beside: float) -> Cause:
    difference_s = measured_s - predicted_s
    if abs(difference_s) <= SMALL_ERROR * predicted_s:
        return Cause.PREDICTED
    if difference_s > 0 and measured_s > DISTURBED * usual_s:
        return Cause.DISTURBED
    if difference_s > 0 and measured_beside > predicted_beside + BESIDE:
        return Cause.BESIDE_MORE
    if difference_s < 0 and measured_beside < predicted_beside - BESIDE:
        return Cause.BESIDE_LESS
    return Cause.SHORT if max(predicted_s, measured_s) < SMALL_S else Cause.COST


def _beside(timeline: Timeline) -> Mapping[str, float]:
    """Return by task the share of its time in which another task ran on its device."""
    by_device: dict[str, list[Span]] = defaultdict(list)
    for span in timeline.window():
        by_device[span.device].append(span)
    shares: dict[str, list[float]] = defaultdict(list)
    for spans in by_device.values():
        shared = _shared_until(spans)
        for span in spans:
            if span.end_s > span.start_s:
                shares[span.task].append((shared(span.end_s) - shared(span.start_s)) / (span.end_s - span.start_s))
    return {task: fmean(own) for task, own in shares.items()}


def _shared_until(spans: Iterable[Span]) -> Callable[[float], float]:
    """Return a function: for how many seconds, until a time, two or more of the spans have run at once."""
    borders = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
    times, totals, running = [borders[0][0]], [0.0], 0
    for (time_s, change), (next_s, _) in pairwise([*borders, borders[-1]]):
        running += change
        times.append(next_s)
        totals.append(totals[-1] + (next_s - time_s if running > 1 else 0.0))

    def until(time_s: float) -> float:
        at = bisect_right(times, time_s) - 1
        if at < 0:
            return 0.0
        rest = time_s - times[at]
        more = totals[at + 1] > totals[at] if at + 1 < len(totals) else False
        return totals[at] + (rest if more else 0.0)

    return until
