"""`schedcast replay` and `schedcast diff`: the commands that read recorded runs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console

from simulator.replay.diff.stragglers import stragglers
from simulator.replay.diff.traces import compare_timelines, compare_traces, compare_validated
from simulator.replay.whatif.replayed import ask, check_rules, ranked, replayed, with_median_step
from traces.documents.comparison import ValidationResult
from traces.documents.replay_result import Diff, ReplayResult
from traces.documents.timeline import SCHEMA, Timeline
from traces.errors import SchedcastError, UnknownNameError
from traces.files import kind_at, starts_with_schema
from traces.formats.perfetto import export
from traces.outputs import OutputFolder, check_outputs
from ui.commands.output import DIFF, print_then_write
from ui.present import diffs, replays
from ui.present.labels import labelled_rows
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.service.progress import stages


def replay(
    traces: Sequence[Path], rules: Sequence[str], timeline: Path | None, perfetto: Path | None, details: bool, as_json: bool
) -> None:
    """Replay traces, apply the rules or rank the default changes, and print the results.

    Exit with 1 if a rule has no answer: it cannot be read, or the recording has nothing that it changes.
    """
    check_rules(rules)
    check_outputs({"--timeline": timeline, "--perfetto": perfetto}, [("the trace", trace) for trace in traces])
    with stages("replaying", len(traces) + 2, as_json) as progress:
        recorded = replayed(traces, progress)
        progress("asking what would make it faster")
        answer = ask(recorded, rules) if rules else None
        result = answer.result if answer else ranked(recorded)
        result = result.model_copy(update={"stragglers": stragglers(recorded.replay)})
    runs = {"recorded": recorded.replay.recording, "replayed": recorded.simulated} | ({"what if": answer.timeline} if answer else {})
    print_then_write(
        as_json,
        lambda: with_median_step(result, recorded.replay).document(),
        lambda: print_replay(result, details, terminal()),
        None if timeline is None else lambda: (answer.timeline if answer else recorded.simulated).save(timeline),
        None if perfetto is None else lambda: export(perfetto, runs),
    )
    if answer is not None and len(answer.what_if.rules) < len(answer.what_if.answers):
        raise typer.Exit(1)


def print_replay(result: ReplayResult, details: bool, console: Console) -> None:
    """Print what a replay says, from the verdict down to, with `details`, what was assumed."""
    show(console, *replays.blocks(result), details=details)
    if not details:
        console.print("--details shows the rules, what they assume, and how well the replay places the kernels.", highlight=False)


def diff(a: str, b: str | None, perfetto: Path | None, out: Path | None, as_json: bool) -> None:
    """Explain why one run is slower than another, and write both for the eye."""
    inputs = [("A", Path(a))] + ([("B", Path(b))] if b is not None else [])
    folder = None if out is None else OutputFolder(out, DIFF)
    check_outputs({"--perfetto": perfetto, "--out": folder}, inputs)
    with stages("comparing", STAGES, as_json) as progress:
        document, timelines, steps = _validated(a) if b is None else _files(a, b, progress)
    if perfetto is not None and not timelines:
        raise SchedcastError(f"--perfetto needs timelines, and {a} has none; validate with --out DIR writes them")
    print_then_write(
        as_json,
        document.document,
        lambda: print_diff(document, terminal()),
        None if perfetto is None else lambda: export(perfetto, timelines),
        None if out is None else lambda: _write(out, document, timelines, steps),
    )


#: What `compare_traces` does: reads and replays either trace, and compares them.
STAGES = 5


def _files(a: str, b: str, progress: Callable[[str], None]) -> tuple[Diff, Mapping[str, Timeline], tuple[Timeline, ...]]:
    """Compare two traces, or two timelines. Returns the difference, both runs, and one step of each."""
    for name in (a, b):
        if kind_at(name) == "folder":
            raise SchedcastError(
                f"{name} is a folder; expected two traces or two timelines, or one report folder alone: schedcast diff {name}"
            )
    are_timelines = [starts_with_schema(name, SCHEMA) for name in (a, b)]
    if are_timelines[0] != are_timelines[1]:
        timeline, trace = (a, b) if are_timelines[0] else (b, a)
        raise SchedcastError(
            f"{timeline} is a timeline and {trace} is not; expected two alike: schedcast replay {trace} --timeline FILE makes a timeline"
        )
    compared = compare_timelines(a, b) if are_timelines[0] else compare_traces(a, b, progress)
    return compared.diff, {"A": compared.a, "B": compared.b}, compared.one_step()


def _validated(name: str) -> tuple[Diff, Mapping[str, Timeline], tuple[Timeline, ...]]:
    """Compare predicted with measured in a report folder, given as FOLDER or FOLDER:STRATEGY. Returns what `_files` does."""
    from ui.present.report import read_report

    place, strategy = _place(name)
    report = read_report(place)
    rows: list[tuple[str, ValidationResult, int]] = []
    for number, validation in enumerate(report.validations):
        several = f" of {validation.model}" if len(report.validations) > 1 else ""
        rows += [(f"{label}{several}", row, number) for label, row in labelled_rows(validation)]
    ran = [row for row in rows if row[1].ok]
    if strategy is None and len(ran) != 1:
        raise SchedcastError(f"{place} has {len(ran)} strategies; name one: {place}:{(ran or rows)[0][0]}")
    chosen = ran[0] if strategy is None else next((row for row in rows if strategy in (row[0], row[0].partition(" of ")[0])), None)
    if chosen is None:
        raise UnknownNameError("strategy", str(strategy), [label for label, *_ in rows], f"{place} holds these")
    label, result, number = chosen
    timelines = next((each for each in report.comparisons[number] if each.result == result), None)
    both = {} if timelines is None else {"predicted": timelines.predicted, "measured": timelines.measured}
    return compare_validated(result, label, timelines), both, tuple(both.values())


def _place(name: str) -> tuple[str, str | None]:
    """Divide FOLDER:STRATEGY at the first colon before which a file or a folder has this name."""
    if not kind_at(name):
        colons = [at for at, character in enumerate(name) if character == ":"]
        for at in colons:
            if kind_at(name[:at]):
                return name[:at], name[at + 1 :]
    elif kind_at(name) == "file" and not starts_with_schema(name, "schedcast.validation/"):
        raise SchedcastError(f"diff compares two: {name} and what? expected a second trace or timeline, or a report folder alone")
    return name, None


def print_diff(document: Diff, console: Console) -> None:
    """Print why two runs differ."""
    show(console, *diffs.blocks(document))


def _write(out: Path, document: Diff, timelines: Mapping[str, Timeline], steps: Sequence[Timeline]) -> None:
    print(f"report: {diffs.write(out, document, timelines, steps)}", file=sys.stderr)
