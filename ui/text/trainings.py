"""A training in sentences and as a table, the same for the terminal, the page and the app."""

import statistics
from itertools import pairwise

from traces import units
from traces.curves import AUTOGRAD, Curve, first_difference, largest_difference
from traces.training import TrainingRun

#: By what share of the largest loss two trainings may differ in one step through rounding alone, by precision; USUAL for all others.
CLOSE = {"tf32": 0.03, "bf16": 0.03}
USUAL = 1e-3
#: The loss at the end is the mean over this last share of the iterations.
LAST = 0.05


def title(document: TrainingRun) -> str:
    """The job that was trained: model, batch, optimizer, precision and mode."""
    job = document.job
    size = f", image size {job['image_size']}" if job.get("image_size") else ""
    optimizer = str(job.get("optimizer")) + (f" {job['lr']:g}" if job.get("lr") is not None else "")
    return f"{job.get('model')}, batch {job.get('batch')}{size}, {optimizer}, {job.get('precision')}, {document.mode}"


def sentences(document: TrainingRun) -> list[str]:
    """One line each on every other curve compared with the first (`ordered`), on the data and on the losses."""
    if not document.curves:
        return []
    first, *others = ordered(document)
    lines = [_compared(first, other, close(document)) for other in others]
    lines.append(f"data: {document.data}")
    if not document.complete:
        lines.append(f"stopped after {document.steps} steps")
    losses = document.curves[0].losses
    if losses:
        lines.append(f"loss {_loss(losses[0])} at the first step, {_loss(losses[-1])} at the last")
    if document.job.get("precision") != "fp64" and any(first_difference(first, other, close(document)) for other in others):
        lines.append("rounding errors grow from step to step: train with --precision fp64 to see whether they alone make the losses differ")
    return lines


def ordered(document: TrainingRun) -> list[Curve]:
    """The curves, plain PyTorch's first."""
    return sorted(document.curves, key=lambda curve: curve.name != AUTOGRAD)


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
    """One row per curve, column name to text; plain PyTorch first."""
    curves = ordered(document)
    return [_row(curve, curves[0], close(document)) for curve in curves]


def _row(curve: Curve, first: Curve, tolerance: float) -> dict[str, str]:
    last = [loss for loss in curve.losses[-max(1, round(LAST * len(curve.losses))) :] if loss is not None]
    rival = "PyTorch" if first.name == AUTOGRAD else first.name
    return {
        "trained by": name_of(curve),
        "iterations": f"{len(curve.losses):,}",
        "ms per step": units.ms(step_s(curve)),
        f"against {rival}": units.speedup(gain(first, curve)),
        "seconds": units.digits(curve.seconds[-1]) if curve.seconds else units.NONE,
        "first loss": _loss(curve.losses[0]) if curve.losses else units.NONE,
        f"loss, mean of the last {LAST * 100:.0f} %": _loss(statistics.mean(last) if last else None),
        f"losses against {rival}": units.NONE if curve is first else agreement(first, curve, tolerance),
    }


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4g}"
