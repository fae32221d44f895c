"""Predict all papers again, and write the documents that come with the package and docs/papers.md.

python -m tools.papers [--measure] [PAPER]...: those named, or all. With --measure also what this machine can run of them. What was measured
before stays if it is not measured again.
"""

import sys
from dataclasses import replace
from pathlib import Path

from simulator.model.job import Job
from simulator.papers import registry
from simulator.predict.forecast import answer
from simulator.predict.target import preset_target
from tests.support.places import ROOT
from traces.documents.reproduction import MEASURED, Paper, Reproduction
from traces.documents.shipped import reproduction_file
from traces.errors import required
from traces.files import write_atomic
from ui.commands import reproducing
from ui.present.pictures import write_picture
from ui.present.reproductions import markdown
from ui.present.timeline_picture import stacked_figure

PAGE = ROOT / "docs" / "papers.md"
#: The picture of a paper's idea.
PICTURE = ".github/paper-{}.svg"


def main() -> None:
    """Reproduce the papers named on the command line."""
    measure = "--measure" in sys.argv
    for name in [argument for argument in sys.argv[1:] if argument != "--measure"] or registry.names():
        paper, path = reproducing.reproduced(registry.get(name), measure)[0], reproduction_file(name)
        Reproduction(papers=(paper if measure else with_measured(paper, path),)).save(path)
        if registry.get(name).shown.drawn:
            draw(registry.get(name))
        write_atomic(PAGE, page())


def draw(source: registry.Source) -> None:
    """Draw a step of the job that shows the paper's mechanism, without it and with it."""
    shown, job = source.shown, Job(**source.shown.job)
    target, timelines = preset_target(job, shown.machine, host=shown.host), []
    for text in shown.strategies:
        timeline = required(answer(job, text, target)).timeline
        timelines.append(replace(timeline, kind=text))
    heading = f"{job.model}, batch {job.batch}, predicted for {shown.machine}"
    write_picture(ROOT / PICTURE.format(source.name), stacked_figure(timelines, heading))


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
    pictures = {name: f"../{PICTURE.format(name)}" for name in registry.names() if registry.get(name).shown.drawn}
    return markdown([paper for path in paths if path.exists() for paper in Reproduction.load(path).papers], pictures)


if __name__ == "__main__":
    main()
