"""Predict all papers again, and write the documents that come with the package and docs/papers.md.

python -m tools.papers [--measure] [PAPER]...: those named, or all. With --measure also what this machine can run of them. What was measured
before stays if it is not measured again.
"""

import sys
from pathlib import Path

from simulator.papers import registry
from tests.support.places import ROOT
from traces.documents.reproduction import MEASURED, Paper, Reproduction
from traces.documents.shipped import reproduction_file
from traces.files import write_atomic
from ui.commands import reproducing
from ui.present.reproductions import markdown

PAGE = ROOT / "docs" / "papers.md"


def main() -> None:
    """Reproduce the papers named on the command line."""
    measure = "--measure" in sys.argv
    for name in [argument for argument in sys.argv[1:] if argument != "--measure"] or registry.names():
        paper, path = reproducing.reproduced(registry.get(name), measure)[0], reproduction_file(name)
        Reproduction(papers=(paper if measure else with_measured(paper, path),)).save(path)
        write_atomic(PAGE, page())


def with_measured(paper: Paper, path: Path) -> Paper:
    """The paper with the measurements of the document at `path`, if there is one."""
    if not path.exists():
        return paper
    (before,) = Reproduction.load(path).papers
    names = {table.name for table in paper.tables}
    measured = tuple(table for table in before.tables if table.name not in names)
    notes = (*paper.notes, *(note for note in before.notes if note.startswith(MEASURED)))
    kept = paper.model_copy(update={"tables": (*paper.tables, *measured), "measured": before.measured, "notes": notes})
    return registry.get(paper.name).judged(kept)


def page() -> str:
    """The page about the papers that come with the package."""
    paths = map(reproduction_file, registry.names())
    return markdown([paper for path in paths if path.exists() for paper in Reproduction.load(path).papers])


if __name__ == "__main__":
    main()
