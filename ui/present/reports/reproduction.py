"""The sections of a page about reproductions of papers, and the folder of such a page.

index.html                      the page; needs no network and no other file
reproduction.json               the document of `schedcast reproduce --json`
PAPER-CHART.png, PAPER-CHART.svg    the pictures of charts, and of networks
"""

from pathlib import Path
from typing import Any

from traces.documents.comparison import Validation
from traces.documents.reproduction import Chart, DividedNetwork, Paper, Reproduction, Table
from traces.files import check_writable, write_atomic
from ui.present.figures.division_picture import division_picture
from ui.present.figures.reproduction_picture import chart_picture
from ui.present.reports.page import Section, document_data, first_and_last, picture_data, section
from ui.present.reports.page import page as page_of
from ui.present.text import reproductions as reproduction_tables
from ui.present.text import sentences, tables

DOCUMENT = "reproduction.json"


def write(folder: Path | str, document: Reproduction) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    for paper in document.papers:
        for chart in charts_with_points(paper):
            for kind in ("png", "svg"):
                chart_picture(folder / f"{_stem(paper, chart)}.{kind}", chart)
        for network in paper.networks:
            for kind in ("png", "svg"):
                division_picture(folder / f"{_stem(paper, network)}.{kind}", network)
    return write_atomic(folder / "index.html", page(document))


def charts_with_points(paper: Paper) -> list[Chart]:
    """The charts of `paper` that have points to draw."""
    return [chart for chart in paper.charts if any(series.x for panel in chart.panels for series in panel.series)]


def page(document: Reproduction) -> str:
    """The HTML page of a reproduction."""
    return page_of("Published and predicted", reproduction_sections(document, linked=True))


def reproduction_sections(document: Reproduction, linked: bool = False) -> list[Section]:
    """One section per paper. `linked`: whether the files of the folder lie beside the page."""
    return [_paper_section(paper, linked) for paper in document.papers]


def _paper_section(paper: Paper, linked: bool) -> Section:
    address = paper.reference.rpartition(" ")[2]
    holding = sum(check.holds is True for check in paper.checks)
    judged = sum(check.holds is not None for check in paper.checks)
    drawn = [(chart, chart_picture) for chart in charts_with_points(paper)] + [(network, division_picture) for network in paper.networks]
    return section(
        paper.title, f"{holding} of {judged} claims hold." if judged else "", "reproduction.html", reference=paper.reference,
        link=address if address.startswith("https://") else "", words=" ".join(reproduction_tables.about_words(paper)),
        tables=[_table_values(table) for table in paper.tables], checks=[reproduction_tables.check_words(check) for check in paper.checks],
        charts=[(picture_data(lambda place, draw=draw, shown=shown: draw(place, shown)), shown.title) for shown, draw in drawn],
        measured=[_measured_values(Validation.model_validate(measured)) for measured in paper.measured], notes=paper.notes,
        data=document_data(Reproduction(papers=(paper,))),
        files=[(f"{_stem(paper, shown)}.svg", f"{shown.title} (SVG)") for shown, _ in drawn] if linked else (),
    )  # fmt: skip


def _table_values(table: Table) -> dict[str, Any]:
    rows = reproduction_tables.cells(table)
    return {"title": table.title, "rows": rows, "text_columns": reproduction_tables.text_columns(rows), "about": table.about}


def _measured_values(validation: Validation) -> dict[str, Any]:
    rows = [tables.folded(cells) for cells in tables.validation_cells(validation)]
    return {"heading": sentences.job_words(validation), "rows": rows, "text_columns": first_and_last(rows)}


def _stem(paper: Paper, shown: Chart | DividedNetwork) -> str:
    """The file name of a chart or a network without its suffix."""
    return f"{paper.name}-{shown.name}"
