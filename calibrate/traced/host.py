"""Host time in the recorded steps in addition to calling the ops: modules, autograd, the optimizer's own Python, data loading.

The time between two ops that belong to tasks is that of the loop. A call that waited for the device counts as long as a launch. Times are
those under the profiler, which slows the host down; a trace does not say by how much.
"""

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from calibrate.traced.recorded_ops import UPDATE, VIEWS, ZEROING, common_name, phase_within
from calibrate.traced.steps import RecordedStep, Steps
from simulator.plan.task import BACKWARD, FORWARD
from traces.documents.profile import LoopCosts

#: With at least this many steps the time between two ops is the median over steps; with fewer, long ones are clipped.
_SEVERAL = 3
#: Between ops, a time of more than this many medians is clipped if there are few steps.
_LONGEST = 10.0


class HostTimes(NamedTuple):
    """Seconds of the host. `loop`: of plain PyTorch's loop. `outside_s`: from a step's end to the next one's first op; None: one step."""

    loop: LoopCosts
    outside_s: float | None


def host_times(steps: Steps) -> HostTimes:
    """Measure the loop between the ops of the steps that count."""
    parameters = max(1, sum(len(task.body.parameters) for task in steps.plan.tasks if task.body.is_update))
    view_s = _view_s(steps)
    zeroing, updating = _ranges(steps, ZEROING), _ranges(steps, UPDATE)
    gaps = {phase: _between(steps, phase) for phase in (FORWARD, BACKWARD)}
    calls = {phase: [t for t in steps.plan.tasks if t.phase == phase and t.body.op] for phase in (FORWARD, BACKWARD)}
    each_s = {phase: (gaps[phase] - view_s * sum(task.view_calls for task in calls[phase])) / max(1, len(calls[phase])) for phase in calls}
    parameter_s = _before_steps(steps, zeroing) / parameters
    update_s = _update_s(steps, updating)
    if any(task.body.is_update and task.body.form == "for" for task in steps.plan.tasks):  # a task per parameter
        parameter_s, update_s = parameter_s + update_s / parameters, 0.0
    loop = LoopCosts(forward_s=each_s[FORWARD], backward_s=each_s[BACKWARD], view_s=view_s, update_s=update_s, parameter_s=parameter_s)
    return HostTimes(loop, _outside_s(steps, zeroing))


def _view_s(steps: Steps) -> float:
    """The median time of a call that makes a view, called by no other such call."""
    operators = steps.run.operators
    is_view = [operator.name.startswith("aten::") and common_name(operator.name) in VIEWS for operator in operators.all]
    views = [
        operator.end_s - operator.start_s
        for operator, view in zip(operators.all, is_view, strict=True)
        if view and not (operator.parent >= 0 and is_view[operator.parent])
    ]
    return statistics.median(views) if views else 0.0


def _ranges(steps: Steps, phase: str) -> list[int]:
    """The outermost operators and ranges of a phase: annotations of the optimizer, or nodes that accumulate a gradient."""
    operators = steps.run.operators
    of_phase = [phase_within(operator.name) == phase for operator in operators.all]
    return [
        index
        for index, operator in enumerate(operators.all)
        if of_phase[index] and not any(of_phase[outer] for outer in operators.ancestors(operator.parent))
    ]


def _between(steps: Steps, phase: str) -> float:
    """Seconds of the host per step between the ops of a phase and the ops behind them, without waits.

    That includes the hand-over of gradients, and setting them to zero if the user does so between forward and backward.
    """
    run = steps.run
    by_position: dict[int, list[float]] = {}
    for step in steps.complete:
        ops = sorted(step.pairs, key=lambda pair: pair[1].start_s)
        for (before, first), (index, second) in itertools.pairwise(ops):
            task, follower = steps.plan.tasks[before], steps.plan.tasks[index]
            if task.phase == phase:
                start_s = run.issuing(first, task.body.target)[1]
                end_s = run.issuing(second, follower.body.target)[0]
                by_position.setdefault(index, []).append(max(0.0, end_s - start_s - run.blocked_s.within(start_s, end_s)))
    gaps = [statistics.median(samples) for samples in by_position.values()]
    if gaps and len(steps.complete) < _SEVERAL:
        most_s = _LONGEST * statistics.median(gaps)
        gaps = [min(gap, most_s) for gap in gaps]
    return sum(gaps)


def _before_steps(steps: Steps, zeroing: Sequence[int]) -> float:
    """Seconds of the host per step for setting gradients to zero before the first op of a step."""
    operators = steps.run.operators.all
    spans = [(min(op.start_s for _, op in step.pairs), max(op.end_s for _, op in step.pairs)) for step in steps.complete]
    outside = [operators[i] for i in zeroing if not any(begin <= operators[i].start_s < end for begin, end in spans)]
    return statistics.median(one.end_s - one.start_s for one in outside) if outside else 0.0


def _update_s(steps: Steps, ranges: Sequence[int]) -> float:
    """Seconds per step from the end of backward to the end of `optimizer.step()`, without the ops of the update, and without waits."""
    run = steps.run
    seconds = []
    for step in steps.complete:
        ops = sorted((op for each in step.updates.values() for op in each), key=lambda op: op.start_s)
        if ops:
            around = [run.operators.all[i] for i in ranges if run.operators.all[i].start_s <= ops[0].start_s < run.operators.all[i].end_s]
            start_s, end_s = (around[0].start_s, around[0].end_s) if around else (ops[0].start_s, ops[-1].end_s)
            start_s = min(start_s, max((op.end_s for _, op in step.pairs if op.end_s <= start_s), default=start_s))
            inner_s = sum(op.end_s - op.start_s - run.blocked_s.within(op.start_s, op.end_s) for op in ops)
            seconds.append(max(0.0, end_s - start_s - run.blocked_s.within(start_s, end_s) - inner_s))
    return statistics.median(seconds) if seconds else 0.0


def _outside_s(steps: Steps, zeroing: Sequence[int]) -> float | None:
    """The median time from the last op of a step to the first of the next, without the setting of gradients to zero."""
    run = steps.run
    excluded = [(run.operators.all[index].start_s, run.operators.all[index].end_s) for index in zeroing]
    pauses = []
    for before, after in zip(steps.complete, steps.complete[1:], strict=False):
        if after.iteration == before.iteration + 1:
            start_s, end_s = max(op.end_s for op in before.matched), after.matched[0].start_s
            pauses.append(end_s - start_s - sum(e - s for s, e in excluded if start_s <= s and e <= end_s))
    return max(0.0, statistics.median(pauses)) if pauses else None


def device_span_s(steps: Steps) -> float:
    """The median time from the first kernel of a step to the end of its last one."""
    return statistics.median(_span(steps, step)[1] - _span(steps, step)[0] for step in steps.complete)


def device_period_s(steps: Steps) -> float | None:
    """The median time from the first kernel of a step to that of the next; None if no two steps follow each other."""
    starts = [(step.iteration, _span(steps, step)[0]) for step in steps.complete]
    periods = [b - a for (one, a), (other, b) in itertools.pairwise(starts) if other == one + 1]
    return statistics.median(periods) if periods else None


def _span(steps: Steps, step: RecordedStep) -> tuple[float, float]:
    works = [steps.run.recording.works[index] for op in step.matched for index in op.works]
    return min(work.start_s for work in works), max(work.end_s for work in works)
