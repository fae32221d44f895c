"""A training in sentences, a table and curves: losses, times, and when it reaches a target; and the folder of its page.

index.html              the page; needs no network and no other file
run.json                the document of `schedcast run --metrics`
loss.svg                the picture

Loss and test accuracy are one line per training, thinned to few enough points.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traces import units
from traces.documents.training import (
    AUTOGRAD,
    LAST,
    PARTS,
    Curve,
    Reached,
    TrainingRun,
    Wins,
    by_name,
    first_difference,
    largest_difference,
)
from traces.documents.verdict import Gain, measured_speedup
from traces.documents.verdict import gain as judged
from traces.files import check_writable
from ui.present import labels
from ui.present.blocks import Block, Figure, Group, Headline, Note, Section, Sentences, Table, first_and_last, stacked
from ui.present.labels import busy_line, differing, model_name

if TYPE_CHECKING:
    import plotly.graph_objects as go


DOCUMENT, PICTURE = "run.json", "loss.svg"
#: What stands below the table of a page.
_HOW = (
    "All curves train on the same batches, from the same parameters, in turns. Seconds count training steps alone; the time to make"
    " batches between them is left out. A difference is the largest at any iteration, as a share of the largest loss. It grows with the"
    " steps, because every rounding changes all later steps. For long trainings, the lines are means over neighboring iterations, drawn"
    " over the faint losses themselves. With several seeds, lines and figures are medians over the seeds; the bands, and the ranges in"
    " parentheses, go from the lowest to the highest."
)
_ACCURACY = " Accuracy is that of the newest weights, in evaluation mode, on held-out samples and on as many of those that are trained on."
_TARGET = " The target is reached at the first of two successive evaluations that are both at least as high."


def write(folder: Path | str, document: TrainingRun) -> Path:
    """Write the folder, its page last, and return the page's path. Raises SchedcastError if the folder cannot be written."""
    from ui.present.page import write_page  # here, because it loads plotly

    folder = Path(folder)
    check_writable(folder, folder=True)
    document.save(folder / DOCUMENT)  # first, because the folder is recognized by it
    return write_page(folder, "Training", section(document, [(PICTURE, "picture (SVG)")], PICTURE), heading=title(document))


def section(document: TrainingRun, files: Sequence[tuple[str, str]] = (), picture: str = "") -> Section:
    """What a page says of a training. `picture`: the address of the curves for want of scripts."""
    return Section(title(document), blocks(document, picture), document, DOCUMENT, files)


def blocks(document: TrainingRun, picture: str = "") -> list[Block]:
    """Step times, curves over every measure of time, the table, how the trainings compare, and how figures and curves are made.

    A terminal shows of the table what it has room for, and only if accuracies were measured; sentences say the rest.
    """
    rows, evaluated = cells(document), any(curve.evaluations for curve in document.curves)
    how = _HOW + _ACCURACY * evaluated + _TARGET * (document.target is not None)
    return [
        Sentences(list(filter(None, [busy_line(document.busy_share)])), mark=""),
        *([Headline(_step_words(document))] if document.curves else []),
        *(_curves(document, measure, "" if number else picture, bool(number)) for number, measure in enumerate(measures(document))),
        Table(rows, first_and_last(rows), more=("Loss at the end",), narrow=training_table(document) if evaluated else Sentences(())),
        Sentences(sentences(document), mark=""),
        Group("How the curves are made", [Note(how)], folded=True),
    ]


def _step_words(document: TrainingRun) -> str:
    """The time of a step of the first curve, and its prediction if there is one."""
    expected = f", predicted {units.duration(document.predicted_step_s)}" if document.predicted_step_s is not None else ""
    return f"{document.curves[0].name}: {units.duration(document.step_s)} per step (median of {len(document.step_runs_s)}){expected}"


def _curves(document: TrainingRun, measure: str, picture: str, continues: bool) -> Figure:
    about = f"Loss, and accuracy if it was measured, over {measure}"
    return Figure(lambda: training_figure(document, measure), about, picture, continues=continues)


