"""The steps of a job that were measured on a machine. Its profile stores them, so that a search can show them next to its predictions."""

import json
from collections.abc import Mapping
from typing import Any

from traces.documents.base import Data, Duration
from traces.documents.comparison import Validation
from traces.documents.verdict import Gain, gain, is_busy


class MeasuredStep(Data):
    """The median step of one strategy in a validation, and plain PyTorch's over it, in the same rounds, with its 90 % interval.

    `date`: the day on which it was measured, as in 2026-01-31.
    """

    step_s: Duration
    against_pytorch: float | None = None
    against_pytorch_interval: tuple[float, float] | None = None
    date: str

    @property
    def gain(self) -> Gain | None:
        """The measured gain over plain PyTorch; None if that was not measured."""
        return None if self.against_pytorch is None else gain(self.against_pytorch, self.against_pytorch_interval)


def step_name(job: str, strategy: str, options: Mapping[str, Any]) -> str:
    """The name of a step in a profile. `job`: a text for everything that decides the step except the plan."""
    return f"{job}|{strategy}|{json.dumps(dict(options), sort_keys=True, default=str)}"


def steps_of(validation: Validation, job: str, date: str) -> dict[str, MeasuredStep]:
    """The steps of a validation by name; none if other work took so much of the machine that nothing was measured."""
    if is_busy(validation.busy_share):
        return {}
    return {
        step_name(job, row.strategy, row.options): MeasuredStep(
            step_s=row.steps_s[1],
            against_pytorch=row.against_pytorch,
            against_pytorch_interval=row.against_pytorch_interval,
            date=date,
        )
        for row in validation.rows
        if row.ok
    }
