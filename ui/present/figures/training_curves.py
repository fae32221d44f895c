"""What the picture and the chart of a training have in common: one line per training, with few enough points, in colors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from traces.documents.curves import Curve
from traces.documents.training import TrainingRun
from ui.present.figures import palette
from ui.present.text import trainings

#: A curve with at least MANY iterations is drawn as its mean over neighbors (SHARE of all iterations) over the faint losses.
MANY, SHARE = 200, 0.04
#: Points of a line at most. More points than a picture has columns would only enlarge its file.
POINTS = 2400
#: Losses that span more than this factor are drawn on a logarithmic axis.
WIDE = 100.0
#: The measures of time that lines can be drawn over.
ITERATIONS, SECONDS, PREDICTED = "iterations", "measured seconds", "predicted seconds"


@dataclass(frozen=True)
class Line:
    """The loss or the accuracy of one training over its iterations (counted from 1; of accuracies, how many were completed).

    `means`: what is drawn. Of one seed these are its `values`, or if `smooth` the means over their neighbors; of several, the median over
    the seeds of these, which lie between `low` and `high`. `seconds` and `predicted` (None without a prediction) are alternatives to
    `iterations`. Losses that are not finite are left out.
    """

    name: str
    color: str
    iterations: np.ndarray
    seconds: np.ndarray
    predicted: np.ndarray | None
    values: np.ndarray
    means: np.ndarray
    low: np.ndarray
    high: np.ndarray
    smooth: bool
    seeds: int

    def over(self, measure: str) -> np.ndarray | None:
        """The line's place on the axis of a measure of time; None without a prediction."""
        return {ITERATIONS: self.iterations, SECONDS: self.seconds, PREDICTED: self.predicted}[measure]


def lines(document: TrainingRun) -> list[Line]:
    """The losses of every training, plain PyTorch's first, thinned to POINTS."""
    return _lines(document, _losses)


def accuracies(document: TrainingRun) -> list[Line]:
    """The test accuracies of every training in percent, plain PyTorch's first; none if they were not measured."""
    return [line for line in _lines(document, _test_accuracies) if len(line.iterations)]


def measures(document: TrainingRun) -> dict[str, str]:
    """The measures of time that the document has, with the labels of their axes."""
    labels = {ITERATIONS: "iteration", SECONDS: "seconds of training steps"}
    if any(curve.predicted_step_s for curve in document.curves):
        labels[PREDICTED] = f"seconds predicted for {document.predicted_on}"
    return labels


def title(document: TrainingRun) -> str:
    """What the lines show."""
    return "Loss and test accuracy" if accuracies(document) else "Loss"


def _losses(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    losses = np.array([np.nan if loss is None else loss for loss in curve.losses], float)
    return np.arange(1, len(losses) + 1), losses


def _test_accuracies(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    evaluated = [(each.iteration, 100 * each.test_accuracy) for each in curve.evaluations]
    return np.array([at for at, _ in evaluated], int), np.array([percent for _, percent in evaluated], float)


def _lines(document: TrainingRun, values_of: Callable[[Curve], tuple[np.ndarray, np.ndarray]]) -> list[Line]:
    smooths = values_of is _losses
    return [_line(group, palette.line_color(i), values_of, smooths) for i, group in enumerate(trainings.groups(document))]


def _line(curves: Sequence[Curve], color: str, values_of: Callable[[Curve], tuple[np.ndarray, np.ndarray]], smooths: bool) -> Line:
    """One line from the curves of all seeds, as far as all of them go."""
    of_seeds = [values_of(curve) for curve in curves]
    count = min(len(iterations) for iterations, _ in of_seeds)
    iterations, values = of_seeds[0][0][:count], np.array([values[:count] for _, values in of_seeds])
    finite = np.flatnonzero(np.isfinite(values).all(axis=0))
    iterations, values = iterations[finite], values[:, finite]
    smooth = smooths and len(finite) >= MANY
    drawn = np.array([smoothed(row) for row in values]) if smooth else values
    times = np.array([[0.0, *curve.seconds[: iterations[-1] if len(iterations) else 0]] for curve in curves])
    seconds = np.median(times, axis=0)[iterations]
    thin = slice(None, None, -(-len(finite) // POINTS) or 1)
    return Line(
        name=trainings.name_of(curves[0]),
        color=color,
        iterations=iterations[thin],
        seconds=seconds[thin],
        predicted=None if curves[0].predicted_step_s is None else np.array([curves[0].predicted_s(int(i)) for i in iterations[thin]]),
        values=values[0][thin],
        means=np.median(drawn, axis=0)[thin],
        low=drawn.min(axis=0)[thin],
        high=drawn.max(axis=0)[thin],
        smooth=smooth,
        seeds=len(curves),
    )


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
    lowest = min((min(line.values.min(), line.low.min()) for line in drawn if len(line.means)), default=0.0)
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values) and lowest > 0
