"""A training's folder: a static page with picture and table, beside the document they show.

index.html              the page; needs no network
run.json                the document of `stepcast run --metrics`
loss.png, loss.svg      the picture
"""

from html import escape
from pathlib import Path

from traces.files import check_writable, write_atomic
from traces.training import TrainingRun

from . import training_words
from .report_page import html_page, html_table
from .training_pictures import training_picture

DOCUMENT = "run.json"


def write(folder: Path | str, document: TrainingRun) -> Path:
    """Write the folder and return the path of its page, which comes last. Raises StepcastError where it cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    for kind in ("png", "svg"):
        training_picture(folder / f"loss.{kind}", document)
    document.save(folder / DOCUMENT)
    return write_atomic(folder / "index.html", page(document))


def page(document: TrainingRun) -> str:
    """The whole page."""
    rows = training_words.cells(document)
    parts = [f"<h2>{escape(training_words.title(document))}</h2>", f"<p>{escape(_about(document))}</p>"]
    parts.append('<p><a href="loss.svg"><img src="loss.png" alt="Loss over iterations and over seconds"></a></p>')
    parts.append(html_table(rows))
    parts.append(
        '<p class="soft">Everyone trained on the same batches from the same parameters, in turns. Seconds count training steps alone, not '
        "the making of batches between them. A difference is the largest at any iteration, as a share of the largest loss. Where there "
        f'are many iterations, lines are means of neighbours over the faint losses. All figures: <a href="{DOCUMENT}">{DOCUMENT}</a>.</p>'
    )
    return html_page("Training", "\n".join(parts))


def _about(document: TrainingRun) -> str:
    """What it was trained on and, where the plan says so, how it differs from plain training."""
    differs = "; ".join(f"{name}: {value}" for name, value in document.semantics.items())
    stopped = "" if document.complete else f" Stopped after {document.steps} iterations."
    return f"Data: {document.data}.{stopped}" + (f" {document.strategy} differs from plain training: {differs}." if differs else "")
