"""The picture of a training: loss over iterations and over seconds, all curves in each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from traces.training import Curve, TrainingRun

from . import palette, training_words
from .pictures import DOTS_PER_INCH, FAINT, INK, WIDTH_IN, legend, write

HEIGHT_IN, TOP_IN, BOTTOM_IN = 5.0, 1.2, 0.62
#: From so many iterations on, a mean over a share of them is drawn over the faint losses themselves.
MANY, SHARE = 200, 0.02
#: Losses that span such a factor are drawn on a logarithmic axis.
WIDE = 100.0
#: The first curve is thick, so that one that lies on it leaves it visible.
LOOKS = ((4.5, "-", 0.55), (1.6, "-", 1.0), (1.6, "--", 1.0), (1.6, ":", 1.0))


def training_picture(path: Path | str, document: TrainingRun) -> Path:
    """Draw the curves of `document` into `path` (.png or .svg)."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    bottom, height = BOTTOM_IN / HEIGHT_IN, 1 - (TOP_IN + BOTTOM_IN) / HEIGHT_IN
    left, right = (figure.add_axes((x, bottom, 0.44, height)) for x in (0.055, 0.545))
    losses = [loss for curve in document.curves for loss in curve.losses if loss is not None]
    marks = []
    for number, curve in enumerate(document.curves):
        colour, look = colour_of(number), LOOKS[min(number, len(LOOKS) - 1)]
        known = _known(curve)
        _line(left, known[0], known[2], colour, look)
        _line(right, known[1], known[2], colour, look)
        width, style, strength = look
        marks.append(Line2D([], [], color=colour, linewidth=width, linestyle=style, alpha=strength, label=curve.name))
    for axes, label in ((left, "iteration"), (right, "seconds of training steps")):
        _finish(axes, label, bool(losses) and min(losses) > 0 and max(losses) > WIDE * min(losses))
    right.set_ylim(left.get_ylim())
    right.tick_params(labelleft=False)
    left.set_ylabel("loss", fontsize=11, color=INK)
    heading = training_words.title(document)
    figure.text(0.012, 1 - 0.16 / HEIGHT_IN, heading, fontsize=16, weight="bold", va="top", color=INK, parse_math=False)
    if marks:
        legend(figure, marks, 1 - 0.47 / HEIGHT_IN)
    return write(figure, path)


def colour_of(number: int) -> str:
    """The colour of the curve of that number."""
    shades = [*palette.PHASE.values(), palette.OTHER]
    return shades[number % len(shades)]


def smoothed(losses: Sequence[float]) -> np.ndarray:
    """The mean over the neighbours of each loss, in all SHARE of them; fewer at both ends. The losses themselves where they are few."""
    values = np.asarray(losses, float)
    reach = int(len(values) * SHARE / 2)
    if len(values) < MANY or not reach:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _known(curve: Curve) -> tuple[list[int], list[float], list[float]]:
    """Iterations (from 1), seconds and losses where the loss is finite."""
    rows = [
        (i, second, loss) for i, (second, loss) in enumerate(zip(curve.seconds, curve.losses, strict=True), start=1) if loss is not None
    ]
    return tuple(map(list, zip(*rows, strict=True))) if rows else ([], [], [])


def _line(axes: Axes, x: list[float], losses: list[float], colour: str, look: tuple[float, str, float]) -> None:
    width, style, strength = look
    if len(losses) >= MANY:
        axes.plot(x, losses, color=colour, linewidth=0.6, alpha=0.22)
    axes.plot(x, smoothed(losses), color=colour, linewidth=width, linestyle=style, alpha=strength, solid_capstyle="butt")


def _finish(axes: Axes, label: str, logarithmic: bool) -> None:
    axes.set_xlabel(label, fontsize=11, color=INK)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", length=0, labelcolor=INK)
    for side in axes.spines.values():
        side.set_visible(False)
