"""The section of a page about a search: the ranked plans, and why the best one wins."""

from traces.documents.search_result import SearchResult
from ui.present.figures.charts_page.page import chart_html
from ui.present.figures.search_chart import search_figure
from ui.present.figures.waterfall_chart import waterfall_figure
from ui.present.reports.page import Section, document_data, section
from ui.present.text import searches
from ui.present.text.labels import model_name


def search_section(result: SearchResult) -> Section:
    """Headline, chart, sentences, waterfalls to the best plan, and the table of all plans."""
    size = f", image size {result.image_size}" if result.image_size else ""
    job = f"{model_name(result.model)}, batch {result.batch_size}{size}, {result.optimizer}, {result.precision}, {result.mode}"
    why = [
        chart_html(waterfall_figure(bars, f"From {name} to the best plan"), f"From {name} to the best plan, part by part")
        for name, bars in searches.waterfalls(result)
    ]
    return section(
        f"Search: {job}, on {result.machine}", searches.headline(result), "search.html", words=searches.words(result), why=why,
        chart=chart_html(search_figure(result), "Step time and peak memory of every plan"), rows=searches.cells(result),
        data=document_data(result),
    )  # fmt: skip
