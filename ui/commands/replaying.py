"""`stepcast replay`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.whatif import registry as whatif
from simulator.whatif.replayed import ask, replayed
from traces.outputs import check_outputs
from traces.perfetto import export
from ui.commands.output import print_document
from ui.text import replays as replay_words


def replay(traces: Sequence[Path], rules: Sequence[str], timeline: Path | None, perfetto: Path | None, as_json: bool) -> None:
    """Replay traces, apply the rules, and print the results."""
    for rule in rules:
        whatif.parse(rule)
    check_outputs({"--timeline": timeline, "--perfetto": perfetto}, [("the trace", trace) for trace in traces])
    recording = replayed(traces)
    answer = ask(recording, rules) if rules else None
    result = recording.result.model_copy(update={"what_if": answer.what_if}) if answer else recording.result
    if timeline is not None:
        (answer.timeline if answer else recording.simulated).save(timeline)
    if perfetto is not None:
        runs = {"recorded": recording.replay.recorded, "replayed": recording.simulated}
        export(perfetto, runs | ({"what if": answer.timeline} if answer else {}))
    if as_json:
        print_document(result.document())
        return
    console = Console()
    for line in replay_words.replay_words(result):
        console.print(f"- {line}", highlight=False, markup=False)
    for title, cells in (
        ("Busiest streams", replay_words.busy_cells(result)),
        ("Steps", replay_words.step_cells(result)),
    ):
        if cells:
            console.print(_table(title, cells))
    for line in replay_words.misplaced_words(result):
        console.print(f"- {line}", highlight=False, markup=False)
    if result.what_if is not None:
        for line in replay_words.what_if_words(result.what_if):
            console.print(f"- {line}", highlight=False, markup=False)


def _table(title: str, cells: list[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for head in cells[0]:
        table.add_column(head, justify="left" if head in ("stream", "step") else "right", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row.values()))
    return table
