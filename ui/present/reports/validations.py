"""The section of a page about a validation: predicted against measured step times, and each compared strategy with its timelines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from simulator.replay.diff.task_errors import TaskError, grouped, task_errors
from traces.documents.comparison import Comparison, Validation
from ui.present.figures import charts
from ui.present.figures.charts_page.page import chart_html
from ui.present.figures.task_errors_chart import errors_figure
from ui.present.figures.timeline_canvas.page import timelines_html
from ui.present.figures.waterfall_chart import waterfall_figure
from ui.present.reports.page import Section, document_data, first_and_last, section
from ui.present.text import sentences, tables, verdicts, waterfalls
from ui.present.text import task_errors as error_words
from ui.present.text.labels import headline

#: Files in the folder of a comparison that a page links to, and the text of the links.
LINKED: Mapping[str, str] = MappingProxyType({
    "timelines.svg": "picture (SVG)",
    "memory.png": "memory over time (PNG)",
    "perfetto.json.gz": "trace for ui.perfetto.dev",
    "predicted.json.gz": "predicted timeline",
    "measured.json.gz": "measured timeline",
    "plan.json.gz": "plan",
})  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A comparison on a page. `folder`: the address of its files if they lie beside the page, and `files`: the names of those."""

    comparison: Comparison
    folder: str = ""
    files: frozenset[str] = frozenset()

    def address(self, name: str) -> str:
        """The address of one of its files; "" without it."""
        return f"{self.folder}/{name}" if name in self.files else ""


def validation_section(validation: Validation, shown: Sequence[Shown], picture: str = "") -> Section:
    """A validation: the fastest comparison's timelines, then sentences, chart and table, then the other comparisons.

    `picture`: the address of its picture for want of scripts.
    """
    shown = sorted(shown, key=lambda each: each.comparison.measured.step_s)
    rows = [tables.folded(cells) for cells in tables.validation_cells(validation)]
    chart = charts.speedups_figure(validation) if validation.ran else None
    about = "Predicted and measured step time of every strategy"
    return section(
        sentences.job_words(validation), verdicts.headline(validation), "validation.html", rows=rows, text_columns=first_and_last(rows),
        words=" ".join(sentences.validation_words(validation)), chart=chart_html(chart, about, picture) if chart is not None else "",
        data=document_data(validation), files=(), comparisons=[_comparison(validation, each) for each in shown],
    )  # fmt: skip


def _comparison(validation: Validation, shown: Shown) -> dict[str, Any]:
    """What the page shows of one comparison."""
    comparison, result = shown.comparison, shown.comparison.result
    errors = task_errors(comparison)
    words = [*sentences.result_words(validation, result), *sentences.memory_words(result), sentences.phase_words(comparison)]
    return {
        "heading": f"{comparison.strategy}: {headline(comparison.predicted.step_s, comparison.measured.step_s)}",
        "words": " ".join([*words, *waterfalls.measured_words(result)]),
        "drawn": _drawn(shown),
        "errors": _error_charts(comparison, errors),
        "causes": error_words.cause_words(errors),
        "tasks": error_words.offender_cells(errors),
        "files": [(shown.address(name), text) for name, text in LINKED.items() if shown.address(name)],
    }


def _drawn(shown: Shown) -> list[Markup]:
    """The timelines, with the memory below their lanes, and the waterfall of one comparison."""
    comparison, result = shown.comparison, shown.comparison.result
    drawn = [timelines_html([comparison.predicted, comparison.measured], "", shown.address("timelines.png"))]
    if result.waterfall:
        figure = waterfall_figure(waterfalls.measured_bars(result), "From predicted to measured")
        drawn.append(chart_html(figure, "From the predicted to the measured step, part by part", shown.address("waterfall.png")))
    return drawn


def _error_charts(comparison: Comparison, errors: Sequence[TaskError]) -> list[Markup]:
    """The charts that say in which phases and layers predicted and measured differ."""
    drawn = [chart_html(charts.phases_figure(comparison), "Task time per phase")]
    if errors:
        drawn.append(chart_html(errors_figure(grouped(errors, "layer"), "layer"), "Error by layer"))
    return drawn
