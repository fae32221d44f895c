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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import blended_transform_factory

from simulator.replay.diff.task_errors import GroupError, TaskError, grouped, task_errors
from traces import units
from traces.documents.comparison import Comparison, Validation
from traces.files import write_atomic
from ui.present import charts, palette, sentences, tables, verdicts, waterfalls
from ui.present import verdicts as error_words
from ui.present.canvas import INK, LEGEND_TOP_IN, SOFT, add_legend, hide_frame, new_figure, save
from ui.present.charts import Row, finished, rival_name, rows
from ui.present.charts_page import chart_html
from ui.present.labels import headline, plotly_escaped
from ui.present.memory import memory_picture
from ui.present.page import Section, document_data, first_and_last, page, section
from ui.present.timeline_canvas.page import timelines_html
from ui.present.timeline_picture import timelines_picture
from ui.present.verdicts import SHOWN, signed_ms
from ui.present.waterfall_figures import waterfall_figure, waterfall_picture

#: Inches above and below the rows, per row, and from the top edge to the line that names the job.
TOP_IN, BOTTOM_IN, ROW_IN, JOB_TOP_IN = 1.45, 0.62, 0.62, 0.5
#: Characters of a strategy's label that fit left of the rows in the usual font size.
LABEL_CHARACTERS = 22
#: Left edges and widths of both halves, and the places of the columns at the right, as shares of the width.
TIMES, GAINS = (0.19, 0.32), (0.53, 0.15)
COLUMNS = {"gain": (0.695, "left"), "error": (0.875, "right"), "over baseline": (0.99, "right")}


def validation_picture(path: Path | str, validation: Validation) -> Path:
    """Draw step times and speed-ups, plain PyTorch first, into `path` (.png or .svg). The title is the headline of the validation.

    Left: every strategy's predicted step time with its 90 % interval, and all its measured runs. Right: how many times as fast its steps
    are as plain PyTorch's (as the baseline's, if plain PyTorch was not measured), with 90 % intervals.
    """
    drawn = rows(validation)
    height_in = TOP_IN + ROW_IN * max(1, len(drawn)) + BOTTOM_IN
    job = sentences.short_job_words(validation)
    figure = new_figure(height_in, verdicts.short_headline(validation) or job)
    figure.text(0.012, 1 - JOB_TOP_IN / height_in, job, fontsize=11, va="top", color=SOFT, parse_math=False)
    bottom, height = BOTTOM_IN / height_in, 1 - (TOP_IN + BOTTOM_IN) / height_in
    times, gains = (figure.add_axes((left, bottom, width, height)) for left, width in (TIMES, GAINS))
    for number, row in enumerate(drawn):
        _draw_times(times, number, row)
        _draw_gain(gains, number, row)
        _write_columns(figure, times, number, row)
    labels = [_folded(row.label) for row in drawn]
    fontsize = 12 if max(map(_width, labels), default=0) <= LABEL_CHARACTERS else 9
    times.set_yticks(range(len(drawn)), labels, fontsize=fontsize, color=INK, parse_math=False)
    times.set_xlim(0, 1.05e3 * max((value for row in drawn for value in row.seconds), default=1e-3))
    gains.set_yticks([])
    gains.axvline(1.0, color=palette.GREY, linewidth=1.2, zorder=1)
    gains.set_xlim(*_range([value for row in drawn for value in row.factors]))
    for axes, label in ((times, "step time, ms"), (gains, f"speed-up over {rival_name(validation)}")):
        axes.set_ylim(max(len(drawn), 1) - 0.5, -0.5)
        axes.tick_params(axis="both", length=0, labelcolor=INK)
        axes.set_xlabel(label, fontsize=11, color=INK)
        hide_frame(axes, "x")
    _write_heads(figure, rival_name(validation), 1 - TOP_IN / height_in)
    _add_result_legend(figure)
    return save(figure, path)


def _draw_times(axes: Axes, number: int, row: Row) -> None:
    if row.predicted_s is not None:
        low, high = (1e3 * value for value in row.interval_s or (row.predicted_s,) * 2)
        axes.plot([low, high], [number - 0.14] * 2, color=palette.PREDICTED, linewidth=10, alpha=0.35, solid_capstyle="butt")
        axes.plot([row.predicted_s * 1e3], [number - 0.14], "D", color=palette.PREDICTED, markersize=7)
    place = number + 0.16 if row.predicted_s is not None else number
    color = palette.MEASURED if row.predicted_s is not None else palette.GREY
    axes.plot([run * 1e3 for run in row.runs_s], [place] * len(row.runs_s), "|", color=color, markersize=17, alpha=0.8)
    axes.plot([row.measured_s * 1e3], [place], "o", color=color, markersize=7)


