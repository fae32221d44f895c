"""The folder of a training: a static page with a picture and a table, and the document that they show.

index.html              the page; needs no network
run.json                the document of `stepcast run --metrics`
loss.png, loss.svg      the picture
"""

from pathlib import Path

from traces.files import check_writable, write_atomic
from traces.training import TrainingRun
from ui.figures.training_picture import training_picture
from ui.reports.page import first_and_last, render
from ui.text import trainings as training_words
from ui.text.labels import differing

DOCUMENT = "run.json"


def write(folder: Path | str, document: TrainingRun) -> Path:
    """Write the folder, its page last, and return the page's path. Raises StepcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for kind in ("png", "svg"):
        training_picture(folder / f"loss.{kind}", document)
    return write_atomic(folder / "index.html", page(document))


def page(document: TrainingRun) -> str:
    """The HTML page of a training."""
    rows = training_words.cells(document)
    return render(
        "training.html", title=training_words.title(document), about=_about(document), rows=rows, text_columns=first_and_last(rows),
        document=DOCUMENT, accuracy=any(curve.evaluations for curve in document.curves), target=document.target is not None,
    )  # fmt: skip


def _about(document: TrainingRun) -> str:
    """The data, and how the plan's training differs from plain training."""
    updates = differing(document.semantics)
    stopped = "" if document.complete else f" Stopped after {document.steps} iterations."
    return f"Data: {document.data}.{stopped}" + (f" {document.strategy} differs from plain training: {updates}." if updates else "")