def accuracy_cells(document: TrainingRun, curves: Sequence[Curve]) -> dict[str, str]:
    """Columns of one training, with its curves of all seeds; none without evaluations in the document."""
    if not any(curve.evaluations for curve in document.curves):
        return {}
    last = [curve.evaluations[-1] for curve in curves if curve.evaluations]
    row = {
        "train accuracy": _percents([each.train_accuracy for each in last]),
        "test accuracy": _percents([each.test_accuracy for each in last]),
    }
    if document.target is None:
        return row
    times = [each for each in document.reached if each.name == curves[0].name]
    row[f"iterations to {percent_of(document.target)}"] = _median([each.iterations for each in times], lambda value: f"{value:,.0f}")
    row[f"seconds to {percent_of(document.target)}"] = _median([each.measured_s for each in times], units.digits)
    if document.predicted_on:
        row[f"predicted s to {percent_of(document.target)}"] = _median([each.predicted_s for each in times], units.digits)
    return row


def accuracy_sentences(document: TrainingRun) -> list[str]:
    """A line on how often the first training reaches the target earlier than each other one, or one on each that never does."""
    if document.target is None:
        return []
    goal = f"a test accuracy of {percent_of(document.target)}"
    won = [_wins_words(each, document, goal) for each in document.wins]
    return won or [_reached_words(each, document, goal) for each in document.reached]


def _wins_words(wins: Wins, document: TrainingRun, goal: str) -> str:
    rival = "plain PyTorch" if wins.rival == AUTOGRAD else wins.rival
    if not wins.seeds:
        return f"neither {wins.name} nor {rival} reaches {goal}"
    counts = [f"{wins.iterations} by iterations", f"{wins.measured_s} by measured seconds"]
    if wins.predicted_s is not None:
        counts.append(f"{wins.predicted_s} by the seconds predicted for {document.predicted_on}")
    return f"{wins.name} reaches {goal} earlier than {rival}: of {units.counted(wins.seeds, 'seed')}, in {', '.join(counts)}"


def _reached_words(reached: Reached, document: TrainingRun, goal: str) -> str:
    seed = f" with seed {reached.seed}" if len(document.reached) > 1 else ""
    if reached.iterations is None or reached.measured_s is None:
        return f"{reached.name} does not reach {goal}{seed}"
    predicted = f", {units.digits(reached.predicted_s)} s predicted for {document.predicted_on}" if reached.predicted_s is not None else ""
    return f"{reached.name} reaches {goal}{seed} after {reached.iterations:,} iterations, {units.digits(reached.measured_s)} s{predicted}"


def percent_of(value: float) -> str:
    """A share in percent with no more decimals than it needs: 95 %, 97.5 %."""
    return f"{100 * value:.4g} %"


def _percents(shares: Sequence[float]) -> str:
    """The median, and the range of several."""
    if not shares:
        return units.NONE
    middle, low, high = (100 * each for each in (statistics.median(shares), min(shares), max(shares)))
    return f"{middle:.1f} %" + (f" ({low:.1f} to {high:.1f})" if len(shares) > 1 else "")


def _median(values: Sequence[float | None], text) -> str:
    """The median of those that exist, the range of several, and how many there are if some are missing."""
    known = [value for value in values if value is not None]
    if not known:
        return units.NONE
    spread = f" ({text(min(known))} to {text(max(known))})" if len(known) > 1 else ""
    return f"{text(statistics.median(known))}{spread}" + (f", {len(known)} of {len(values)}" if len(known) < len(values) else "")


#: By what share of the largest loss two trainings may differ in one step through rounding alone, by precision; USUAL for all others.
CLOSE = {"tf32": 0.03, "default": 0.03, "bf16": 0.03, "mixed": 0.03, "amp": 0.03, "amp-fp16": 0.03}
USUAL = 1e-3
#: Beginnings of the names of columns that do not fit a terminal, or that sentences repeat.
FOR_PAGES = ("iterations", "against", "seconds", "first loss", "loss, mean", "losses against", "train accuracy")
#: The steps at least of each part of a training that is compared.
FEWEST = 4


def title(document: TrainingRun) -> str:
    """The job that was trained: model, batch, optimizer, precision and mode."""
    job = document.job
    size = f", input size {job['image_size']}" if job.get("image_size") else ""
    optimizer = str(job.get("optimizer")) + (f" {job['lr']:g}" if job.get("lr") is not None else "")
    optimizer += f" {job['lr_schedule']}" if job.get("lr_schedule") else ""
    return f"{model_name(str(job.get('model')))}, batch {job.get('batch')}{size}, {optimizer}, {job.get('precision')}, {document.mode}"


