"""The document of `schedcast run`: losses and times of a training, and of others on the same batches."""

from typing import Any, ClassVar

from pydantic import Field, field_validator

from traces.documents.base import Document
from traces.documents.targets import Curve, Reached, Wins

#: The data of a model without a data set.
ONE_BATCH = "one batch, repeated"


class TrainingRun(Document):
    """The document of `schedcast run`.

    `losses`, `step_s` (the median) and `step_runs_s` belong to the strategy with its first seed, which is the first of `curves`. The curves
    of a seed follow each other, always in the same order. `steps` is the number of completed steps; `complete` is False if Ctrl-C ended the
    run early. `step_s` is null if only the first step was completed.
    `max_grad_error` and `max_param_error` compare the strategy's first steps with plain PyTorch's (null if they were not compared);
    `reference_grad_error` and `reference_param_error` compare plain PyTorch with itself, as in a validation. `max_loss_difference` is the
    `largest_difference` of the other curves of the first seed from the first. `mode_reason` says why the mode is not the one asked for, if
    it is not. `predicted_on` is the machine of the curves' `predicted_step_s`. `reached` says when each curve had a test accuracy of
    `target`, and `wins` how often the strategy had it earlier than the others. `busy_share`: what other processes took of the machine
    meanwhile, as in `traces.documents.comparison.Validation`.
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
