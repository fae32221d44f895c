"""Compare two recorded traces, two timelines, or what a validation predicted and measured.

A timeline does not say what a task waited for. A task that starts later than the end of the task before it in its lane waited for the task
of another lane that was the last to end by then, if any ended in between. The remaining time is between tasks: launches, the executor, or
something that is not in the timeline.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.predict.waterfall import LAUNCHES, UNEXPLAINED, WAITING, mean_durations, part_of
from simulator.replay.diff.diff import NOT_REPLAYED, difference, largest
from simulator.replay.diff.run import PYTHON, Node, Run, check_steps, comparable_steps, run_of_replay
from simulator.replay.replay import LAUNCHING
from simulator.replay.replay import PYTHON as PYTHON_PHASE
from simulator.replay.whatif.replayed import replayed, window_of
from traces.documents.comparison import Comparison, ValidationResult
from traces.documents.replay_result import Contribution, Diff, DiffTerm, WhatCompared
from traces.documents.spans import TOLERANCE_S
from traces.documents.timeline import Span, Timeline
from traces.errors import SchedcastError
from traces.process import gc_paused

#: Terms of host threads' spans, which the timeline of a replay has.
_HOST_TERMS = {PYTHON_PHASE: PYTHON, LAUNCHING: LAUNCHES}


def run_of_timeline(timeline: Timeline, name: str) -> Run:
    """Return the steady period of a timeline; it counts from the start of its window to the end."""
    begin_s, end_s = timeline.window_s
    spans = sorted(
        (span for span in timeline.window() if span.end_s > span.start_s or span.start_s >= begin_s),
        key=lambda span: (max(span.start_s, begin_s), span.end_s),
    )
    builder = _Builder(begin_s)
    for span in spans:
        builder.add(span, min(span.end_s, end_s))
    builder.close(end_s)
    steps = max(1, round((end_s - begin_s) / timeline.step_s))
    return Run(name, tuple(builder.nodes), steps, timeline.step_s, timeline, whole=True)


class _Builder:
    def __init__(self, begin_s: float):
        self.nodes: list[Node] = []
        self._begin_s = begin_s
        self._lane_end_s: dict[tuple[str, str], float] = {}
        self._ends: list[tuple[float, int]] = []  # of the spans so far, in order of their ends

    def add(self, span: Span, end_s: float) -> None:
        """Add a span, clipped to the period, and the time for which it waited."""
        lane = (span.device, span.lane)
        reached_s = self._lane_end_s.get(lane, self._begin_s)
        start_s = max(span.start_s, reached_s)
        if start_s > reached_s + TOLERANCE_S:
            source, ended_s = self._last_ended(start_s)
            waits = (source,) if ended_s > reached_s else ()
            self._wait(f"before {span.task}", lane, start_s - max(reached_s, ended_s), waits)
        label = f"{span.layer}, {span.phase}" if span.layer else span.task
        names = (span.task, f"{span.phase} {span.layer}", span.phase)
        term = _HOST_TERMS.get(span.phase) or part_of(span.phase)
        end_s = max(start_s, end_s)
        self.nodes.append(Node(names, label, term, lane, end_s - start_s))
        self._lane_end_s[lane] = end_s
        at = bisect_right(self._ends, (end_s, len(self.nodes)))
        self._ends.insert(at, (end_s, len(self.nodes) - 1))

    def close(self, end_s: float) -> None:
        """Add the time from the end of the last task to the end of the period."""
        last_s = max(self._lane_end_s.values(), default=self._begin_s)
        after = tuple({node.lane: index for index, node in enumerate(self.nodes)}.values())
        self._wait("the end of the period", ("", "period"), end_s - last_s, after)

    def _wait(self, name: str, lane: tuple[str, str], seconds: float, after: tuple[int, ...]) -> None:
        self.nodes.append(Node((name,), name, WAITING, lane, max(0.0, seconds), after))

    def _last_ended(self, by_s: float) -> tuple[int, float]:
        at = bisect_right(self._ends, (by_s + TOLERANCE_S, len(self.nodes)))
        if not at:
            return -1, float("-inf")
        ended_s, index = self._ends[at - 1]
        return index, min(ended_s, by_s)


@dataclass(frozen=True)
class Compared:
    """A difference, and the timelines of both runs, whose windows begin with the first step that counts."""

    diff: Diff
    a: Timeline
    b: Timeline

    def one_step(self) -> tuple[Timeline, Timeline]:
        """Return both timelines with a window as long as their step, and with the busiest host threads alone."""
        first, second = (
            window_of(timeline, timeline.window_s[0], timeline.window_s[0] + timeline.step_s, name)
            for name, timeline in (("A", self.a), ("B", self.b))
        )
        return first, second


def compare_traces(a: Path | str, b: Path | str, progress: Callable[[str], None] = lambda stage: None) -> Compared:
    """Replay both traces and explain the difference of their step times. Raises SchedcastError for traces that cannot be compared.

    `progress` is called before every stage, five times in all.
    """
    replays = [replayed([path], progress).replay for path in (a, b)]
    progress("comparing")
    for replay, path in zip(replays, (a, b), strict=True):
        check_steps(replay, str(path))
    with gc_paused():
        steps = min(map(comparable_steps, replays))
        runs = [run_of_replay(replay, name, steps) for replay, name in zip(replays, _names(a, b), strict=True)]
        return _compared(runs, "traces", NOT_REPLAYED)


def compare_timelines(a: Path | str, b: Path | str) -> Compared:
    """Explain the difference of the step times of two timelines. Raises SchedcastError for timelines that cannot be compared."""
    runs = [run_of_timeline(Timeline.load(path), name) for path, name in zip((a, b), _names(a, b), strict=True)]
    for run, path in zip(runs, (a, b), strict=True):
        if len(run.nodes) == 1:  # the end of the period
            raise SchedcastError(f"timeline {path} has no task in its steady period; make it again")
    return _compared(runs, "timelines", UNEXPLAINED)


def _compared(runs: Sequence[Run], what: WhatCompared, remainder: str) -> Compared:
    a, b = runs
    return Compared(difference(a, b, what, remainder), a.timeline, b.timeline)


def _names(a: Path | str, b: Path | str) -> tuple[str, str]:
    """Return the names of two files; with as many of their folders as tell them apart if the names are the same."""
    parts = Path(a).absolute().parts, Path(b).absolute().parts
    for count in range(1, max(map(len, parts))):
        names = ["/".join(own[-count:]) for own in parts]
        if names[0] != names[1]:
            return names[0], names[1]
    return Path(a).name, Path(b).name


def compare_validated(result: ValidationResult, label: str, timelines: Comparison | None) -> Diff:
    """Explain why a strategy's measured step is not as long as predicted. `timelines`: None if the report has none.

    Raises SchedcastError for a strategy that did not run, or if the document says nothing about it.
    """
    if not result.ok:
        raise SchedcastError(f"{label} did not run ({result.status}); choose a strategy that did")
    names = f"{label} predicted", f"{label} measured"
    if not result.waterfall:
        if timelines is None:
            raise SchedcastError(
                f"the validation does not say where {label}'s time goes; validate again with --out DIR, and name that folder"
            )
        predicted, measured = run_of_timeline(timelines.predicted, names[0]), run_of_timeline(timelines.measured, names[1])
        return difference(predicted, measured, "validation", UNEXPLAINED)
    by_part = _by_part(timelines) if timelines is not None else {}
    predicted_s, measured_s = result.steps_s
    longest_s = max(predicted_s, measured_s)
    terms = tuple(
        DiffTerm(part=change.part, seconds=change.seconds, contributions=largest(by_part.get(change.part, ()), change.seconds, longest_s))
        for change in sorted(result.waterfall, key=lambda change: (change.part == UNEXPLAINED, -abs(change.seconds)))
    )
    return Diff(
        compared="validation",
        a=names[0],
        b=names[1],
        a_step_s=predicted_s,
        b_step_s=measured_s,
        difference_s=measured_s - predicted_s,
        terms=terms,
        remainder_s=sum(term.seconds for term in terms if term.part == UNEXPLAINED),
        steps=1,
        aligned_share=None,
    )


def _by_part(timelines: Comparison) -> dict[str, list[Contribution]]:
    """Return by part what the layers on the predicted critical path contribute: the mean time of their tasks, measured less predicted."""
    predicted, measured = (mean_durations(timeline) for timeline in (timelines.predicted, timelines.measured))
    begin_s, end_s = timelines.predicted.window_s
    spans = {span.task: span for span in timelines.predicted.spans}
    on_path = {link.task for link in timelines.predicted.critical_path if begin_s < link.end_s and link.start_s < end_s}
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for task in on_path & predicted.keys() & measured.keys():
        span = spans[task]
        total = totals[part_of(span.phase), f"{span.layer}, {span.phase}" if span.layer else task]
        total[0] += predicted[task]
        total[1] += measured[task]
    parts: dict[str, list[Contribution]] = defaultdict(list)
    for (part, label), (a_s, b_s) in totals.items():
        parts[part].append(Contribution(label=label, seconds=b_s - a_s, a_s=a_s, b_s=b_s))
    return parts
