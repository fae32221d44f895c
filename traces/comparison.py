"""What was predicted beside what was measured: the documents of `stepcast predict` and `stepcast validate`, and one strategy's timelines.

Floats are finite or null. A quantity that does not exist (a skipped strategy was never measured) is null, never 0 and never NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from traces.documents import Data, Document
from traces.memory_use import AtPeak
from traces.timeline import CriticalSpan, DeviceUse, Span, Timeline

#: A measured speed-up closer to 1 than the A/A spread plus this much has no sign that a prediction could get right or wrong.
SIGN_MARGIN = 0.03


class Shares(Data):
    """Which part of the predicted task seconds rests on measured, fitted and guessed costs. They add up to 1."""

    measured: float = Field(ge=0, le=1)
    fitted: float = Field(ge=0, le=1)
    guessed: float = Field(ge=0, le=1)


class Prediction(Document):
    """The step time of one strategy on one machine, and why. Document `stepcast.prediction/1`.

    `tasks` counts task executions over all simulated periods; `simulate_wall_s` runs from a plan with derived dependencies and resolved
    costs to the last event; `bubble_share` is 1 − busy device seconds / (devices · step). `at_peak`: what each device's memory holds when
    it holds the most.
    """

    schema_name = "stepcast.prediction/1"
    kind = "prediction"

    strategy: str
    options: dict[str, Any]
    mode: str
    precision: str
    step_s: float = Field(gt=0)
    interval_s: tuple[float, float] | None
    baseline_step_s: float | None
    speedup: float | None
    devices: tuple[DeviceUse, ...]
    fits: bool
    exposed_transfer_s: float
    bubble_share: float
    tasks: int
    simulate_wall_s: float
    shares: Shares
    critical_path: tuple[CriticalSpan, ...]
    at_peak: tuple[AtPeak, ...] = ()


class ValidationResult(Data):
    """One strategy's row of a validation. `error` is predicted/measured − 1; speed-ups are against the executor's baseline.

    `twin_overhead`: by what share the run that task times were taken in was slower than the one that step times were (GPU only).
    Peak bytes are those of the device that needs most; by device (or memory, where all its devices are counted together) where they were
    kept.
    """

    strategy: str
    options: dict[str, Any]
    predicted_step_s: float | None
    predicted_interval_s: tuple[float, float] | None
    measured_step_s: float | None
    measured_runs_s: tuple[float, ...]
    error: float | None
    error_drift_corrected: float | None
    predicted_speedup: float | None
    measured_speedup: float | None
    max_grad_error: float | None
    max_param_error: float | None
    semantics: dict[str, Any]
    predicted_peak_bytes: int | None
    measured_peak_bytes: int | None
    predicted_peak_bytes_by_device: dict[str, int] | None = None
    measured_peak_bytes_by_device: dict[str, int] | None = None
    shares: Shares | None
    calibration: Literal["interleaved", "profile"] | None = None
    twin_overhead: float | None = None
    status: str = Field(pattern=r"^(ok|skipped: .+)$")

    @model_validator(mode="after")
    def _ran_with_times(self) -> Self:
        if self.status == "ok" and (self.predicted_step_s is None or self.measured_step_s is None):
            raise ValueError("a strategy that ran has a predicted and a measured step time")
        return self

    @property
    def ok(self) -> bool:
        """Whether it ran."""
        return self.status == "ok"

    def sign_right(self, aa_spread: float) -> bool | None:
        """Whether predicted and measured speed-up lie on the same side of 1.

        None where the measured one differs from 1 by no more than `aa_spread` + SIGN_MARGIN: there is no sign to get right.
        """
        if self.measured_speedup is None or self.predicted_speedup is None:
            return None
        gain = self.measured_speedup - 1
        if abs(gain) <= aa_spread + SIGN_MARGIN:
            return None
        return (self.predicted_speedup - 1) * gain > 0


class Validation(Document):
    """Predicted against measured step times of one job under several strategies. Document `stepcast.validation/1`.

    `aa_spread` is the spread of the baseline interleaved with itself, as a share of its step time; `reference_step_s` is plain PyTorch.
    """

    schema_name = "stepcast.validation/1"
    kind = "validation"

    model: str
    batch_size: int = Field(gt=0)
    optimizer: str
    precision: str
    mode: str
    device: dict[str, Any]
    anchor_drift: float | None
    aa_spread: float | None
    reference_step_s: float | None
    results: tuple[ValidationResult, ...]

    @property
    def ran(self) -> tuple[ValidationResult, ...]:
        """The results of strategies that were not skipped."""
        return tuple(result for result in self.results if result.ok)

    @property
    def drift_corrected_errors(self) -> tuple[float, ...]:
        """Signed drift-corrected errors of the strategies that ran."""
        return tuple(r.error_drift_corrected for r in self.ran if r.error_drift_corrected is not None)

    @property
    def median_abs_error(self) -> float | None:
        """Median absolute drift-corrected error; None when nothing ran."""
        return median(map(abs, self.drift_corrected_errors)) if self.drift_corrected_errors else None

    @property
    def worst(self) -> ValidationResult | None:
        """The result with the largest absolute drift-corrected error; None when nothing ran."""
        scored = [r for r in self.ran if r.error_drift_corrected is not None]
        return max(scored, key=lambda r: abs(r.error_drift_corrected), default=None)

    @property
    def signs(self) -> tuple[int, int]:
        """(right, asked): of the results whose measured speed-up has a sign, how many were predicted on the right side of 1."""
        asked = [sign for r in self.ran if (sign := r.sign_right(self.aa_spread or 0.0)) is not None]
        return sum(asked), len(asked)

    @property
    def signs_right(self) -> bool:
        """Whether every speed-up that has a sign was predicted with it."""
        right, asked = self.signs
        return right == asked

    @property
    def plain_speedup(self) -> float | None:
        """Measured speed-up of plain PyTorch against the executor's baseline; None if either was not measured."""
        base = self.result("baseline")
        if self.reference_step_s is None or base is None or base.measured_step_s is None:
            return None
        return base.measured_step_s / self.reference_step_s

    @property
    def fastest(self) -> ValidationResult | None:
        """The result with the shortest measured step time; None when nothing ran."""
        return min(self.ran, key=lambda result: result.measured_step_s, default=None)

    def result(self, strategy: str) -> ValidationResult | None:
        """The first row of `strategy`, or None."""
        return next((r for r in self.results if r.strategy == strategy), None)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Task seconds of one phase, layer or task within one steady period (0 where it does not occur)."""

    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class Comparison:
    """One strategy's predicted and measured timeline with its row of the validation."""

    predicted: Timeline
    measured: Timeline
    result: ValidationResult

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self.result.strategy

    def phases(self) -> dict[str, Seconds]:
        """Task seconds per phase within one steady period; tasks that run at the same time both count."""
        return self._seconds(lambda span: span.phase)

    def layers(self) -> dict[str, Seconds]:
        """Task seconds per layer within one steady period ("" collects what belongs to no layer)."""
        return self._seconds(lambda span: span.layer)

    def tasks(self) -> dict[str, Seconds]:
        """Task seconds per task within one steady period."""
        return self._seconds(lambda span: span.task)

    def _seconds(self, key: Callable[[Span], str]) -> dict[str, Seconds]:
        predicted, measured = seconds_by(self.predicted, key), seconds_by(self.measured, key)
        return {name: Seconds(predicted.get(name, 0.0), measured.get(name, 0.0)) for name in predicted | measured}


def seconds_by(timeline: Timeline, key: Callable[[Span], str]) -> dict[str, float]:
    """Span seconds within the steady period, summed by `key`; spans that cross its border count with the part inside."""
    start, end = timeline.window_s
    total: dict[str, float] = {}
    for span in timeline.window():
        name = key(span)
        total[name] = total.get(name, 0.0) + min(span.end_s, end) - max(span.start_s, start)
    return total
