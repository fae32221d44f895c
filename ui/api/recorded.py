"""`replay` and `diff`: recorded runs of a GPU job. Nothing here loads PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from simulator.replay.diff.stragglers import stragglers
from simulator.replay.diff.traces import Compared, compare_traces
from simulator.replay.whatif.replayed import Replayed, ask, check_rules, one_step, ranked, replayed, with_median_step
from traces.arguments import check_type
from traces.documents.replay_result import ReplayResult
from ui.api.shown import Shown, report
from ui.api.timelines import ShownTimeline
from ui.commands.replaying import print_diff, print_replay

#: A trace, the traces of a job's ranks, or an object that recorded one.
Traces = Any


@dataclass(frozen=True, repr=False)
class Recorded(Shown):
    """A recorded run, replayed. `rules`: the requested changes; without any, those that apply are ranked by their gain."""

    traces: tuple[Path, ...]
    recording: Replayed = field(compare=False)
    rules: tuple[str, ...] = ()

    @cached_property
    def result(self) -> ReplayResult:
        """The document: steps, where their time goes, and what would make them faster."""
        result = ask(self.recording, self.rules).result if self.rules else ranked(self.recording)
        return result.model_copy(update={"stragglers": stragglers(self.recording.replay)})

    @property
    def step_s(self) -> float:
        """Seconds of the recorded steps, on average."""
        return self.result.gpu_period_measured_s

    @property
    def after_s(self) -> float | None:
        """Seconds of a step with all rules; None if none was asked for."""
        return None if self.result.what_if is None else self.result.what_if.gpu_period_after_s

    def what_if(self, *rules: str) -> "Recorded":
        """Answer each rule alone, and all of them together in order: `what_if("loader free", "optimizer=fused")`.

        Raises SchedcastError if none of them can be read.
        """
        check_rules(rules)
        return replace(self, rules=tuple(rules))

    def timeline(self, step: int | None = None) -> ShownTimeline:
        """The recorded step with this number (from 0), by default that of median length."""
        number = self.recording.result.median_step if step is None else step
        return ShownTimeline(one_step(self.recording.replay, self.recording.replay.recording, number, "recorded"))

    def json(self) -> dict[str, Any]:
        """See `Shown`. It includes the timeline of the median step."""
        return with_median_step(self.result, self.recording.replay).document()

    def report(self, path: str | Path, title: str = "Schedcast") -> Path:
        """Write one page for a colleague about this run. Returns its path."""
        return report(Path(path), [self], title)

    def frame(self) -> Any:
        """The requested changes, or the ranking, as a pandas DataFrame: one row per change."""
        import pandas as pd

        rows = self.result.what_if.answers if self.result.what_if is not None else self.result.ladder
        return pd.DataFrame([row.model_dump() for row in rows])

    def _print(self, console: Console) -> None:
        print_replay(self.result, False, console)


@dataclass(frozen=True, repr=False)
class Difference(Shown):
    """Why two recorded runs differ, in terms that add up."""

    compared: Compared = field(compare=False)

    def json(self) -> dict[str, Any]:
        """See `Shown`."""
        return self.compared.diff.document()

    def _print(self, console: Console) -> None:
        print_diff(self.compared.diff, console)


def replay(traces: Traces, rules: Sequence[str] = ()) -> Recorded:
    """See `schedcast.replay`."""
    check_rules(rules)
    files = _files(traces)
    return Recorded(files, replayed(files), tuple(rules))


def diff(before: Traces, after: Traces) -> Difference:
    """See `schedcast.diff`."""
    (first, *_), (second, *_) = _files(before), _files(after)
    return Difference(compare_traces(str(first), str(second)))


def _files(traces: Traces) -> tuple[Path, ...]:
    if isinstance(traces, str | Path):
        return (Path(traces),)
    if hasattr(traces, "trace"):
        return (traces.trace,)
    if isinstance(traces, Recorded):
        return traces.traces
    check_type("a recording", traces, str | Path | Sequence[str | Path] | Recorded)
    return tuple(map(Path, traces))
