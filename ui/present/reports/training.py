"""The section of a page about a training, and the folder of such a page.

index.html              the page; needs no network and no other file
run.json                the document of `schedcast run --metrics`
loss.png, loss.svg      the picture
"""

from collections.abc import Sequence
from pathlib import Path

from traces.documents.training import TrainingRun
from traces.files import check_writable, write_atomic
from ui.present.figures.charts_page.page import chart_html
from ui.present.figures.training_chart import training_figure
from ui.present.figures.training_curves import measures
from ui.present.figures.training_picture import training_picture
from ui.present.reports.page import Section, document_data, first_and_last, section
from ui.present.reports.page import page as page_of
from ui.present.text import trainings as training_words
from ui.present.text.labels import differing
from ui.present.text.verdicts import busy_line

DOCUMENT = "run.json"


def write(folder: Path | str, document: TrainingRun) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for kind in ("png", "svg"):
        training_picture(folder / f"loss.{kind}", document)
    files = [("loss.png", "picture (PNG)"), ("loss.svg", "picture (SVG)")]
    return write_atomic(folder / "index.html", page(document, files, "loss.png"))


def page(document: TrainingRun, files: Sequence[tuple[str, str]] = (), picture: str = "") -> str:
    """The HTML page of a training."""
    return page_of("Training", [training_section(document, files, picture)])


def training_section(document: TrainingRun, files: Sequence[tuple[str, str]] = (), picture: str = "") -> Section:
    """Curves over every measure of time, and the table. `picture`: the address of the curves for want of scripts."""
    rows = training_words.cells(document)
    charts = [
        chart_html(training_figure(document, measure), f"Loss, and accuracy if it was measured, over {measure}", "" if number else picture)
        for number, measure in enumerate(measures(document))
    ]
    return section(
        training_words.title(document), _about(document), "training.html", charts=charts, rows=rows, text_columns=first_and_last(rows),
        data=document_data(document), files=files, accuracy=any(curve.evaluations for curve in document.curves),
        target=document.target is not None,
    )  # fmt: skip


def _about(document: TrainingRun) -> str:
    """The data, and how the plan's training differs from plain training."""
    updates = differing(document.semantics)
    busy = f"{line} " if (line := busy_line(document.busy_share)) else ""
    stopped = "" if document.complete else f" Stopped after {document.steps} iterations."
    return f"{busy}Data: {document.data}.{stopped}" + (f" {document.strategy} differs from plain training: {updates}." if updates else "")