def sentences(document: TrainingRun) -> list[str]:
    """One line each on every other training compared with the first (`groups`), by its first seed, on the data and on the losses."""
    if not document.curves:
        return []
    trainings = groups(document)
    first, *others = (group[0] for group in trainings)
    lines = [_compared(document, first, other) for other in others]
    lines += accuracy_sentences(document)
    lines.append(f"data: {document.data}" + (f"; {len(trainings[0])} seeds" if len(trainings[0]) > 1 else ""))
    if updates := differing(document.semantics):
        lines.append(f"{document.strategy} differs from plain training: {updates}")
    if not document.complete:
        lines.append(f"stopped after {document.steps} steps")
    losses = document.curves[0].losses
    if losses:
        lines.append(f"loss {_loss(losses[0])} at the first step, {_loss(losses[-1])} at the last")
    alike = not document.semantics.get("staleness")  # otherwise losses differ for another reason
    if alike and document.job.get("precision") != "fp64" and any(first_difference(first, other, close(document)) for other in others):
        lines.append("rounding errors grow from step to step: train with --precision fp64 to see whether they alone make the losses differ")
    return lines


def groups(document: TrainingRun) -> list[list[Curve]]:
    """The curves of each training, one per seed; plain PyTorch's first."""
    return sorted(by_name(document.curves).values(), key=lambda group: group[0].name != AUTOGRAD)


def name_of(curve: Curve) -> str:
    """The name of a curve; plain PyTorch's says its threads."""
    if curve.name != AUTOGRAD:
        return f"{curve.name} ({curve.about})" if curve.about else curve.name
    threads = curve.about.removeprefix("plain PyTorch").strip(", ")
    return f"plain PyTorch ({threads})" if threads else "plain PyTorch"


def close(document: TrainingRun) -> float:
    """By what share of the largest loss rounding alone may change a loss in one step."""
    return CLOSE.get(str(document.job.get("precision")), USUAL)


def _compared(document: TrainingRun, first: Curve, other: Curve) -> str:
    times = f"{units.duration(step_s(other))} per step, {units.duration(step_s(first))} with {name_of(first)}"
    gained = gain(document, first, other)
    return f"{name_of(other)}: {times} ({units.NONE if gained is None else gained.judged}); {agreement(first, other, close(document))}"


