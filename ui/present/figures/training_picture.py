"""The static picture of a training: loss, and below it test accuracy if it was measured, over every measure of time."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from traces.documents.training import TrainingRun
from ui.present.figures import palette
from ui.present.figures.canvas import FAINT, INK, add_legend, hide_frame, new_figure, save
from ui.present.figures.training_curves import Line, accuracies, lines, logarithmic, measures
from ui.present.text import trainings as training_words

#: Heights in inches: of a row of panels, of the gap below it with its labels, and of title and legend with and without a row of marks.
ROW_IN, BELOW_IN, HEAD_IN, MARKS_IN = 3.38, 0.62, 0.72, 0.28
#: Left edge, right edge and gap of the columns, as shares of the width.
LEFT, RIGHT, GAP = 0.06, 0.985, 0.045
#: Characters of the marks that fit a row of the legend.
LEGEND_CHARACTERS = 120
#: (width, style, opacity) of the curves. The first is thick, so that it stays visible under a curve that lies on it.
LOOKS = ((4.5, "-", 0.55), (1.6, "-", 1.0), (1.6, "--", 1.0), (1.6, ":", 1.0))


def training_picture(path: Path | str, document: TrainingRun) -> Path:
    """Draw the curves of `document` into `path` (.png or .svg)."""
    losses, shares = lines(document), accuracies(document)
    rows, columns = [("loss", losses)] + ([("test accuracy in %", shares)] if shares else []), list(measures(document).items())
    marks = [_mark(line, number) for number, line in enumerate(losses)]
    per_row = max(1, min(len(marks), LEGEND_CHARACTERS // max([8, *(len(line.name) + 6 for line in losses)])))
    head_in = HEAD_IN + MARKS_IN * -(-len(marks) // per_row)
    height_in = head_in + len(rows) * (ROW_IN + BELOW_IN)
    figure = new_figure(height_in, training_words.title(document))
    width = (RIGHT - LEFT - GAP * (len(columns) - 1)) / len(columns)
    for row, (name, drawn) in enumerate(rows):
        bottom = 1 - (head_in + row * (ROW_IN + BELOW_IN) + ROW_IN) / height_in
        beside: Axes | None = None
        for column, (measure, label) in enumerate(columns):
            axes = figure.add_axes((LEFT + column * (width + GAP), bottom, width, ROW_IN / height_in), sharey=beside)
            for number, line in enumerate(drawn):
                if line.over(measure) is not None:
                    _draw(axes, measure, line, LOOKS[min(number, len(LOOKS) - 1)])
            if row and document.target is not None:
                axes.axhline(100 * document.target, color=palette.GREY, linewidth=1, linestyle=":")
            _finish(axes, label, not row and logarithmic(losses), beside is None)
            if beside is None:
                axes.set_ylabel(name, fontsize=11, color=INK)
                beside = axes
    if marks:
        add_legend(figure, marks, columns=per_row)
    return save(figure, path)


def _mark(line: Line, number: int) -> Line2D:
    width, style, opacity = LOOKS[min(number, len(LOOKS) - 1)]
    return Line2D([], [], color=line.color, linewidth=width, linestyle=style, alpha=opacity, label=line.name)


def _draw(axes: Axes, measure: str, line: Line, look: tuple[float, str, float]) -> None:
    width, style, opacity = look
    x = line.over(measure)
    if line.seeds > 1:
        axes.fill_between(x, line.low, line.high, color=line.color, alpha=0.16, linewidth=0)
    elif line.smooth:
        axes.plot(x, line.values, color=line.color, linewidth=0.6, alpha=0.22)
    axes.plot(x, line.means, color=line.color, linewidth=width, linestyle=style, alpha=opacity, solid_capstyle="butt")


def _finish(axes: Axes, label: str, log: bool, first: bool) -> None:
    axes.set_xlabel(label, fontsize=11, color=INK, parse_math=False)
    if log:
        axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", length=0, labelcolor=INK, labelleft=first)
    hide_frame(axes)
