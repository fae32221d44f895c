"""The section of a page about a training, and the folder of such a page.

index.html              the page; needs no network and no other file
run.json                the document of `schedcast run --metrics`
loss.svg                the picture

Loss and test accuracy are one line per training, thinned to few enough points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from traces.documents.training import Curve, TrainingRun
from traces.files import check_writable, write_atomic
from ui.present import palette, trainings
from ui.present import trainings as training_words
from ui.present.charts import finished
from ui.present.charts_page import chart_html
from ui.present.labels import differing, plotly_escaped
from ui.present.page import Section, document_data, first_and_last, section
from ui.present.page import page as page_of
from ui.present.pictures import write_picture
from ui.present.verdicts import busy_line


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


#: A curve with at least MANY iterations is drawn as its mean over neighbors (SHARE of all iterations) over the faint losses.
MANY, SHARE = 200, 0.04
#: Points of a line at most. More points than a picture has columns would only enlarge its file.
POINTS = 2400
#: Losses that span more than this factor are drawn on a logarithmic axis.
WIDE = 100.0
#: The measures of time that lines can be drawn over.
ITERATIONS, SECONDS, PREDICTED = "iterations", "measured seconds", "predicted seconds"


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


def training_figure(document: TrainingRun, measure: str = ITERATIONS) -> go.Figure:
    """The chart of the loss, and of the test accuracy if it was measured, over one of the document's `measures` of time."""
    losses, shares = lines(document), accuracies(document)
    figure = make_subplots(1, 2 if shares else 1, horizontal_spacing=0.08)
    for column, drawn in enumerate((losses, shares), start=1):
        for number, line in enumerate(drawn):
            if line.over(measure) is not None:
                _draw(figure, line, measure, column, number == 0)
    label = measures(document)[measure]
    figure.update_xaxes(title_text=plotly_escaped(label), gridcolor=palette.GRID, zeroline=False, rangemode="tozero")
    figure.update_yaxes(gridcolor=palette.GRID, zeroline=False)
    figure.update_yaxes(title_text="loss", type="log" if logarithmic(losses) else "linear", row=1, col=1)
    if shares:
        figure.update_yaxes(title_text="test accuracy in %", row=1, col=2)
        if document.target is not None:
            figure.add_hline(100 * document.target, line={"color": palette.GREY, "dash": "dot", "width": 1}, row=1, col=2)
    return finished(figure, f"{title(document)} over {measure}", drawn_px=320)


def _draw(figure: go.Figure, line: Line, measure: str, column: int, first: bool) -> None:
    """Add a line, and below it the band of several seeds or the faint losses of one."""
    x, quiet = line.over(measure), {"showlegend": False, "hoverinfo": "skip", "mode": "lines", "row": 1, "col": column}
    group = plotly_escaped(line.name)
    if line.seeds > 1:
        for edge, fill in ((line.high, None), (line.low, "tonexty")):
            figure.add_scatter(
                x=x, y=edge, line={"width": 0}, fill=fill, fillcolor=_clear(line.color), legendgroup=group, **quiet,
            )  # fmt: skip
    elif line.smooth:
        figure.add_scatter(x=x, y=line.values, line={"color": line.color, "width": 1}, opacity=0.2, legendgroup=group, **quiet)
    look = {"color": line.color, "width": 5 if first else 2}
    figure.add_scatter(
        x=x, y=line.means, mode="lines", line=look, opacity=0.6 if first else 1.0, showlegend=column == 1, row=1, col=column, name=group,
        legendgroup=group,
    )  # fmt: skip


def _clear(color: str) -> str:
    """The color of a band: one that other lines are seen through."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


DOCUMENT, PICTURE = "run.json", "loss.svg"


def write(folder: Path | str, document: TrainingRun) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    figures = [training_figure(document, measure) for measure in measures(document)]
    write_picture(folder / PICTURE, *figures, heading=training_words.title(document))
    return write_atomic(folder / "index.html", page(document, [(PICTURE, "picture (SVG)")], PICTURE))


def page(document: TrainingRun, files: Sequence[tuple[str, str]] = (), picture: str = "") -> str:
    """The HTML page of a training."""
    return page_of("Training", [training_section(document, files, picture)])


def training_section(document: TrainingRun, files: Sequence[tuple[str, str]] = (), picture: str = "") -> Section:
    """Curves over every measure of time, and the table. `picture`: the address of the curves for want of scripts."""
    rows = training_words.cells(document)
    charts = [
        chart_html(training_figure(document, measure), f"Loss, and accuracy if it was measured, over {measure}", "" if number else picture)
        for number, measure in enumerate(measures(document))
    ]
    return section(
        training_words.title(document), _about(document), "training.html", charts=charts, rows=rows, text_columns=first_and_last(rows),
        data=document_data(document), files=files, accuracy=any(curve.evaluations for curve in document.curves),
        target=document.target is not None,
    )  # fmt: skip


def _about(document: TrainingRun) -> str:
    """The data, and how the plan's training differs from plain training."""
    updates = differing(document.semantics)
    busy = f"{line} " if (line := busy_line(document.busy_share)) else ""
    stopped = "" if document.complete else f" Stopped after {document.steps} iterations."
    return f"{busy}Data: {document.data}.{stopped}" + (f" {document.strategy} differs from plain training: {updates}." if updates else "")
