"""Compare two recorded traces, or two timelines."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulator.predict.waterfall import UNEXPLAINED
from simulator.replay.diff.diff import NOT_REPLAYED, difference
from simulator.replay.diff.of_replay import check_steps, comparable_steps, run_of_replay
from simulator.replay.diff.of_timeline import run_of_timeline
from simulator.replay.diff.run import Run
from simulator.replay.whatif.replayed import replayed, window_of
from traces.documents.diff_result import Diff
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from traces.garbage import gc_paused


@dataclass(frozen=True)
class Compared:
    """A difference, and the timelines of both runs, whose windows begin with the first step that counts."""

    diff: Diff
    a: Timeline
    b: Timeline

    def one_step(self) -> tuple[Timeline, Timeline]:
        """Return both timelines with a window as long as their step, and with the busiest host threads alone."""
        return tuple(
            window_of(timeline, timeline.window_s[0], timeline.window_s[0] + timeline.step_s, name)
            for name, timeline in (("A", self.a), ("B", self.b))
        )


def compare_traces(a: Path | str, b: Path | str, told: Callable[[str], None] = lambda stage: None) -> Compared:
    """Replay both traces and explain the difference of their step times. Raises SchedcastError for traces that cannot be compared.

    `told` hears of every stage before it begins, five in all.
    """
    recorded = [replayed([path], told) for path in (a, b)]
    told("comparing")
    for each, path in zip(recorded, (a, b), strict=True):
        check_steps(each.replay, str(path))
    with gc_paused():
        steps = min(comparable_steps(each.replay) for each in recorded)
        runs = [run_of_replay(each, name, steps) for each, name in zip(recorded, _names(a, b), strict=True)]
        return _compared(*runs, "traces", NOT_REPLAYED)


def compare_timelines(a: Path | str, b: Path | str) -> Compared:
    """Explain the difference of the step times of two timelines. Raises SchedcastError for timelines that cannot be compared."""
    runs = [run_of_timeline(Timeline.load(path), name) for path, name in zip((a, b), _names(a, b), strict=True)]
    for run, path in zip(runs, (a, b), strict=True):
        if len(run.nodes) == 1:  # the end of the period
            raise SchedcastError(f"timeline {path} has no task in its steady period; make it again")
    return _compared(*runs, "timelines", UNEXPLAINED)


def _compared(a: Run, b: Run, what: str, remainder: str) -> Compared:
    return Compared(difference(a, b, what, remainder), a.timeline, b.timeline)


def _names(a: Path | str, b: Path | str) -> tuple[str, str]:
    """Return the names of two files; with as many of their folders as tell them apart if the names are the same."""
    parts = Path(a).absolute().parts, Path(b).absolute().parts
    for count in range(1, max(map(len, parts))):
        names = ["/".join(own[-count:]) for own in parts]
        if names[0] != names[1]:
            return names[0], names[1]
    return Path(a).name, Path(b).name
