"""The pictures and the page of a report folder, and the sections of its page elsewhere."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from traces.documents.comparison import Comparison, Validation
from traces.files import write_atomic
from ui.present import waterfalls
from ui.present.memory import memory_picture
from ui.present.page import Section, page
from ui.present.timeline_picture import timelines_picture
from ui.present.validations_page import Shown, validation_picture, validation_section
from ui.present.waterfall_figures import waterfall_picture

TITLE = "Predicted against measured step times"


def write(folder: Path, parts: Iterable[tuple[Validation, str, Sequence[tuple[str, str, Comparison]]]]) -> None:
    """Draw the pictures and the page into a folder that has the documents.

    `parts`: validations, each with the name of its picture, and with the folder and the title of every comparison.
    """
    sections = []
    for validation, picture, compared in parts:
        validation_picture(folder / picture, validation)
        for name, title, comparison in compared:
            _draw(folder / name, comparison, title)
        shown = [Shown(own, name, frozenset(path.name for path in (folder / name).iterdir())) for name, _, own in compared]
        sections.append(validation_section(validation, shown, picture))
    write_atomic(folder / "index.html", page(TITLE, sections))


def _draw(folder: Path, comparison: Comparison, title: str) -> None:
    for kind in ("png", "svg"):
        timelines_picture(folder / f"timelines.{kind}", comparison.predicted, comparison.measured, title)
    if comparison.result.waterfall:
        waterfall_picture(folder / "waterfall.png", waterfalls.measured_bars(comparison.result), f"{title}: from predicted to measured")
    memory_picture(folder / "memory.png", comparison.predicted, comparison.measured, title)


def report_sections(validations: Sequence[Validation], comparisons: Sequence[Sequence[Comparison]]) -> list[Section]:
    """The sections of a page that stands alone, one per validation, each with its comparisons."""
    pairs = zip(validations, comparisons, strict=True)
    return [validation_section(validation, [Shown(comparison) for comparison in compared]) for validation, compared in pairs]
