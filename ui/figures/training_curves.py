"""What both the static and the interactive picture of a training draw: lines of few enough points, in colors."""

from dataclasses import dataclass

import numpy as np

from traces.training import Curve, TrainingRun
from ui.figures import palette

#: From so many iterations on, a mean over a share of them is drawn over the faint losses themselves.
MANY, SHARE = 200, 0.04
#: Points of a line at most: more than a picture has columns would only make its file large.
POINTS = 2400
#: Losses that span such a factor are drawn on a logarithmic axis.
WIDE = 100.0


@dataclass(frozen=True)
class Line:
    """A curve without the iterations whose loss is not finite: numbers from 1, seconds, losses and their means over neighbours.

    `smooth`: whether `means` differ from `losses`.
    """

    name: str
    color: str
    iterations: np.ndarray
    seconds: np.ndarray
    losses: np.ndarray
    means: np.ndarray
    smooth: bool


def lines(document: TrainingRun) -> list[Line]:
    """The curves of `document`, thinned out to POINTS."""
    shades = [*palette.PHASE.values(), palette.OTHER]
    return [_line(curve, shades[number % len(shades)]) for number, curve in enumerate(document.curves)]


def _line(curve: Curve, color: str) -> Line:
    losses = np.array([np.nan if loss is None else loss for loss in curve.losses], float)
    known = np.flatnonzero(np.isfinite(losses))
    losses = losses[known]
    smooth = len(losses) >= MANY
    kept = slice(None, None, -(-len(losses) // POINTS) or 1)
    means = smoothed(losses) if smooth else losses
    seconds = np.array(curve.seconds, float)[known]
    return Line(curve.name, color, known[kept] + 1, seconds[kept], losses[kept], means[kept], smooth)


def smoothed(losses: np.ndarray) -> np.ndarray:
    """The mean over the neighbours of each loss, SHARE of all of them; over fewer at both ends."""
    reach = int(len(losses) * SHARE / 2)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    places = np.arange(len(losses))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(losses))
    return (sums[high] - sums[low]) / (high - low)


def logarithmic(drawn: list[Line]) -> bool:
    """Whether the axis of losses should be."""
    values = [value for line in drawn if len(line.means) for value in (line.means.min(), line.means.max())]
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values) and min(line.losses.min() for line in drawn) > 0
