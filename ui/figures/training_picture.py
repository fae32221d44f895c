"""The static picture of a training: loss over iterations and over seconds, with all curves in both halves."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from traces.training import TrainingRun
from ui.figures.canvas import FAINT, INK, add_legend, hide_frame, new_figure, save
from ui.figures.training_curves import Line, lines, logarithmic
from ui.text import trainings as training_words

HEIGHT_IN, TOP_IN, BOTTOM_IN = 5.0, 1.0, 0.62
#: (width, style, opacity) of the curves. The first is thick, so that it stays visible under a curve that lies on it.
LOOKS = ((4.5, "-", 0.55), (1.6, "-", 1.0), (1.6, "--", 1.0), (1.6, ":", 1.0))


def training_picture(path: Path | str, document: TrainingRun) -> Path:
    """Draw the curves of `document` into `path` (.png or .svg)."""
    figure = new_figure(HEIGHT_IN, training_words.title(document))
    bottom, height = BOTTOM_IN / HEIGHT_IN, 1 - (TOP_IN + BOTTOM_IN) / HEIGHT_IN
    left, right = (figure.add_axes((x, bottom, 0.44, height)) for x in (0.06, 0.545))
    drawn, marks = lines(document), []
    for number, line in enumerate(drawn):
        look = LOOKS[min(number, len(LOOKS) - 1)]
        _draw(left, line.iterations, line, look)
        _draw(right, line.seconds, line, look)
        width, style, opacity = look
        marks.append(Line2D([], [], color=line.color, linewidth=width, linestyle=style, alpha=opacity, label=line.name))
    for axes, label in ((left, "iteration"), (right, "seconds of training steps")):
        _finish(axes, label, logarithmic(drawn))
    right.set_ylim(left.get_ylim())
    right.tick_params(labelleft=False)
    left.set_ylabel("loss", fontsize=11, color=INK)
    if marks:
        add_legend(figure, marks)
    return save(figure, path)


def _draw(axes: Axes, x: np.ndarray, line: Line, look: tuple[float, str, float]) -> None:
    width, style, opacity = look
    if line.smooth:
        axes.plot(x, line.losses, color=line.color, linewidth=0.6, alpha=0.22)
    axes.plot(x, line.means, color=line.color, linewidth=width, linestyle=style, alpha=opacity, solid_capstyle="butt")


def _finish(axes: Axes, label: str, log: bool) -> None:
    axes.set_xlabel(label, fontsize=11, color=INK)
    if log:
        axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", length=0, labelcolor=INK)
    hide_frame(axes)
