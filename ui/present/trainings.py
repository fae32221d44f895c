"""A training in sentences and as a table, the same for the terminal, the page and the app: losses, times, and when it reaches a target."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from traces import units
from traces.documents.training import AUTOGRAD, Curve, Reached, TrainingRun, Wins, by_name, first_difference, largest_difference
from traces.documents.verdict import Gain, measured_speedup
from traces.documents.verdict import gain as judged
from ui.present.labels import model_name
from ui.present.tables import Grid, stacked


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
    return [_wins_words(each, document) for each in document.wins] or [_reached_words(each, document) for each in document.reached]


def _wins_words(wins: Wins, document: TrainingRun) -> str:
    goal = f"a test accuracy of {percent_of(document.target)}"
    rival = "plain PyTorch" if wins.rival == AUTOGRAD else wins.rival
    if not wins.seeds:
        return f"neither {wins.name} nor {rival} reaches {goal}"
    counts = [f"{wins.iterations} by iterations", f"{wins.measured_s} by measured seconds"]
    if wins.predicted_s is not None:
        counts.append(f"{wins.predicted_s} by the seconds predicted for {document.predicted_on}")
    return f"{wins.name} reaches {goal} earlier than {rival}: of {units.counted(wins.seeds, 'seed')}, in {', '.join(counts)}"


def _reached_words(reached: Reached, document: TrainingRun) -> str:
    goal = f"a test accuracy of {percent_of(document.target)}"
    seed = f" with seed {reached.seed}" if len(document.reached) > 1 else ""
    if reached.iterations is None:
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
    """The median of those that there are, the range of several, and how many there are if some are missing."""
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
#: Parts of a training that are compared one by one, so that a disturbance of both cancels, and the steps of a part at least.
PARTS, FEWEST = 10, 4
#: The loss at the end is the mean over this last share of the iterations.
LAST = 0.05


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


def training_table(document: TrainingRun) -> Grid:
    """The rows that a terminal has room for: times and accuracies."""
    rows = cells(document)
    heads = [head for head in rows[0] if not head.startswith(FOR_PAGES) or " to " in head]
    return Grid([{head: stacked(row[head]) for head in heads} for row in rows], ("trained by",), [head for head in heads if " to " in head])


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4g}"
