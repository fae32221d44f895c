"""A training in sentences and as a table, the same for the terminal, the page and the app."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill

from rich.table import Table
from rich.text import Text

from traces import units
from traces.curves import AUTOGRAD, Curve, by_name, first_difference, largest_difference
from traces.training import TrainingRun
from ui.text import accuracies

#: By what share of the largest loss two trainings may differ in one step through rounding alone, by precision; USUAL for all others.
CLOSE = {"tf32": 0.03, "bf16": 0.03, "amp": 0.03, "amp-fp16": 0.03}
USUAL = 1e-3
#: Beginnings of the names of columns that do not fit a terminal, or that sentences repeat, and characters of a line in a column's head.
FOR_PAGES, HEAD_WIDTH = ("iterations", "against", "seconds", "first loss", "loss, mean", "losses against", "train accuracy"), 13
#: The loss at the end is the mean over this last share of the iterations.
LAST = 0.05


def title(document: TrainingRun) -> str:
    """The job that was trained: model, batch, optimizer, precision and mode."""
    job = document.job
    size = f", image size {job['image_size']}" if job.get("image_size") else ""
    optimizer = str(job.get("optimizer")) + (f" {job['lr']:g}" if job.get("lr") is not None else "")
    optimizer += f" {job['lr_schedule']}" if job.get("lr_schedule") else ""
    return f"{job.get('model')}, batch {job.get('batch')}{size}, {optimizer}, {job.get('precision')}, {document.mode}"


def sentences(document: TrainingRun) -> list[str]:
    """One line each on every other training compared with the first (`groups`), by its first seed, on the data and on the losses."""
    if not document.curves:
        return []
    trainings = groups(document)
    first, *others = (group[0] for group in trainings)
    lines = [_compared(first, other, close(document)) for other in others]
    lines += accuracies.sentences(document)
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


def _compared(first: Curve, other: Curve, tolerance: float) -> str:
    times = f"{units.duration(step_s(other))} per step, {units.duration(step_s(first))} with {name_of(first)}"
    return f"{name_of(other)}: {times} ({units.speedup(gain(first, other))}); {agreement(first, other, tolerance)}"


def gain(first: Curve, other: Curve) -> float | None:
    """How many times as fast a step of `other` is as one of `first`; None if either is unknown."""
    return step_s(first) / step_s(other) if step_s(first) and step_s(other) else None


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
    lengths = [after - before for before, after in pairwise(curve.seconds)]
    return statistics.median(lengths) if lengths else None


def cells(document: TrainingRun) -> list[dict[str, str]]:
    """One row per training, column name to text; plain PyTorch first. The loss at the end and accuracies are medians over the seeds."""
    trainings = groups(document)
    return [_row(document, curves, trainings[0][0], close(document)) for curves in trainings]


def _row(document: TrainingRun, curves: Sequence[Curve], first: Curve, tolerance: float) -> dict[str, str]:
    curve = curves[0]
    ends = [end for end in map(_end, curves) if end is not None]
    rival = "PyTorch" if first.name == AUTOGRAD else first.name
    return {
        "trained by": name_of(curve),
        "iterations": f"{len(curve.losses):,}",
        "ms per step": units.ms(step_s(curve)),
        f"against {rival}": units.speedup(gain(first, curve)),
        "seconds": units.digits(curve.seconds[-1]) if curve.seconds else units.NONE,
        **({f"predicted ms, {document.predicted_on}": units.ms(curve.predicted_step_s)} if document.predicted_on else {}),
        "first loss": _loss(curve.losses[0]) if curve.losses else units.NONE,
        f"loss, mean of the last {LAST * 100:.0f} %": _loss(statistics.median(ends) if ends else None),
        **accuracies.cells(document, curves),
        f"losses against {rival}": units.NONE if curve is first else agreement(first, curve, tolerance),
    }


def _end(curve: Curve) -> float | None:
    """The mean of the last losses, if there are any finite ones."""
    last = [loss for loss in curve.losses[-max(1, round(LAST * len(curve.losses))) :] if loss is not None]
    return statistics.mean(last) if last else None


def training_table(document: TrainingRun) -> Table:
    """The rows that a terminal has room for: times and accuracies."""
    table = Table(header_style="bold")
    rows = cells(document)
    heads = [head for head in rows[0] if not head.startswith(FOR_PAGES) or " to " in head]
    for head in heads:
        table.add_column(fill(head, HEAD_WIDTH), justify="left" if head == "trained by" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[head].replace(" (", "\n(").replace(",", ",\n" if head == "trained by" else ",")) for head in heads))
    return table


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4g}"
