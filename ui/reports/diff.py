"""The folder of a difference: a static page with a picture and a table, the document that they show, and both runs for ui.perfetto.dev.

index.html          the page; needs no network
diff.json           the document of `stepcast diff --json`
waterfall.png       from one step to the other, term by term
perfetto.json.gz    both runs on one time axis, if there are timelines
"""

from collections.abc import Mapping
from pathlib import Path

from traces.diff_result import Diff
from traces.files import check_writable, write_atomic
from traces.perfetto import export
from traces.timeline import Timeline
from ui.figures.waterfall_picture import waterfall_picture
from ui.reports.page import render
from ui.text import diffs as diff_words

DOCUMENT, PERFETTO = "diff.json", "perfetto.json.gz"


def write(folder: Path | str, diff: Diff, timelines: Mapping[str, Timeline]) -> Path:
    """Write the folder, its page last, and return the page's path. Raises StepcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    diff.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    waterfall_picture(folder / "waterfall.png", diff_words.diff_bars(diff), "From {} to {}".format(*diff_words.labels(diff)))
    if timelines:
        export(folder / PERFETTO, timelines)
    page = render(
        "diff.html", headline=diff_words.headline(diff), words=" ".join(diff_words.words(diff)), rows=diff_words.cells(diff),
        text_columns={diff_words.TERM}, document=DOCUMENT, perfetto=PERFETTO if timelines else None,
    )  # fmt: skip
    return write_atomic(folder / "index.html", page)
