"""Replay traces, compare the replay with its recording, apply what-if rules to it, and mark what they changed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import fsum
from pathlib import Path

from simulator.plan.task import BACKWARD, UPDATE
from simulator.replay.build import build_replay
from simulator.replay.compare import boundaries, compare, times_of
from simulator.replay.diagnosis import diagnose_steps, mean_of, verdict
from simulator.replay.nodes import HOST, LOST_LAUNCH
from simulator.replay.ranks import read_ranks
from simulator.replay.replay import Replay, simulate_replay
from simulator.replay.whatif.edit import backward_names, with_tasks
from simulator.replay.whatif.loader import paced_by_workers
from simulator.replay.whatif.ranking import RANKING_S, Before, answer_rule, rank_changes
from simulator.replay.whatif.registry import apply_rules, parse
from simulator.replay.whatif.roofline import roofline
from traces import units
from traces.documents.replay_result import (
    TOLERANCE,
    ChangedStep,
    MemoryPeak,
    ReplayResult,
    ReplayStep,
    WhatIf,
)
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from traces.formats.recording import Recording
from traces.process import gc_paused

#: The largest number of rules in one question, and of host threads in a picture.
MOST_RULES, SHOWN_THREADS = 16, 4
#: A step that takes this many times as long as the median step is a slow one; the largest number of waits of a step in the document.
SLOW, MOST_WAITS = 1.25, 3


@dataclass(frozen=True)
class Replayed:
    """A replay, its simulated timeline, and its comparison with the recording."""

    replay: Replay
    simulated: Timeline
    result: ReplayResult

    @cached_property
    def before(self) -> Before:
        """The replay as it is before a change."""
        return Before(self.replay, self.result.gpu_period_simulated_s, self.result.diagnosis)


@dataclass(frozen=True)
class Answer:
    """What was `recorded`, changed by rules: the changed replay, its timeline, and the gain."""

    recorded: Replayed
    replay: Replay
    timeline: Timeline
    what_if: WhatIf

    @property
    def result(self) -> ReplayResult:
        """The result of the replay, with the gain."""
        return self.recorded.result.model_copy(update={"what_if": self.what_if})


def replayed(traces: Sequence[Path | str], progress: Callable[[str], None] = lambda stage: None) -> Replayed:
    """Replay one trace per rank of a job. Raises SchedcastError for files that cannot be replayed.

    `progress` is called before every stage: each trace that is read, and of the replay.
    """
    with gc_paused():
        recordings, notes = read_ranks(traces, progress)
        progress("replaying")
        return _replayed(recordings, notes)


def _replayed(recordings: Sequence[Recording], notes: Sequence[str]) -> Replayed:
    replay = paced_by_workers(with_backward(build_replay(recordings)))
    unmatched = sum(recording.unmatched for recording in recordings)
    simulated = simulate_replay(replay)
    comparison = compare(replay, simulated)
    steps = diagnose_steps(replay, replay.recording)
    lengths = [step.measured_s for step in comparison.steps]
    median = typical_step(lengths)
    result = ReplayResult(
        gpu_period_measured_s=comparison.period_measured_s,
        gpu_period_simulated_s=comparison.period_simulated_s,
        error=comparison.error,
        disagreement=_disagreement(comparison.error, comparison.steps[median]),
        doubt=replay.doubt,
        steps=tuple(
            step.model_copy(update={"parts": own.parts, "waits": own.waits[:MOST_WAITS], "ranks": own.ranks[:MOST_WAITS]})
            for step, own in zip(comparison.steps, steps, strict=True)
        ),
        median_step=median,
        slow_steps=slow_steps(lengths),
        kernels=comparison.kernels,
        streams=len(comparison.streams),
        unmatched_kernels=unmatched,
        exposed_communication_measured_s=comparison.exposed_measured_s,
        exposed_communication_simulated_s=comparison.exposed_simulated_s,
        busy=comparison.streams,
        misplaced=comparison.worst,
        notes=(*notes, *replay.notes),
        diagnosis=mean_of(steps),
        memory=tuple(peak for recording in recordings for peak in memory_peaks(recording)),
        roofline=roofline(min(recordings, key=lambda recording: recording.rank), comparison.period_measured_s),
    )
    return Replayed(replay, simulated, result)


def _disagreement(error: float, median: ReplayStep) -> float | None:
    """Return the larger of the errors of the mean and of the median step if it is beyond the tolerance."""
    errors = [error, median.simulated_s / median.measured_s - 1 if median.measured_s else 0.0]
    largest = max(errors, key=abs)
    return largest if abs(largest) > TOLERANCE else None


def memory_peaks(recording: Recording) -> list[MemoryPeak]:
    """Return the peak memory of each GPU of a rank, if its changes of memory were recorded."""
    peaks = []
    for device in sorted({change.device for change in recording.memory}):
        changes = [change for change in recording.memory if change.device == device]
        held = [change.allocated for change in changes if change.allocated is not None]
        reserved = [change.reserved for change in changes if change.reserved is not None]
        total = recording.operators.properties.get(device, {}).get("totalGlobalMem")
        peaks.append(
            MemoryPeak(
                rank=recording.rank,
                device=device,
                allocated_bytes=max(held) if held else max(0, *accumulate(change.bytes for change in changes)),
                reserved_bytes=max(reserved) if held and reserved else None,
                memory_bytes=total if isinstance(total, int) and 0 < total < 2**63 else None,
            )
        )
    return peaks


def with_backward(replay: Replay) -> Replay:
    """Return the replay with its backward tasks marked as such, if the recording identifies them by its threads or its kernels' names.

    A recording without updates is not of a training step and is returned unchanged.
    """
    updates = [task.name for task in replay.tasks if task.phase == UPDATE]
    names = backward_names(replay, updates) if updates else set()
    if not names:
        return replay
    rows = replay.rows
    tasks = [replace(task, phase=BACKWARD) if task.name in names else task for task in replay.tasks]
    changed = with_tasks(replay, tasks, position=rows.position, on_host=rows.on_host, lanes=rows.lanes, after=rows.after)
    spans = tuple(replace(span, phase=BACKWARD) if span.task in names else span for span in replay.recording.spans)
    return replace(changed, recorded=replace(replay.recording, spans=spans))


def ranked(recorded: Replayed, seconds: float = RANKING_S) -> ReplayResult:
    """Return the result with the ranking of the default changes, which takes about `seconds` at most.

    There is none if the replay does not explain the recording, nor for a recording of a single step: what the host did before and after the
    step, and what the step waited for at its start, would decide the gains.
    """
    if len(recorded.result.steps) < 2 or recorded.result.disagreement is not None:
        return recorded.result
    result = recorded.result
    steps = rank_changes(recorded.before, seconds, named=verdict(result.steps[result.median_step]))
    return result.model_copy(update={"ladder": steps.rows, "bounds": steps.bounds, "ladder_left_out": steps.left_out})


def check_rules(rules: Sequence[str]) -> None:
    """Raise SchedcastError if there are too many rules, or if there are some and none of them can be read.

    Whether a regular expression can be read is known only when it is applied.
    """
    if len(rules) > MOST_RULES:
        raise SchedcastError(f"got {len(rules)} what-if rules; expected at most {MOST_RULES}")
    errors = []
    for rule in rules:
        try:
            parse(rule)
        except SchedcastError as error:
            errors.append(error)
    if rules and len(errors) == len(rules):
        raise errors[0]


def ask(recorded: Replayed, rules: Sequence[str]) -> Answer:
    """Answer each rule alone, then apply all that have an answer, one after another, and simulate the result.

    Rules without an answer do not affect the others. Raises SchedcastError if there are too many rules, or if none of them can be read.
    """
    check_rules(rules)
    before = recorded.before
    answers = [answer_rule(before, rule) for rule in rules]
    unread = [answer.reason for answer in answers if not answer.readable and answer.reason is not None]
    if answers and len(unread) == len(answers):
        raise SchedcastError(unread[0])
    changed, applied, assumptions = recorded.replay, [], []
    for number, answer in enumerate(answers):
        if answer.step_s is not None:
            try:
                changed, assumed = apply_rules(changed, [answer.rule])
            except SchedcastError as error:  # after an earlier rule, there is nothing for it to change
                answers[number] = answer.model_copy(update={"reason": f"after the rules before it: {error}"})
            else:
                applied.append(answer.rule)
                assumptions += assumed
    timeline = simulate_replay(changed)
    steps = diagnose_steps(changed, timeline)
    after_s = before.step_after_s(changed)
    what_if = WhatIf(
        rules=tuple(applied),
        assumptions=tuple(dict.fromkeys(assumptions)),
        gpu_period_before_s=before.step_s,
        gpu_period_after_s=after_s,
        speedup=before.step_s / after_s if after_s > 0 else None,
        answers=tuple(answers),
        diagnosis=mean_of(steps),
        remark=_remark(recorded.result),
        steps=tuple(
            ChangedStep(name=step.name, seconds=fsum(part.seconds for part in own.parts), parts=own.parts)
            for step, own in zip(changed.steps, steps, strict=True)
        ),
    )
    return Answer(recorded, changed, timeline, what_if)


def _remark(result: ReplayResult) -> str:
    if result.disagreement is None:
        return ""
    off = units.percent(result.disagreement)
    return f"The replay that these answers rest on is {off} off the recording: they may be wrong by as much."


def typical_step(lengths: Sequence[float]) -> int:
    """Return the number of the step with the median length, of two the shorter; the first does not count, unless it is the only one."""
    numbers = sorted(_counted(lengths), key=lengths.__getitem__)
    return numbers[(len(numbers) - 1) // 2]


def slow_steps(lengths: Sequence[float]) -> tuple[int, ...]:
    """Return the numbers of the steps that take at least `SLOW` times as long as the median step, the slowest first."""
    limit = SLOW * lengths[typical_step(lengths)]
    return tuple(sorted((number for number in _counted(lengths) if lengths[number] >= limit), key=lambda number: -lengths[number]))


def _counted(lengths: Sequence[float]) -> range:
    return range(1 if len(lengths) > 1 else 0, len(lengths))


def one_step(replay: Replay, timeline: Timeline, number: int, kind: str) -> Timeline:
    """Return `timeline` with step `number` (the last one, if there are fewer) as its window, under another `kind`.

    Of the host, the threads with the most calls in the window are retained.
    """
    borders = boundaries(replay, times_of(timeline))
    return window_of(timeline, *list(pairwise(borders))[: number + 1][-1], kind)


def with_median_step(result: ReplayResult, replay: Replay) -> ReplayResult:
    """Return `result` with the timeline of its median step, as recorded: the work on devices and the calls of the busiest host threads."""
    step = one_step(replay, replay.recording, result.median_step, "recorded")
    return result.model_copy(update={"timeline": replace(step, spans=step.window())})


def window_of(timeline: Timeline, start: float, end: float, kind: str) -> Timeline:
    """Return `timeline` with its window from `start` to `end`, in seconds, and its host threads as in `one_step`."""
    calls = Counter(
        span.lane
        for span in timeline.spans
        if span.device == HOST and LOST_LAUNCH not in span.task and start < span.end_s and span.start_s < end
    )
    threads = {thread for thread, _ in calls.most_common(SHOWN_THREADS)}
    spans = tuple(span for span in timeline.spans if span.device != HOST or span.lane in threads)
    path = tuple(link for link in timeline.critical_path if start < link.end_s and link.start_s < end)
    return replace(timeline, kind=kind, spans=spans, step_s=end - start, window_s=(start, end), critical_path=path)


#: The phases under which changed tasks are drawn.
SHORTER, LONGER, REMOVED, NEW = "shorter", "longer", "removed", "new"
#: Tasks whose durations differ by less than this share, and this many seconds, are as they were.
SAME_SHARE, SAME_S = 0.01, 5e-7


@dataclass(frozen=True)
class Changes:
    """By kind of change, the tasks and by how many seconds they are longer in all."""

    kind: Mapping[str, str]
    seconds: Mapping[str, float]

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks by kind of change, in a fixed order."""
        numbers = Counter(self.kind.values())
        return {kind: numbers[kind] for kind in (SHORTER, LONGER, REMOVED, NEW) if numbers[kind]}


def changes(before: Timeline, after: Timeline) -> Changes:
    """Return what differs between two simulations of one recording, whose tasks have the same names."""
    lengths = [{span.task: span.end_s - span.start_s for span in timeline.spans} for timeline in (before, after)]
    kinds: dict[str, str] = {}
    seconds: dict[str, float] = defaultdict(float)
    for task in lengths[0].keys() | lengths[1].keys():
        old, new = (own.get(task) for own in lengths)
        kind = REMOVED if new is None else NEW if old is None else _kind(old, new)
        if kind:
            kinds[task] = kind
            seconds[kind] += (new or 0.0) - (old or 0.0)
    return Changes(kinds, seconds)


def _kind(old_s: float, new_s: float) -> str:
    if abs(new_s - old_s) <= max(SAME_SHARE * old_s, SAME_S):
        return ""
    return SHORTER if new_s < old_s else LONGER


def marked(timeline: Timeline, changed: Changes) -> Timeline:
    """Return a timeline whose changed tasks have their kind of change as their phase, so that they are drawn in its color."""
    spans = tuple(replace(span, phase=changed.kind[span.task]) if span.task in changed.kind else span for span in timeline.spans)
    return replace(timeline, spans=spans)
