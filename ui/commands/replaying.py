"""`schedcast replay`."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from simulator.replay.diff.stragglers import stragglers
from simulator.replay.whatif.replayed import Answer, ask, check_rules, ranked, replayed
from traces.documents.replay_result import ReplayResult
from traces.formats.perfetto import export
from traces.outputs import check_outputs
from ui.commands.output import print_document, print_then_write
from ui.present.text import replays as replay_words
from ui.present.text import stragglers as straggler_words
from ui.present.text.terminal import Grid
from ui.present.text.terminal import console as terminal
from ui.service.jobs import stages

#: Columns of words; the others are numbers, which are aligned to the right.
WORDS = ("change", "note", "stream", "step", replay_words.PART, "slow step", "most of it")


def replay(
    traces: Sequence[Path], rules: Sequence[str], timeline: Path | None, perfetto: Path | None, details: bool, as_json: bool
) -> None:
    """Replay traces, apply the rules or rank the default changes, and print the results.

    Exit with 1 if a rule has no answer: it cannot be read, or the recording has nothing that it changes.
    """
    check_rules(rules)
    check_outputs({"--timeline": timeline, "--perfetto": perfetto}, [("the trace", trace) for trace in traces])
    with stages("replaying", len(traces) + 2, as_json) as told:
        recording = replayed(traces, told)
        told("asking what would make it faster")
        answer = ask(recording, rules) if rules else None
        result = recording.result.model_copy(update={"what_if": answer.what_if}) if answer else ranked(recording)
        if len(traces) > 1:
            result = result.model_copy(update={"stragglers": stragglers(recording)})
    writers = []
    if timeline is not None:
        writers.append(lambda: (answer.timeline if answer else recording.simulated).save(timeline))
    if perfetto is not None:
        runs = {"recorded": recording.replay.recorded, "replayed": recording.simulated} | ({"what if": answer.timeline} if answer else {})
        writers.append(lambda: export(perfetto, runs))
    print_then_write(lambda: print_document(result.document()) if as_json else _print(result, details), *writers)
    if answer is not None and _unanswered(answer):
        raise typer.Exit(1)


def _unanswered(answer: Answer) -> bool:
    return len(answer.what_if.rules) < len(answer.what_if.answers)


def _print(result: ReplayResult, details: bool) -> None:
    console = terminal()
    console.print(replay_words.headline(result), style="bold", highlight=False, markup=False)
    lines = [*replay_words.wait_words(result, result.median_step), *replay_words.ladder_words(result), *replay_words.slow_words(result)]
    lines += straggler_words.words(result.stragglers, result.gpu_period_simulated_s)
    _print_lines(console, (*lines, *replay_words.replay_words(result)))
    name = replay_words.step_name(result, result.median_step)
    console.print(table(f"Where the time of {name} goes", replay_words.diagnosis_cells(result)))
    if result.slow_steps:
        console.print(table("Slow steps", replay_words.slow_cells(result)))
    if result.stragglers:
        console.print(table(straggler_words.TITLE, straggler_words.cells(result.stragglers), (straggler_words.RANK,)))
    if result.what_if is None and result.ladder:
        console.print(table("Changes, each alone", replay_words.ladder_cells(result)))
        console.print(
            table("Bounds: what a host, a network or an optimizer that takes no time would gain", replay_words.bounds_cells(result))
        )
    elif result.what_if is not None:
        console.print(table("Changes, each alone", replay_words.answers_cells(result.what_if)))
        _print_lines(console, replay_words.what_if_words(result.what_if))
    if details:
        _print_details(console, result)
    else:
        console.print("--details shows the rules, what they assume, and how well the replay places the kernels.", highlight=False)


def _print_details(console: Console, result: ReplayResult) -> None:
    """Print what was assumed, the streams and steps, and the worst-placed kernels."""
    if result.what_if is not None:
        _print_lines(console, replay_words.assumption_words(result.what_if))
    else:
        _print_lines(console, replay_words.rule_words(result))
    for title, cells in (("Busiest streams", replay_words.busy_cells(result)), ("Steps", replay_words.step_cells(result))):
        if cells:
            console.print(table(title, cells))
    _print_lines(console, replay_words.misplaced_words(result))


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"- {line}", highlight=False, markup=False)


def table(title: str, cells: list[dict[str, str]], words: Sequence[str] = WORDS) -> Grid:
    """Return the rows as a table for a terminal. `words`: the columns that hold no numbers."""
    return Grid(cells, words, title=title)
