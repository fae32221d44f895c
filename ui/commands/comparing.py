"""`schedcast diff`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulator.replay.diff.traces import compare_timelines, compare_traces, compare_validated
from traces.documents.comparison import ValidationResult
from traces.documents.diff_result import Diff
from traces.documents.timeline import SCHEMA, Timeline
from traces.errors import SchedcastError, UnknownNameError
from traces.files import starts_with_schema
from traces.formats.perfetto import export
from traces.outputs import OutputFolder, check_outputs
from ui.commands.output import print_document, print_then_write
from ui.commands.replaying import table
from ui.present.reports.folders import DIFF
from ui.present.text import diffs as diff_words
from ui.present.text.labels import labelled_rows
from ui.present.text.terminal import console as terminal
from ui.present.text.waterfalls import terminal_table
from ui.service.jobs import stages


def diff(a: str, b: str | None, perfetto: Path | None, out: Path | None, as_json: bool) -> None:
    """Explain why one run is slower than another, and write both for the eye."""
    inputs = [("A", Path(a))] + ([("B", Path(b))] if b is not None else [])
    folder = None if out is None else OutputFolder(out, DIFF)
    check_outputs({"--perfetto": perfetto, "--out": folder}, inputs)
    with stages("comparing", STAGES, as_json) as told:
        document, timelines, steps = _validated(a) if b is None else _files(a, b, told)
    if perfetto is not None and not timelines:
        raise SchedcastError(f"--perfetto needs timelines, and {a} has none; validate with --out DIR writes them")
    writers: list[Callable[[], object]] = []
    if perfetto is not None:
        writers.append(lambda: export(perfetto, timelines))
    if out is not None:
        writers.append(lambda: _write(out, document, timelines, steps))
    print_then_write(lambda: print_document(document.document()) if as_json else _print(document), *writers)


#: What `compare_traces` does: reads and replays either trace, and compares them.
STAGES = 5


def _files(a: str, b: str, told: Callable[[str], None]) -> tuple[Diff, Mapping[str, Timeline], tuple[Timeline, ...]]:
    """Compare two traces, or two timelines. Returns the difference, both runs, and one step of each."""
    for name in (a, b):
        if os.path.isdir(name):
            raise SchedcastError(
                f"{name} is a folder; expected two traces or two timelines, or one report folder alone: schedcast diff {name}"
            )
    are_timelines = [starts_with_schema(name, SCHEMA) for name in (a, b)]
    if are_timelines[0] != are_timelines[1]:
        timeline, trace = (a, b) if are_timelines[0] else (b, a)
        raise SchedcastError(
            f"{timeline} is a timeline and {trace} is not; expected two alike: schedcast replay {trace} --timeline FILE makes a timeline"
        )
    compared = compare_timelines(a, b) if are_timelines[0] else compare_traces(a, b, told)
    return compared.diff, {"A": compared.a, "B": compared.b}, compared.one_step()


def _validated(name: str) -> tuple[Diff, Mapping[str, Timeline], tuple[Timeline, ...]]:
    """Compare predicted with measured in a report folder, given as FOLDER or FOLDER:STRATEGY. Returns what `_files` does."""
    from ui.present.reports.report import read_report  # here, because it loads matplotlib and torch

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
        raise UnknownNameError("strategy", strategy, [label for label, *_ in rows], f"{place} holds these")
    label, result, number = chosen
    timelines = next((each for each in report.comparisons[number] if each.result == result), None)
    both = {} if timelines is None else {"predicted": timelines.predicted, "measured": timelines.measured}
    return compare_validated(result, label, timelines), both, tuple(both.values())


def _place(name: str) -> tuple[str, str | None]:
    """Divide FOLDER:STRATEGY at the first colon before which a file or a folder has this name."""
    if not os.path.exists(name):
        colons = [at for at, character in enumerate(name) if character == ":"]
        for at in colons:
            if os.path.exists(name[:at]):
                return name[:at], name[at + 1 :]
    elif os.path.isfile(name) and not starts_with_schema(name, "schedcast.validation/"):
        raise SchedcastError(f"diff compares two: {name} and what? expected a second trace or timeline, or a report folder alone")
    return name, None


def _print(document: Diff) -> None:
    console = terminal()
    console.print(diff_words.headline(document), style="bold", highlight=False, markup=False)
    for line in diff_words.words(document):
        console.print(f"- {line}", highlight=False, markup=False)
    console.print(terminal_table(diff_words.diff_bars(document), console.width))
    console.print(table("", diff_words.cells(document), (diff_words.TERM,)))


def _write(out: Path, document: Diff, timelines: Mapping[str, Timeline], steps: Sequence[Timeline]) -> None:
    from ui.present.reports import diff as diff_report  # here, because it loads matplotlib

    print(f"report: {diff_report.write(out, document, timelines, steps)}", file=sys.stderr)
