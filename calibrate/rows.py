"""The rows of a validation: a strategy, or plain PyTorch, predicted and measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from calibrate.rounds import Candidate, RoundTimes
from simulator.predict.forecast import Forecast, paired_interval
from traces.documents.comparison import INTERLEAVED, PROFILE, ValidationResult
from traces.documents.speedup import measured_speedup


@dataclass(frozen=True)
class Against:
    """What the rows are compared with, and how they were measured.

    `base` and `predicted`: the baseline, measured and predicted. `interleaved`: whether keys were measured in the rounds: then they
    contain the drift, which corrects only costs from another time. `comparisons`: how many rows are compared with each other.
    """

    base: Candidate
    predicted: Forecast
    times: RoundTimes
    drift: float | None
    aa_spread: float
    interleaved: bool
    comparisons: int = 1


def strategy_row(candidate: Candidate, predicted: Forecast, against: Against) -> ValidationResult:
    """A strategy's row, with its speed-up over plain PyTorch and its numbers."""
    steps_s = candidate.by_round(against.times.counted)
    over_plain = measured_speedup(against.times.plain_s, steps_s, against.aa_spread, against.comparisons)
    peak_bytes = predicted.measured_as(candidate.peak_bytes) or predicted.peak_bytes
    return _row(predicted, candidate.step_s(against.times.counted), steps_s, against, candidate is against.base).model_copy(
        update={
            "against_pytorch": over_plain.value,
            "against_pytorch_interval": over_plain.interval,
            "max_grad_error": _finite(candidate.numerics.max_grad_error),
            "max_param_error": _finite(candidate.numerics.max_param_error),
            "reference_grad_error": _finite(candidate.numerics.reference_grad_error),
            "reference_param_error": _finite(candidate.numerics.reference_param_error),
            "predicted_peak_bytes": max(peak_bytes.values()),
            "measured_peak_bytes": max(candidate.peak_bytes.values(), default=None),
            "predicted_peak_bytes_by_device": peak_bytes,
            "measured_peak_bytes_by_device": candidate.peak_bytes or None,
        }
    )


def loop_row(predicted: Forecast, against: Against) -> ValidationResult:
    """The row of plain PyTorch. Nothing measures its memory. Its numbers are compared with those of a second run of it."""
    steps_s, numerics = against.times.plain_s, against.base.numerics
    row = _row(predicted, median(s for steps in steps_s for s in steps), steps_s, against, False)
    return row.model_copy(
        update={
            "against_pytorch": 1.0,
            "max_grad_error": _finite(numerics.reference_grad_error),
            "max_param_error": _finite(numerics.reference_param_error),
        }
    )


def _row(predicted: Forecast, measured_s: float, steps_s: Sequence[Sequence[float]], against: Against, is_base: bool) -> ValidationResult:
    over_base = measured_speedup(against.base.by_round(against.times.counted), steps_s, against.aa_spread, against.comparisons)
    predicted_s = predicted.timeline.step_s
    drift = 1.0 if against.interleaved else against.drift or 1.0
    return ValidationResult(
        strategy=predicted.plan.strategy,
        options=dict(predicted.plan.options),
        predicted_step_s=predicted_s,
        predicted_interval_s=predicted.interval_s,
        measured_step_s=measured_s,
        measured_runs_s=tuple(s for steps in steps_s for s in steps),
        error=predicted_s / measured_s - 1,
        error_drift_corrected=predicted_s * drift / measured_s - 1,
        predicted_speedup=against.predicted.timeline.step_s / predicted_s,
        predicted_speedup_interval=None if is_base else paired_interval(against.predicted, predicted),
        measured_speedup=over_base.value,
        measured_speedup_interval=None if is_base else over_base.interval,
        max_grad_error=None,
        max_param_error=None,
        semantics=dict(predicted.plan.semantics),
        predicted_peak_bytes=max(predicted.peak_bytes.values()),
        measured_peak_bytes=None,
        predicted_peak_bytes_by_device=predicted.peak_bytes,
        shares=predicted.shares,
        calibration=INTERLEAVED if against.interleaved else PROFILE,
        status="ok",
    )


def _finite(error: float) -> float | None:
    return error if error != float("inf") else None