def _draw_gain(axes: Axes, number: int, row: Row) -> None:
    if row.gain is None:
        return
    color = palette.VERDICT[row.gain.verdict]
    if row.gain.interval is not None:
        axes.plot(row.gain.interval, [number] * 2, color=color, linewidth=2.0)
        axes.plot(row.gain.interval, [number] * 2, "|", color=color, markersize=12)
    axes.plot([row.gain.factor], [number], "o", color=color, markersize=7)


def _write_columns(figure: Figure, axes: Axes, number: int, row: Row) -> None:
    by_row = blended_transform_factory(figure.transFigure, axes.transData)
    texts = {
        "gain": _gain_text(row),
        "error": units.error(row.predicted_s, row.measured_s),
        "over baseline": f"{units.speedup(row.predicted_speedup)} / {units.speedup(row.measured_speedup)}",
    }
    for column, text in texts.items():
        x, align = COLUMNS[column]
        figure.text(x, number, text, transform=by_row, ha=align, va="center", fontsize=11, color=INK)


def _gain_text(row: Row) -> str:
    """The speed-up and the verdict, and the interval below them."""
    if row.gain is None:
        return ""
    return f"{units.speedup(row.gain.factor)} {row.gain.verdict}" + (f"\n{units.factors(row.gain.interval)}" if row.gain.interval else "")


def _write_heads(figure: Figure, rival: str, y: float) -> None:
    heads = {"gain": f"against {rival}\n(90 % interval)", "error": "error", "over baseline": "over baseline,\npred. / meas."}
    for column, text in heads.items():
        x, align = COLUMNS[column]
        figure.text(x, y + 0.01, text, ha=align, va="bottom", fontsize=10, color=SOFT)


def _range(factors: list[float]) -> tuple[float, float]:
    """An axis of speed-ups that shows 1 and all of `factors`."""
    low, high = min([1.0, *factors]), max([1.0, *factors])
    room = 0.12 * (high - low) or 0.1
    return low - room, high + room


def _folded(label: str) -> str:
    """A long label with its options on a line of their own."""
    return label.replace(":", ":\n", 1) if len(label) > LABEL_CHARACTERS else label


def _width(label: str) -> int:
    """Characters of the longest line of a label."""
    return max(map(len, label.splitlines()), default=0)


def _add_result_legend(figure: Figure) -> None:
    marks = [
        Line2D([], [], marker="D", color=palette.PREDICTED, linestyle="", markersize=8, label="predicted"),
        Patch(facecolor=palette.PREDICTED, alpha=0.35, label="90 % interval"),
        Line2D([], [], marker="o", color=palette.MEASURED, linestyle="", markersize=8, label="measured"),
        Line2D([], [], marker="|", color=palette.MEASURED, linestyle="", markersize=9, label="each run"),
    ]
    add_legend(figure, marks, LEGEND_TOP_IN + JOB_TOP_IN - 0.22)


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


TITLE = "Predicted against measured step times"


def write(folder: Path, parts: Iterable[tuple[Validation, str, Sequence[tuple[str, str, Comparison]]]]) -> None:
    """Draw the pictures and the page into a folder that has the documents.

    `parts`: validations, each with the name of its picture, and with the folder and the title of every comparison.
    """
    sections = []
    for validation, picture, compared in parts:
        validation_picture(folder / picture, validation)
        for name, title, comparison in compared:
            _draw_comparison(folder / name, comparison, title)
        shown = [Shown(own, name, frozenset(path.name for path in (folder / name).iterdir())) for name, _, own in compared]
        sections.append(validation_section(validation, shown, picture))
    write_atomic(folder / "index.html", page(TITLE, sections))


def _draw_comparison(folder: Path, comparison: Comparison, title: str) -> None:
    for kind in ("png", "svg"):
        timelines_picture(folder / f"timelines.{kind}", comparison.predicted, comparison.measured, title)
    if comparison.result.waterfall:
        waterfall_picture(folder / "waterfall.png", waterfalls.measured_bars(comparison.result), f"{title}: from predicted to measured")
    memory_picture(folder / "memory.png", comparison.predicted, comparison.measured, title)


def report_sections(validations: Sequence[Validation], comparisons: Sequence[Sequence[Comparison]]) -> list[Section]:
    """The sections of a page that stands alone, one per validation, each with its comparisons."""
    pairs = zip(validations, comparisons, strict=True)
    return [validation_section(validation, [Shown(comparison) for comparison in compared]) for validation, compared in pairs]
