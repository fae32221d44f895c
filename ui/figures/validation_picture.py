"""The static picture of a validation: every strategy's predicted and measured step time."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from traces import units
from traces.comparison import Validation
from ui.figures import palette
from ui.figures.canvas import FAINT, INK, SOFT, add_legend, hide_frame, new_figure, save
from ui.text.labels import plain_label, row_labels

#: Inches above and below the rows, and per row.
TOP_IN, BOTTOM_IN, ROW_IN = 1.13, 0.62, 0.62
#: Characters of a strategy's label that fit left of the rows in the usual font size.
LABEL_CHARACTERS = 22


def validation_picture(path: Path | str, validation: Validation, title: str = "") -> Path:
    """Draw each strategy's predicted step time with its 90 % interval, and all its measured runs, into `path` (.png or .svg).

    A grey line marks the step time of plain PyTorch.
    """
    results = validation.ran
    height_in = TOP_IN + ROW_IN * max(1, len(results)) + BOTTOM_IN
    job = f"{validation.model}, batch {validation.batch_size}, {validation.optimizer}, {validation.precision}, {validation.mode}"
    figure = new_figure(height_in, title or job)
    axes = figure.add_axes((0.19, BOTTOM_IN / height_in, 0.60, 1 - (TOP_IN + BOTTOM_IN) / height_in))
    plain_ms = validation.reference_step_s * 1e3 if validation.reference_step_s is not None else None
    highest = plain_ms or 0.0
    for row, result in enumerate(results):
        low, high = (1e3 * value for value in result.predicted_interval_s or (result.predicted_step_s, result.predicted_step_s))
        predicted, measured = result.predicted_step_s * 1e3, result.measured_step_s * 1e3
        runs = [run * 1e3 for run in result.measured_runs_s]
        axes.plot([low, high], [row - 0.14] * 2, color=palette.PREDICTED, linewidth=10, alpha=0.35, solid_capstyle="butt")
        axes.plot([predicted], [row - 0.14], "D", color=palette.PREDICTED, markersize=7)
        axes.plot(runs, [row + 0.16] * len(runs), "|", color=palette.MEASURED, markersize=17, alpha=0.8)
        axes.plot([measured], [row + 0.16], "o", color=palette.MEASURED, markersize=7)
        highest = max(highest, high, measured, *runs)
        gain = f"{units.speedup(result.predicted_speedup)} / {units.speedup(result.measured_speedup)}"
        for x, text in ((1.09, units.percent(result.error)), (1.31, gain)):
            axes.text(x, row, text, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=12, color=INK)
    if plain_ms is not None:
        axes.axvline(plain_ms, color=palette.GREY, linewidth=1.6, zorder=1)
    axes.set_xlim(0, highest * 1.05 or 1)
    axes.set_ylim(max(len(results), 1) - 0.5, -0.5)
    labels = [_folded(label) for label in row_labels(results)]
    fontsize = 12 if max(map(_width, labels), default=0) <= LABEL_CHARACTERS else 9
    axes.set_yticks(range(len(results)), labels, fontsize=fontsize, color=INK)
    axes.tick_params(axis="both", length=0, labelcolor=INK)
    axes.set_xlabel("step time, ms", fontsize=11, color=INK)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    hide_frame(axes)
    for x, text in ((1.09, "error"), (1.31, "speed-up,\npredicted / measured")):
        axes.text(x, 1.02, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=10, color=SOFT)
    _add_result_legend(figure, plain_label(validation) if plain_ms is not None else None)
    return save(figure, path)


def _folded(label: str) -> str:
    """A long label with its options on a line of their own."""
    return label.replace(":", ":\n", 1) if len(label) > LABEL_CHARACTERS else label


def _width(label: str) -> int:
    """Characters of the longest line of a label."""
    return max(map(len, label.splitlines()), default=0)


def _add_result_legend(figure: Figure, plain: str | None) -> None:
    marks = [
        Line2D([], [], marker="D", color=palette.PREDICTED, linestyle="", markersize=8, label="predicted"),
        Patch(facecolor=palette.PREDICTED, alpha=0.35, label="90 % interval"),
        Line2D([], [], marker="o", color=palette.MEASURED, linestyle="", markersize=8, label="measured"),
        Line2D([], [], marker="|", color=palette.MEASURED, linestyle="", markersize=9, label="each run"),
    ]
    if plain is not None:
        marks.append(Line2D([], [], color=palette.GREY, linewidth=1.6, label=plain))
    add_legend(figure, marks)
