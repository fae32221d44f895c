"""Compare two recorded traces, or two timelines."""

from pathlib import Path

from simulator.diff.diff import difference
from simulator.diff.of_replay import check_steps, comparable_steps, run_of_replay
from simulator.diff.of_timeline import run_of_timeline
from simulator.diff.run import Run
from simulator.whatif.replayed import replayed
from traces.diff_result import Diff
from traces.errors import StepcastError
from traces.garbage import gc_paused
from traces.timeline import Timeline


def compare_traces(a: Path | str, b: Path | str) -> tuple[Diff, Run, Run]:
    """Replay both traces and explain the difference of their step times. Raises StepcastError for traces that cannot be compared."""
    recorded = [replayed([path]) for path in (a, b)]
    for each, path in zip(recorded, (a, b), strict=True):
        check_steps(each.replay, str(path))
    with gc_paused():
        steps = min(comparable_steps(each.replay) for each in recorded)
        runs = [run_of_replay(each, Path(path).name, steps) for each, path in zip(recorded, (a, b), strict=True)]
        return difference(*runs, "traces"), *runs


def compare_timelines(a: Path | str, b: Path | str) -> tuple[Diff, Run, Run]:
    """Explain the difference of the step times of two timelines. Raises StepcastError for timelines that cannot be compared."""
    runs = [run_of_timeline(Timeline.load(path), Path(path).name) for path in (a, b)]
    for run, path in zip(runs, (a, b), strict=True):
        if not any(node.seconds for node in run.nodes):
            raise StepcastError(f"timeline {path} has no task in its steady period; make it again")
    return difference(*runs, "timelines"), *runs
