"""A reproduction's folder: a static page with tables and pictures, beside the document they show.

index.html                      the page; needs no network
reproduction.json               the document of `stepcast reproduce --json`
PAPER-CHART.png, PAPER-CHART.svg    its pictures
"""

from html import escape
from pathlib import Path

from traces.comparison import Validation
from traces.files import check_writable, write_atomic
from traces.reproduction import Chart, Check, Paper, Reproduction
from ui.figures import reproductions as reproduction_pictures
from ui.reports.page import html_page, html_table
from ui.text import reproductions as reproduction_tables
from ui.text import sentences, tables

DOCUMENT = "reproduction.json"


def write(folder: Path | str, document: Reproduction) -> Path:
    """Write the folder and return the path of its page, which comes last. Raises StepcastError where it cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    for paper in document.papers:
        for chart in drawn(paper):
            for kind in ("png", "svg"):
                reproduction_pictures.chart_picture(folder / f"{_stem(paper, chart)}.{kind}", chart)
    document.save(folder / DOCUMENT)
    return write_atomic(folder / "index.html", page(document))


def drawn(paper: Paper) -> list[Chart]:
    """The charts that have something to draw."""
    return [chart for chart in paper.charts if any(series.x for panel in chart.panels for series in panel.series)]


def page(document: Reproduction) -> str:
    """The whole page."""
    body = [_paper(paper) for paper in document.papers]
    body.append(f'<p class="soft">All figures: <a href="{DOCUMENT}">{DOCUMENT}</a>.</p>')
    return html_page("Published beside predicted", "".join(body))


def _paper(paper: Paper) -> str:
    link = f'<a href="{escape(paper.reference.rpartition(" ")[2])}">{escape(paper.reference)}</a>'
    parts = [f"<h2>{escape(paper.title)}</h2><p>{link if 'https://' in paper.reference else escape(paper.reference)}</p>"]
    parts.append(f"<p>{escape(' '.join(reproduction_tables.about_words(paper)))}</p>")
    for table in paper.tables:
        rows = reproduction_tables.cells(table)
        parts.append(f"<h3>{escape(table.title)}</h3>{html_table(rows, reproduction_tables.worded(rows))}")
        parts.append(f'<p class="soft">{escape(table.about)}</p>')
    if paper.checks:
        parts.append(f"<h3>What the paper claims</h3><ul>{''.join(map(_check, paper.checks))}</ul>")
    for chart in drawn(paper):
        stem = _stem(paper, chart)
        parts.append(f'<p><a href="{stem}.svg"><img src="{stem}.png" alt="{escape(chart.title)}"></a></p>')
    for measured in paper.measured:
        validation = Validation.model_validate(measured)
        parts.append(f"<h3>Measured: {escape(sentences.job_words(validation))}</h3>{html_table(tables.validation_cells(validation))}")
    notes = "".join(f"<li>{escape(note)}</li>" for note in paper.notes)
    return "\n".join([*parts, f"<ul>{notes}</ul>" if notes else ""])


def _check(check: Check) -> str:
    claim, figures = reproduction_tables.check_words(check)
    return f'<li><b>{escape(claim)}</b><br><span class="soft">{escape(figures)}</span></li>'


def _stem(paper: Paper, chart: Chart) -> str:
    return f"{paper.name}-{chart.name}"
