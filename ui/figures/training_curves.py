"""What the picture and the chart of a training have in common: one line per curve, with few enough points, in colors."""

from dataclasses import dataclass

import numpy as np

from traces.curves import Curve
from traces.training import TrainingRun
from ui.figures import palette
from ui.text import trainings

#: A curve with at least MANY iterations is drawn as its mean over neighbors (SHARE of all iterations) over the faint losses.
MANY, SHARE = 200, 0.04
#: Points of a line at most. More points than a picture has columns would only enlarge its file.
POINTS = 2400
#: Losses that span more than this factor are drawn on a logarithmic axis.
WIDE = 100.0


@dataclass(frozen=True)
class Line:
    """A curve without the iterations whose loss is not finite.

    `iterations` count from 1. `means`: of the losses over their neighbors; the losses themselves unless `smooth`.
    """

    name: str
    color: str
    iterations: np.ndarray
    seconds: np.ndarray
    losses: np.ndarray
    means: np.ndarray
    smooth: bool


def lines(document: TrainingRun) -> list[Line]:
    """The curves of `document`, plain PyTorch's first, thinned to POINTS."""
    shades = [*palette.PHASE.values(), palette.OTHER]
    return [_line(curve, shades[number % len(shades)]) for number, curve in enumerate(trainings.ordered(document))]


def _line(curve: Curve, color: str) -> Line:
    losses = np.array([np.nan if loss is None else loss for loss in curve.losses], float)
    finite = np.flatnonzero(np.isfinite(losses))
    losses = losses[finite]
    smooth = len(losses) >= MANY
    thinned = slice(None, None, -(-len(losses) // POINTS) or 1)
    means = smoothed(losses) if smooth else losses
    seconds = np.array(curve.seconds, float)[finite]
    return Line(trainings.name_of(curve), color, finite[thinned] + 1, seconds[thinned], losses[thinned], means[thinned], smooth)


def smoothed(losses: np.ndarray) -> np.ndarray:
    """The mean of each loss over its neighbors, SHARE of all losses; over fewer at both ends."""
    reach = int(len(losses) * SHARE / 2)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    places = np.arange(len(losses))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(losses))
    return (sums[high] - sums[low]) / (high - low)


def logarithmic(drawn: list[Line]) -> bool:
    """Whether the axis of losses should be logarithmic."""
    values = [value for line in drawn if len(line.means) for value in (line.means.min(), line.means.max())]
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values) and min(line.losses.min() for line in drawn) > 0
