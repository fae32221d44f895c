"""A training's folder: a static page with picture and table, beside the document they show.

index.html              the page; needs no network
run.json                the document of `stepcast run --metrics`
loss.png, loss.svg      the picture
"""

from html import escape
from pathlib import Path

from traces.files import check_writable, write_atomic
from traces.training import TrainingRun
from ui.figures.trainings import training_picture
from ui.reports.page import html_page, html_table
from ui.text import trainings as training_words

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
    parts = [f"<p>{escape(_about(document))}</p>"]
    parts.append('<p><a href="loss.svg"><img src="loss.png" alt="Loss over iterations and over seconds"></a></p>')
    parts.append(html_table(rows))
    parts.append(
        '<p class="soft">Everyone trained on the same batches from the same parameters, in turns. Seconds count training steps alone, not '
        "the making of batches between them. A difference is the largest at any iteration, as a share of the largest loss. It grows "
        "with the steps, since every rounding changes all later ones. Where there are many iterations, lines are means of neighbours over "
        f'the faint losses. All figures: <a href="{DOCUMENT}">{DOCUMENT}</a>.</p>'
    )
    return html_page(f"Training {training_words.title(document)}", "\n".join(parts))


def _about(document: TrainingRun) -> str:
    """What it was trained on, and what the plan says about its updates."""
    updates = "; ".join(f"{name}: {value}" for name, value in document.semantics.items())
    stopped = "" if document.complete else f" Stopped after {document.steps} iterations."
    return f"Data: {document.data}.{stopped}" + (f" The plan of {document.strategy}: {updates}." if updates else "")
