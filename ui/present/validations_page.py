"""The section of a page about a validation: predicted against measured step times, each compared strategy with its timelines, and
charts of the errors by phase, layer or op; and the pictures and the page of a report folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from simulator.replay.diff.task_errors import GroupError, TaskError, grouped, task_errors
from traces import units
from traces.documents.comparison import Comparison, Validation
from traces.files import write_atomic
from ui.present import charts, palette, sentences, tables, verdicts, waterfalls
from ui.present import verdicts as error_words
from ui.present.charts import finished
from ui.present.charts_page import chart_html
from ui.present.labels import headline, plotly_escaped
from ui.present.memory import memory_figure
from ui.present.page import Section, document_data, first_and_last, page, section
from ui.present.pictures import write_picture
from ui.present.timeline_canvas.page import timelines_html
from ui.present.timeline_picture import timelines_picture
from ui.present.verdicts import SHOWN, signed_ms
from ui.present.waterfall_figures import waterfall_figure

#: Pixels of a bar.
BAR_PX = 26


def errors_figure(groups: Sequence[GroupError], by: str) -> go.Figure:
    """Measured less predicted ms of the groups with the largest errors."""
    shown = groups[:SHOWN]
    texts = [
        f"<b>{plotly_escaped(group.name)}</b><br>predicted {units.duration(group.predicted_s)}, measured {units.duration(group.measured_s)}"
        for group in shown
    ]
    bars = go.Bar(
        orientation="h",
        x=[group.difference_s * 1e3 for group in shown],
        y=[plotly_escaped(group.name) for group in shown],
        marker_color=[palette.LONGER if group.difference_s > 0 else palette.SHORTER for group in shown],
        text=[signed_ms(group.difference_s) for group in shown],
        textposition="outside",
        cliponaxis=False,
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    figure = go.Figure(bars)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, ticksuffix=" ")
    low, high = min([0.0, *bars.x]), max([0.0, *bars.x])
    room = 0.18 * (high - low) or 1.0  # for the numbers beside the bars
    span = [low - room * (low < 0), high + room]
    figure.update_xaxes(title_text="measured less predicted, ms", range=span, gridcolor=palette.GRID, zerolinecolor=palette.GREY)
    return finished(figure, f"Error by {by}", drawn_px=max(60, BAR_PX * len(shown)))


#: Files in the folder of a comparison that a page links to, and the text of the links.
LINKED: Mapping[str, str] = MappingProxyType({
    "timelines.svg": "picture (SVG)",
    "memory.svg": "memory over time (SVG)",
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
    drawn = [timelines_html([comparison.predicted, comparison.measured], "", shown.address("timelines.svg"))]
    if result.waterfall:
        figure = waterfall_figure(waterfalls.measured_bars(result), "From predicted to measured")
        drawn.append(chart_html(figure, "From the predicted to the measured step, part by part", shown.address("waterfall.svg")))
    return drawn


def _error_charts(comparison: Comparison, errors: Sequence[TaskError]) -> list[Markup]:
    """The charts that say in which phases and layers predicted and measured differ."""
    drawn = [chart_html(charts.phases_figure(comparison), "Task time per phase")]
    if errors:
        drawn.append(chart_html(errors_figure(grouped(errors, "layer"), "layer"), "Error by layer"))
    return drawn


TITLE = "Predicted against measured step times"


def write(folder: Path, parts: Iterable[tuple[Validation, str, Sequence[tuple[str, str, Comparison]]]]) -> None:
    """Draw the pictures and the page into a folder that has the documents.

    `parts`: validations, each with the name of its picture, and with the folder and the title of every comparison.
    """
    sections = []
    for validation, picture, compared in parts:
        write_picture(folder / picture, charts.speedups_figure(validation), heading=sentences.short_job_words(validation))
        for name, title, comparison in compared:
            _draw_comparison(folder / name, comparison, title)
        shown = [Shown(own, name, frozenset(path.name for path in (folder / name).iterdir())) for name, _, own in compared]
        sections.append(validation_section(validation, shown, picture))
    write_atomic(folder / "index.html", page(TITLE, sections))


def _draw_comparison(folder: Path, comparison: Comparison, title: str) -> None:
    predicted, measured = comparison.predicted, comparison.measured
    timelines_picture(folder / "timelines.svg", predicted, measured, title)
    if comparison.result.waterfall:
        figure = waterfall_figure(waterfalls.measured_bars(comparison.result), f"{title}: from predicted to measured")
        write_picture(folder / "waterfall.svg", figure)
    memory = memory_figure(predicted, measured, title)
    if memory is not None:
        write_picture(folder / "memory.svg", memory)


def report_sections(validations: Sequence[Validation], comparisons: Sequence[Sequence[Comparison]]) -> list[Section]:
    """The sections of a page that stands alone, one per validation, each with its comparisons."""
    pairs = zip(validations, comparisons, strict=True)
    return [validation_section(validation, [Shown(comparison) for comparison in compared]) for validation, compared in pairs]
