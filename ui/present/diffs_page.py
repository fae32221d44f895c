"""The section of a page about a difference of two runs, and the folder of such a page.

index.html                  the page; needs no network and no other file
diff.json                   the document of `schedcast diff --json`
a.json.gz, b.json.gz        one step of each run, if there are timelines
waterfall.svg               from one step to the other, term by term
perfetto.json.gz            both runs on one time axis, if there are timelines
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from traces.documents.replay_result import Diff
from traces.documents.timeline import Timeline
from traces.files import check_writable, write_atomic
from traces.formats.perfetto import export
from ui.present import diffs as diff_words
from ui.present.charts_page import chart_html
from ui.present.page import Section, document_data, page, section
from ui.present.pictures import write_picture
from ui.present.timeline_canvas.page import timelines_html
from ui.present.waterfall_figures import waterfall_figure

DOCUMENT, PERFETTO, PICTURE = "diff.json", "perfetto.json.gz", "waterfall.svg"
#: The files of one step of each run.
STEPS = ("a.json.gz", "b.json.gz")
TITLE = "Why two runs differ"


def write(folder: Path | str, diff: Diff, timelines: Mapping[str, Timeline], steps: Sequence[Timeline] = ()) -> Path:
    """Write the folder, its page last, and return the page's path. `steps`: one step of each of the timelines, which the page draws.

    Raises SchedcastError if the folder cannot be written.
    """
    folder = Path(folder)
    check_writable(folder, folder=True)
    diff.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for name, step in zip_longest(STEPS, steps):
        (folder / name).unlink(missing_ok=True) if step is None else step.save(folder / name)
    write_picture(folder / PICTURE, waterfall_figure(diff_words.diff_bars(diff), _title(diff)))
    files = []
    if timelines:
        export(folder / PERFETTO, timelines)
        files.append((PERFETTO, "both runs, for ui.perfetto.dev"))
    return write_atomic(folder / "index.html", page(TITLE, [diff_section(diff, steps, files, PICTURE)]))


def read(folder: Path) -> Section:
    """The section of a folder that was written earlier. Raises UnusableFileError if it is damaged."""
    steps = [Timeline.load(folder / name) for name in STEPS if (folder / name).exists()]
    return diff_section(Diff.load(folder / DOCUMENT), steps)


def diff_section(diff: Diff, steps: Sequence[Timeline] = (), files: Sequence[tuple[str, str]] = (), picture: str = "") -> Section:
    """Sentences, bars, one step of each run above the other, and the table. `picture`: the address of the bars for want of scripts."""
    charts = [chart_html(waterfall_figure(diff_words.diff_bars(diff), _title(diff)), "From one step to the other, term by term", picture)]
    if steps:
        charts.append(timelines_html(steps, "One step of {} above one of {}".format(*diff_words.labels(diff))))
    return section(
        f"{TITLE}: {diff.a} and {diff.b}", diff_words.headline(diff), "diff.html", words=" ".join(diff_words.words(diff)), charts=charts,
        rows=diff_words.cells(diff), text_columns={diff_words.TERM}, data=document_data(diff), files=files,
    )  # fmt: skip


def _title(diff: Diff) -> str:
    return "From {} to {}".format(*diff_words.labels(diff))