def gain(document: TrainingRun, first: Curve, other: Curve) -> Gain | None:
    """How many times as fast a step of `other` is as one of `first`; None if either is unknown, or for the first curve itself.

    Both curves are cut into PARTS of as many steps, which were taken in turns, and compared part by part.
    """
    if not step_s(first) or not step_s(other) or other is first:
        return None
    count = max(1, min(PARTS, len(first.seconds) // FEWEST))
    factor, interval = measured_speedup(_parts(first, count), _parts(other, count), among=max(1, len(groups(document)) - 1))
    return judged(factor, interval, busy_share=document.busy_share)


def _parts(curve: Curve, count: int) -> list[list[float]]:
    """The lengths of a curve's steps in `count` successive parts."""
    lengths = _lengths_s(curve)
    return [lengths[number * len(lengths) // count : (number + 1) * len(lengths) // count] for number in range(count)]


def _lengths_s(curve: Curve) -> list[float]:
    return [after - before for before, after in pairwise(curve.seconds)]


def agreement(first: Curve, other: Curve, tolerance: float) -> str:
    """How far the losses of two curves differ, and from which iteration on by more than `tolerance` of the largest loss."""
    difference = largest_difference(first, [other])
    if difference is None:
        return "no losses to compare"
    if difference == 0:
        return "losses identical, bit for bit"
    words = f"losses differ by at most {difference:.0e} of the largest"
    since = first_difference(first, other, tolerance)
    return words if since is None else f"{words}, by more than {tolerance:.0e} from iteration {since} on"


def step_s(curve: Curve) -> float | None:
    """The median time of a step; None with fewer than two iterations."""
    lengths = _lengths_s(curve)
    return statistics.median(lengths) if lengths else None


def cells(document: TrainingRun) -> list[dict[str, str]]:
    """One row per training, column name to text; plain PyTorch first. The loss at the end and accuracies are medians over the seeds."""
    trainings = groups(document)
    return [_row(document, curves, trainings[0][0]) for curves in trainings]


def _row(document: TrainingRun, curves: Sequence[Curve], first: Curve) -> dict[str, str]:
    curve = curves[0]
    gained = gain(document, first, curve)
    ends = [end for end in map(_end, curves) if end is not None]
    rival = "PyTorch" if first.name == AUTOGRAD else first.name
    return {
        "trained by": name_of(curve),
        "iterations": f"{len(curve.losses):,}",
        "ms per step": units.ms(step_s(curve)),
        f"against {rival}": units.speedup(1.0) if gained is None and curve is first else units.NONE if gained is None else gained.judged,
        "seconds": units.digits(curve.seconds[-1]) if curve.seconds else units.NONE,
        **({f"predicted ms, {document.predicted_on}": units.ms(curve.predicted_step_s)} if document.predicted_on else {}),
        "first loss": _loss(curve.losses[0]) if curve.losses else units.NONE,
        f"loss, mean of the last {LAST * 100:.0f} %": _loss(statistics.median(ends) if ends else None),
        **accuracy_cells(document, curves),
        f"losses against {rival}": units.NONE if curve is first else agreement(first, curve, close(document)),
    }


def _end(curve: Curve) -> float | None:
    """The mean of the last losses, if there are any finite ones."""
    last = [loss for loss in curve.losses[-max(1, round(LAST * len(curve.losses))) :] if loss is not None]
    return statistics.mean(last) if last else None


def training_table(document: TrainingRun) -> Table:
    """The rows that a terminal has room for: times and accuracies."""
    rows = cells(document)
    heads = [head for head in (rows[0] if rows else ()) if not head.startswith(FOR_PAGES) or " to " in head]
    return Table(
        [{head: stacked(row[head]) for head in heads} for row in rows], ("trained by",), [head for head in heads if " to " in head]
    )


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4g}"


@dataclass(frozen=True)
class Line:
    """The loss or the accuracy of one training over its iterations (counted from 1; of accuracies, how many were completed).

    `means`: what is drawn. Of one seed these are its `values`, or if `smooth` the means over their neighbors; of several, the median over
    the seeds of these, which are between `low` and `high`. `seconds` and `predicted` (None without a prediction) are alternatives to
    `iterations`. Losses that are not finite are omitted.
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


def chart_title(document: TrainingRun) -> str:
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
    return [_line(group, labels.line_color(i), values_of, smooths) for i, group in enumerate(groups(document))]


def _line(curves: Sequence[Curve], color: str, values_of: Callable[[Curve], tuple[np.ndarray, np.ndarray]], smooths: bool) -> Line:
    """One line from the curves of all seeds, up to the end of the shortest."""
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
        name=name_of(curves[0]),
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


def training_figure(document: TrainingRun, measure: str = ITERATIONS) -> "go.Figure":
    """The chart of the loss, and of the test accuracy if it was measured, over one of the document's `measures` of time."""
    from plotly.subplots import make_subplots

    losses, shares = lines(document), accuracies(document)
    figure = make_subplots(1, 2 if shares else 1, horizontal_spacing=0.08)
    for column, drawn in enumerate((losses, shares), start=1):
        for number, line in enumerate(drawn):
            if line.over(measure) is not None:
                _draw(figure, line, measure, column, number == 0)
    label = measures(document)[measure]
    figure.update_xaxes(title_text=labels.plotly_escaped(label), gridcolor=labels.GRID, zeroline=False, rangemode="tozero")
    figure.update_yaxes(gridcolor=labels.GRID, zeroline=False)
    figure.update_yaxes(title_text="loss", type="log" if logarithmic(losses) else "linear", row=1, col=1)
    if shares:
        figure.update_yaxes(title_text="test accuracy in %", row=1, col=2)
        if document.target is not None:
            figure.add_hline(100 * document.target, line={"color": labels.GREY, "dash": "dot", "width": 1}, row=1, col=2)
    return labels.finished(figure, f"{chart_title(document)} over {measure}", drawn_px=320)


def _draw(figure: "go.Figure", line: Line, measure: str, column: int, first: bool) -> None:
    """Add a line, and below it the band of several seeds or the faint losses of one."""
    x, quiet = line.over(measure), {"showlegend": False, "hoverinfo": "skip", "mode": "lines", "row": 1, "col": column}
    group = labels.plotly_escaped(line.name)
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
