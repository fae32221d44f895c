"""What `stepcast run` measured: the losses and times of one training, and of others on the same batches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

from pydantic import model_validator

from traces.documents import Data, Document

#: What a model without a data set trains on.
ONE_BATCH = "one batch, repeated"


class Curve(Data):
    """One training: a loss per iteration (null where it is not finite), and when the iteration ended.

    `seconds` count steps alone, from the start of training: not what is done between them, such as making data. `about`: how it trained.
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
    """The document of `stepcast run`. `losses`, `step_s` (median) and `step_runs_s` are those of the strategy, the first of `curves`.

    `steps` were completed; `complete` is False where Ctrl-C ended it before as many were as had been asked for. `step_s` is null when no
    step after a first one was. `max_loss_difference` is that of the other curves from the first, see `largest_difference`.
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
    data: str = ONE_BATCH
    curves: tuple[Curve, ...] = ()
    max_loss_difference: float | None = None
    complete: bool = True


def parted(curve: Curve, other: Curve, tolerance: float) -> int | None:
    """The first iteration, counted from 1, at which losses differ by more than `tolerance` of the largest of `curve`; None for none."""
    known = [abs(loss) for loss in curve.losses if loss is not None]
    limit = tolerance * max(known, default=0.0)
    for iteration, (a, b) in enumerate(zip(curve.losses, other.losses, strict=False), start=1):
        if (a is None) != (b is None) or (a is not None and abs(a - b) > limit):
            return iteration
    return None


def largest_difference(curve: Curve, others: Sequence[Curve]) -> float | None:
    """max|a - b| / max|a| over the iterations at which all curves have a finite loss; None where there is none, or no other curve."""
    rows = [row for row in zip(curve.losses, *(other.losses for other in others), strict=False) if None not in row]
    if not others or not rows:
        return None
    difference = max(abs(loss - row[0]) for row in rows for loss in row)
    largest = max(abs(row[0]) for row in rows)
    return difference / largest if largest else difference
