"""The document of `schedcast run`: the curves of a training, and of others on the same batches, and the time to a target accuracy."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from traces.documents.base import Data, Document, Duration

#: The name of the curve of plain PyTorch's own training loop.
AUTOGRAD = "autograd"
#: Parts of a training that are compared one by one, so that a disturbance of both cancels.
PARTS = 10
#: The loss at the end is the mean over this last share of the iterations.
LAST = 0.05


class Evaluation(Data):
    """The accuracy after `iteration` iterations (0: before training), as shares of samples that are classified correctly.

    Both are measured in evaluation mode, with the newest weights: `test_accuracy` on held-out samples, `train_accuracy` on as many of those
    that are trained on.
    """

    iteration: int = Field(ge=0)
    train_accuracy: float = Field(ge=0, le=1)
    test_accuracy: float = Field(ge=0, le=1)


class Curve(Data):
    """One training: the loss of every iteration (null if not finite) and the time at which the iteration ended.

    `seconds` count from the start of training and include steps only, not the work between them, such as making data. `about` says how it
    was trained. `seed` is that of its initial parameters and batches. `predicted_step_s` is its step time as predicted for the document's
    `predicted_on`, if it was. If the schedule changes during the training, it is the mean, and `predicted_phases` are the phases: the first
    iteration of each, and the seconds of its steps.
    """

    name: str
    about: str = ""
    losses: tuple[float | None, ...]
    seconds: tuple[float, ...]
    seed: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    predicted_step_s: Duration | None = None
    predicted_phases: tuple[tuple[int, Duration], ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.losses) != len(self.seconds):
            raise ValueError(f"{len(self.losses)} losses, {len(self.seconds)} seconds; expected one of each per iteration")
        if any(after < before for before, after in pairwise((0.0, *self.seconds))):
            raise ValueError("seconds run backward")
        iterations = [evaluation.iteration for evaluation in self.evaluations]
        if any(after <= before for before, after in pairwise(iterations)) or iterations[-1:] > [len(self.losses)]:
            raise ValueError(f"evaluations at iterations {iterations[:9]}; expected increasing ones, up to {len(self.losses)}")
        return self

    def measured_s(self, iteration: int) -> float:
        """Seconds of training steps until `iteration` iterations were complete."""
        return self.seconds[iteration - 1] if iteration else 0.0

    def predicted_s(self, iteration: int) -> float | None:
        """The same as predicted; None without a prediction."""
        if self.predicted_step_s is None:
            return None
        phases = self.predicted_phases or ((0, self.predicted_step_s),)
        ends = [first for first, _ in phases[1:]] + [iteration]
        return sum(max(0, min(end, iteration) - first) * step_s for (first, step_s), end in zip(phases, ends, strict=True))


def by_name(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """The curves of each name, one per seed, in order."""
    named: dict[str, list[Curve]] = {}
    for curve in curves:
        named.setdefault(curve.name, []).append(curve)
    return named


def first_difference(curve: Curve, other: Curve, tolerance: float) -> int | None:
    """The first iteration, counted from 1, whose losses differ by more than `tolerance` times the largest loss of `curve`, or None."""
    limit = tolerance * max((abs(loss) for loss in curve.losses if loss is not None), default=0.0)
    for iteration, (a, b) in enumerate(zip(curve.losses, other.losses, strict=False), start=1):
        if a is not b if a is None or b is None else abs(a - b) > limit:
            return iteration
    return None


def largest_difference(curve: Curve, others: Sequence[Curve]) -> float | None:
    """max|a - b| / max|a| over the iterations in which all curves have a finite loss; None without such iterations or other curves."""
    rows = [row for row in zip(curve.losses, *(other.losses for other in others), strict=False) if None not in row]
    if not others or not rows:
        return None
    difference = max(abs(loss - row[0]) for row in rows for loss in row)
    largest_loss = max(abs(row[0]) for row in rows)
    return difference / largest_loss if largest_loss else difference


#: The measures of time in which trainings are compared.
MEASURES = ("iterations", "measured_s", "predicted_s")


class Reached(Data):
    """When a training reached the target; all of them are null if it never did, and `predicted_s` also without a prediction."""

    name: str
    seed: int
    iterations: int | None = None
    measured_s: float | None = None
    predicted_s: float | None = None


class Wins(Data):
    """In how many of `seeds` the training `name` reached the target earlier than `rival`, by each measure of time.

    `seeds` counts those in which either of them reached it; one that never does is later than one that does. `predicted_s` is null if not
    both have a prediction.
    """

    name: str
    rival: str
    seeds: int
    iterations: int
    measured_s: int
    predicted_s: int | None = None


def reached(curve: Curve, target: float) -> Reached:
    """When `curve` reaches a test accuracy of `target`: the first of two successive evaluations that are both at least that high.

    The last evaluation needs no second one.
    """
    evaluations = curve.evaluations
    for number, evaluation in enumerate(evaluations):
        if all(each.test_accuracy >= target for each in evaluations[number : number + 2]):
            at = evaluation.iteration
            measured_s, predicted_s = curve.measured_s(at), curve.predicted_s(at)
            return Reached(name=curve.name, seed=curve.seed, iterations=at, measured_s=measured_s, predicted_s=predicted_s)
    return Reached(name=curve.name, seed=curve.seed)


def wins(curves: Sequence[Curve], target: float) -> tuple[Wins, ...]:
    """How often the first training reaches `target` earlier than each of the others."""
    named = by_name(curves)
    times = {name: {curve.seed: reached(curve, target) for curve in of_name} for name, of_name in named.items()}
    first = next(iter(times), "")
    return tuple(_wins(times[first], times[rival]) for rival in times if rival != first)


def _wins(own: dict[int, Reached], rivals: dict[int, Reached]) -> Wins:
    pairs = [(own[seed], rivals[seed]) for seed in own if seed in rivals]
    pairs = [pair for pair in pairs if any(each.iterations is not None for each in pair)]
    iterations, measured_s, predicted_s = (sum(_earlier(a, b, measure) for a, b in pairs) for measure in MEASURES)
    predicted = all(each.iterations is None or each.predicted_s is not None for pair in pairs for each in pair)
    return Wins(
        name=next(iter(own.values())).name,
        rival=next(iter(rivals.values())).name,
        seeds=len(pairs),
        iterations=iterations,
        measured_s=measured_s,
        predicted_s=predicted_s if predicted else None,
    )


def _earlier(a: Reached, b: Reached, measure: str) -> bool:
    """Whether `a` reached the target before `b`."""
    if a.iterations is None or b.iterations is None:
        return a.iterations is not None
    return (getattr(a, measure) or 0.0) < (getattr(b, measure) or 0.0)


#: The data of a model without a data set.
ONE_BATCH = "one batch, repeated"


class TrainingRun(Document):
    """The losses and times of a training and of the others on the same batches. Document `schedcast.run/1`.

    `losses`, `step_s` (the median) and `step_runs_s` belong to the strategy with its first seed, which is the first of `curves`. The curves
    of a seed follow each other, always in the same order. `steps` is the number of completed steps; `complete` is False if Ctrl-C ended the
    run early. `step_s` is null if only the first step was completed.
    `max_grad_error` and `max_param_error` compare the strategy's first steps with plain PyTorch's (null if they were not compared);
    `reference_grad_error` and `reference_param_error` compare plain PyTorch with itself, and `first_step_error` the first step alone, as in
    a validation. `max_loss_difference` is the
    `largest_difference` of the other curves of the first seed from the first. `mode_reason` says why the mode is not the requested one, if
    it is not. `predicted_on` is the machine of the curves' `predicted_step_s`. `reached` says when each curve had a test accuracy of
    `target`, and `wins` how often the strategy had it earlier than the others. `busy_share`: the share of the machine that other processes
    used meanwhile, as in `traces.documents.comparison.Validation`.
    """

    schema_name: ClassVar[str] = "schedcast.run/1"
    kind: ClassVar[str] = "run"

    job: dict[str, Any]
    strategy: str
    options: dict[str, Any]
    mode: str
    steps: int
    step_s: float | None
    step_runs_s: tuple[float, ...]
    losses: tuple[float | None, ...]
    peak_bytes: dict[str, int]
    semantics: dict[str, Any]
    predicted_step_s: float | None = None
    max_grad_error: float | None = None
    max_param_error: float | None = None
    reference_grad_error: float | None = None
    reference_param_error: float | None = None
    first_step_error: float | None = None
    data: str = ONE_BATCH
    curves: tuple[Curve, ...] = ()
    max_loss_difference: float | None = None
    complete: bool = True
    mode_reason: str = ""
    predicted_on: str = ""
    target: float | None = Field(default=None, gt=0, le=1)
    reached: tuple[Reached, ...] = ()
    wins: tuple[Wins, ...] = ()
    busy_share: float | None = Field(default=None, ge=0)

    @field_validator("job")
    @classmethod
    def _has_a_learning_rate(cls, job: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(job.get("lr"), int | float | None):
            raise ValueError(f"the learning rate is {job['lr']!r}, expected a number")
        return job
