"""`schedcast reproduce`: compares what papers published with predictions."""

import sys
from functools import partial
from pathlib import Path

import typer

from simulator.papers import registry as reproduce
from simulator.papers.predicting import Steps
from traces.documents.reproduction import Paper, Reproduction
from traces.documents.shipped import reproduction_file
from traces.errors import SchedcastError
from traces.outputs import OutputFolder, check_outputs
from traces.process import interrupts_delayed
from ui.commands import listing
from ui.commands.output import REPRODUCTION, print_json, print_then_write
from ui.present import reproductions
from ui.present.blocks import Group
from ui.present.terminal import console as terminal
from ui.present.terminal import show
from ui.service.progress import progress_bar


def reproduction(
    name: str | None, *, measure: bool = False, fresh: bool = False, out: Path | None = None, as_json: bool = False, wait_s: float = 0.0
) -> None:
    """Show the reproduction of the paper called `name`, or of all papers; list them if there is no name.

    It is the one that comes with the package, unless `fresh` or `measure` asks for predictions of today. Exit with 1 if a measured plan
    gives other results than plain PyTorch.
    """
    if name is None:
        given = {"--measure": measure, "--fresh": fresh, "--out": out is not None}
        if any(given.values()):
            option = next(option for option, is_given in given.items() if is_given)
            raise SchedcastError(f"{option} needs a paper; give a name, or all: schedcast reproduce lists them")
        papers(as_json)
        return
    sources = [reproduce.get(paper) for paper in (reproduce.names() if name == reproduce.ALL else [name])]
    check_outputs({"--out": out and OutputFolder(out, REPRODUCTION)})
    shown, same_numbers = [], True
    for source in sources:
        shipped = None if fresh or measure else _shipped(source)
        paper, same = (shipped, True) if shipped is not None else reproduced(source, measure, wait_s=wait_s)
        shown.append(paper)
        same_numbers &= same
    document = sources[0].document(shown[0]) if len(sources) == 1 else Reproduction(papers=tuple(shown))

    def say() -> None:
        for paper in shown:
            show(terminal(), Group(f"{paper.name}: {paper.title}", reproductions.blocks(paper)))

    print_then_write(as_json, document.document, say, None if out is None else lambda: _write(document, out))
    if not same_numbers:
        raise typer.Exit(1)


def _shipped(source: reproduce.Source) -> Paper | None:
    """The reproduction that comes with the package, after a line that says so; None if it has none."""
    path = reproduction_file(source.name)
    if not path.exists():
        return None
    print(f"schedcast: {source.name}: predictions and measurements that come with this version; --fresh predicts again", file=sys.stderr)
    return Reproduction.load(path).papers[0]


def reproduced(source: reproduce.Source, measure: bool, quiet: bool = False, wait_s: float = 0.0) -> tuple[Paper, bool]:
    """Predict a paper and, with `measure`, run what this machine can; returns it and whether the results were those of plain PyTorch."""
    paper = _predicted(source, quiet)
    return _measured(source, paper, quiet, wait_s) if measure else (paper, True)


def _write(document: Reproduction, out: Path) -> None:
    print(f"report: {reproductions.write(out, document)}", file=sys.stderr)


def papers(as_json: bool) -> None:
    """List the papers."""
    sources = [reproduce.get(name) for name in reproduce.names()]
    if as_json:
        print_json("papers", [{"name": paper.name, "about": paper.about, "machine": paper.machine} for paper in sources])
        return
    listing.table(("paper", "what it is about", "predicted for"), [(paper.name, paper.about, paper.machine) for paper in sources])


def _predicted(source: reproduce.Source, quiet: bool) -> Paper:
    total = source.predictions()
    if not (quiet or sys.stderr.isatty()):  # a bar needs a terminal
        print(f"schedcast: {source.name}: {total} predictions, which take a minute or more", file=sys.stderr, flush=True)
    with progress_bar(f"reproducing {source.name}", quiet) as bar:
        done = iter(range(total))
        return source.reproduce(Steps(source.machine, lambda text: bar(next(done, total), total, text)))


def _measured(source: reproduce.Source, paper: Paper, quiet: bool, wait_s: float) -> tuple[Paper, bool]:
    """The paper with this machine's measurements, and whether their results are plain PyTorch's. A note says why nothing was measured."""
    with interrupts_delayed():
        from calibrate import reproduction as measuring  # here, because these load torch
        from ui.commands.bench import wait_for_quiet
    try:
        look = partial(wait_for_quiet, wait_s=wait_s, quiet=quiet)
        return measuring.measure_paper(source, paper, partial(progress_bar, quiet=quiet), look)
    except SchedcastError as error:
        note = f"Nothing was measured for {source.name}: {error}."
        print(f"schedcast: {note}", file=sys.stderr)
        return paper.model_copy(update={"notes": (*paper.notes, note)}), True
