"""Small sample documents and timelines for the tests of comparisons, exports, figures and pages."""

from traces.documents.comparison import Prediction, Shares, Validation, ValidationResult
from traces.documents.timeline import Cause, CriticalSpan, DeviceUse, Span, Timeline

#: The documented fields of a prediction, of a validation, and of its rows.
PREDICTION = {
    "schema", "strategy", "options", "mode", "precision", "step_s", "interval_s", "baseline_step_s", "speedup", "devices",
    "fits", "exposed_transfer_s", "bubble_share", "tasks", "simulate_wall_s", "settled", "shares", "critical_path", "at_peak",
    "speedup_interval", "waterfall", "memories", "largest_batch", "pytorch_step_s", "against_pytorch",
    "against_pytorch_interval", "faster_probability", "faster_than_pytorch_probability", "measured_share", "unused_devices",
    "checkpoint", "mfu", "shown", "batch_sought", "would_fit", "changes_sought", "at_limit", "assumed", "loss", "tokens", "devices_used",
    "usual", "too_large", "training",
}  # fmt: skip
VALIDATION = {
    "schema", "model", "batch_size", "optimizer", "precision", "mode", "device", "anchor_drift", "aa_spread",
    "reference_step_s", "results", "image_size", "reference_threads", "reference_waiting", "reference_runs_s", "pytorch", "parallel",
    "busy_share", "comparisons",
}  # fmt: skip
RESULT = {
    "strategy", "options", "predicted_step_s", "predicted_interval_s", "measured_step_s", "measured_runs_s", "error",
    "error_drift_corrected", "predicted_speedup", "measured_speedup", "max_grad_error", "max_param_error", "semantics",
    "predicted_peak_bytes", "measured_peak_bytes", "predicted_peak_bytes_by_device", "measured_peak_bytes_by_device",
    "shares", "calibration", "tracing_overhead", "predicted_speedup_interval", "measured_speedup_interval", "against_pytorch",
    "against_pytorch_interval", "waterfall", "reference_grad_error", "reference_param_error", "first_step_error", "status",
}  # fmt: skip
SHARES = Shares(measured=0.9, fitted=0.1, guessed=0.0)


def result(strategy="turbodl", predicted=0.040, measured=0.042, base=(0.050, 0.050), drift=1.01, **changes):
    """A strategy's row, with derived figures computed as `schedcast validate` does. `base`: predicted and measured baseline in seconds."""
    row = {
        "strategy": strategy,
        "options": {"alpha": 2},
        "predicted_step_s": predicted,
        "predicted_interval_s": (predicted * 0.97, predicted * 1.03),
        "measured_step_s": measured,
        "measured_runs_s": (measured * 0.99, measured, measured * 1.02),
        "error": predicted / measured - 1,
        "error_drift_corrected": predicted * drift / measured - 1,
        "predicted_speedup": base[0] / predicted,
        "measured_speedup": base[1] / measured,
        "max_grad_error": 0.0,
        "max_param_error": 1e-7,
        "semantics": {},
        "predicted_peak_bytes": 10**9,
        "measured_peak_bytes": 10**9,
        "shares": SHARES,
        "calibration": "profile",
        "status": "ok",
    }
    return ValidationResult(**(row | changes))


def skipped(strategy="gpipe"):
    """The row of a strategy that did not run."""
    empty = dict.fromkeys(
        (
            "predicted_step_s", "predicted_interval_s", "measured_step_s", "error", "error_drift_corrected", "predicted_speedup",
            "measured_speedup", "max_grad_error", "max_param_error", "predicted_peak_bytes", "measured_peak_bytes", "shares",
        )
    )  # fmt: skip
    return ValidationResult(strategy=strategy, options={}, measured_runs_s=(), semantics={}, status="skipped: needs 2 devices", **empty)


def validation(*results, aa_spread=0.01, **more):
    """A validation of these rows, whose intervals hold for all of them at once."""
    fields = {
        "model": "small-cnn", "batch_size": 64, "optimizer": "sgd", "precision": "fp32", "mode": "eager", "device": {"name": "this-cpu"},
        "anchor_drift": 1.01, "aa_spread": aa_spread, "reference_step_s": 0.030, "comparisons": max(1, sum(row.ok for row in results)),
    }  # fmt: skip
    return Validation(results=results, **fields | more)


def prediction(**changes):
    """A prediction, with some fields changed."""
    return Prediction(
        **{
            "strategy": "turbodl",
            "options": {},
            "mode": "eager",
            "precision": "fp32",
            "step_s": 0.04,
            "interval_s": (0.039, 0.041),
            "baseline_step_s": 0.05,
            "speedup": 1.25,
            "devices": (DeviceUse("gpu0", 0.9, 10**9),),
            "fits": True,
            "exposed_transfer_s": 0.0,
            "bubble_share": 0.1,
            "tasks": 100,
            "simulate_wall_s": 0.01,
            "shares": SHARES,
            "critical_path": (CriticalSpan("a", 0.0, 0.04, Cause.START),),
            **changes,
        }
    )


def two_lanes(kind="predicted", shift=0.0, memory=True):
    """Three tasks on two lanes of one device in one steady period. The critical path is a, c."""
    spans = (
        Span('a "λ"\n', "gpu0", "stream 0", shift, shift + 0.001, "forward", "block<1>", 0, 0, 0),
        Span("b", "gpu0", "stream 1", shift, shift + 0.0005, "transfer", "", 0, 0, 0),
        Span("c", "gpu0", "stream 0", shift + 0.001, shift + 0.003, "backward", "block<1>", 0, 0, 0),
    )
    path = (
        CriticalSpan('a "λ"\n', shift, shift + 0.001, Cause.START, "forward"),
        CriticalSpan("c", shift + 0.001, shift + 0.003, Cause.DEPENDENCY, "backward"),
    )
    held = {"gpu0": ((shift, 1_000_000), (shift + 0.002, 2_500_000))} if memory else {}
    return Timeline(kind, spans, 0.003, (shift, shift + 0.003), critical_path=path, memory=held)
