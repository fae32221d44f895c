"""The document of `stepcast run`: losses and times of a training, and of others on the same batches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import field_validator, model_validator

from traces.documents import Data, Document

#: The data of a model without a data set.
ONE_BATCH = "one batch, repeated"
#: The name of the curve of plain PyTorch's own training loop.
AUTOGRAD = "autograd"


class Curve(Data):
    """One training: the loss of every iteration (null if not finite) and the time at which the iteration ended.

    `seconds` count from the start of training and include steps only, not the work between them, such as making data. `about` says how it
    was trained.
    """

    name: str
    about: str = ""
    losses: tuple[float | None, ...]
    seconds: tuple[float, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.losses) != len(self.seconds):
            raise ValueError(f"{len(self.losses)} losses, {len(self.seconds)} seconds; expected one of each per iteration")
        if any(after < before for before, after in pairwise((0.0, *self.seconds))):
            raise ValueError("seconds run backward")
        return self


class TrainingRun(Document):
    """The document of `stepcast run`.

    `losses`, `step_s` (the median) and `step_runs_s` belong to the strategy, which is the first of `curves`. `steps` is the number of
    completed steps; `complete` is False if Ctrl-C ended the run early. `step_s` is null if only the first step was completed.
    `max_grad_error` and `max_param_error` compare the strategy's first steps with plain PyTorch's (null if they were not compared);
    `reference_grad_error` and `reference_param_error` compare plain PyTorch with itself, as in a validation. `max_loss_difference` is the
    `largest_difference` of the other curves from the first. `mode_reason` says why the mode is not the one asked for, if it is not.
    """

    schema_name: ClassVar[str] = "stepcast.run/1"
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
    data: str = ONE_BATCH
    curves: tuple[Curve, ...] = ()
    max_loss_difference: float | None = None
    complete: bool = True
    mode_reason: str = ""

    @field_validator("job")
    @classmethod
    def _has_a_learning_rate(cls, job: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(job.get("lr"), int | float | None):
            raise ValueError(f"the learning rate is {job['lr']!r}, expected a number")
        return job


def first_difference(curve: Curve, other: Curve, tolerance: float) -> int | None:
    """The first iteration, counted from 1, whose losses differ by more than `tolerance` times the largest loss of `curve`, or None."""
    limit = tolerance * max((abs(loss) for loss in curve.losses if loss is not None), default=0.0)
    for iteration, (a, b) in enumerate(zip(curve.losses, other.losses, strict=False), start=1):
        if (a is None) != (b is None) or (a is not None and abs(a - b) > limit):
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
