"""Validations and predictions as tables: the same cells for the terminal, the report page and the app."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from traces.comparison import Prediction, Validation, ValidationResult

from . import words

HEADS = (
    "strategy",
    "predicted\nms",
    "90 %\ninterval",
    "measured\nms",
    "error",
    "drift-\ncorrected",
    "speed-up\npred. / meas.",
    "difference\ngrad., param.",
)


def validation_cells(validation: Validation) -> list[dict[str, str]]:
    """One dictionary per strategy, column name to text. A skipped strategy says why in the last column."""
    labels = words.row_labels(validation.results)
    return [_validation_row(label, result) for label, result in zip(labels, validation.results, strict=True)]


def _validation_row(label: str, result: ValidationResult) -> dict[str, str]:
    differences = (result.max_grad_error, result.max_param_error)
    return {
        "strategy": label,
        "predicted ms": words.ms(result.predicted_step_s),
        "90 % interval": words.interval(result.predicted_interval_s),
        "measured ms": words.ms(result.measured_step_s),
        "error": words.percent(result.error),
        "drift-corrected": words.percent(result.error_drift_corrected),
        "speed-up predicted": words.speedup(result.predicted_speedup),
        "speed-up measured": words.speedup(result.measured_speedup),
        "memory predicted": words.gigabytes(result.predicted_peak_bytes),
        "memory measured": words.gigabytes(result.measured_peak_bytes),
        "largest difference (gradients, parameters)": ", ".join(map(words.error_of, differences)) if result.ok else words.NONE,
        "status": result.status,
    }


def validation_table(validations: Sequence[Validation]) -> Table:
    """Predicted against measured, for the terminal.

    Several jobs give a first column that names them; the caption says what was skipped and why.
    """
    table = Table(header_style="bold", caption_justify="left")
    several = len(validations) > 1
    for head in (("job",) if several else ()) + HEADS:
        table.add_column(head, justify="left" if head in ("job", "strategy") else "right", overflow="fold")
    skipped = []
    for validation in validations:
        job = (f"{validation.model} {validation.precision} {validation.mode}",) if several else ()
        for cells, result in zip(validation_cells(validation), validation.results, strict=True):
            gains = f"{cells['speed-up predicted']} / {cells['speed-up measured']}" if result.ok else words.NONE
            measured = cells["measured ms"] if result.ok else "skipped"
            row = (*job, cells["strategy"], cells["predicted ms"], cells["90 % interval"], measured)
            row += (cells["error"], cells["drift-corrected"], gains, cells["largest difference (gradients, parameters)"])
            table.add_row(*map(Text, row), style=None if result.ok else "dim")
            if not result.ok:
                skipped.append(" ".join((*job, f"{cells['strategy']} {result.status}")))
    table.caption = Text("\n".join(skipped)) if skipped else None
    return table


def prediction_cells(prediction: Prediction) -> dict[str, str]:
    """Column name to text, for one prediction."""
    options = words.options_text(prediction.options)
    busiest = max((device.busy_share for device in prediction.devices), default=None)
    return {
        "strategy": f"{prediction.strategy}:{options}" if options else prediction.strategy,
        "step ms": words.ms(prediction.step_s),
        "90 % interval": words.interval(prediction.interval_s),
        "speed-up": words.speedup(prediction.speedup),
        "busiest device": words.percent(busiest, signed=False),
        "peak memory": words.gigabytes(max((device.peak_bytes for device in prediction.devices), default=None)),
        "exposed transfer ms": words.ms(prediction.exposed_transfer_s),
        "bubble": words.percent(prediction.bubble_share, signed=False),
        "measured costs": words.percent(prediction.shares.measured, signed=False),
        "fits": "yes" if prediction.fits else "no",
    }


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Predictions side by side, for the terminal; one that does not fit in memory is marked."""
    table = Table(header_style="bold")
    rows = [prediction_cells(prediction) for prediction in predictions]
    for head in rows[0] if rows else ("strategy",):
        table.add_column(head, justify="left" if head == "strategy" else "right", overflow="fold")
    for row, prediction in zip(rows, predictions, strict=True):
        table.add_row(*map(Text, row.values()), style=None if prediction.fits else "red")
    return table


def critical_cells(prediction: Prediction, count: int) -> list[dict[str, str]]:
    """The `count` longest tasks of the critical path, longest first."""
    longest = sorted(prediction.critical_path, key=lambda link: link.start_s - link.end_s)[:count]
    return [
        {
            "task": link.task,
            "layer": link.layer,
            "phase": link.phase,
            "ms": words.ms(link.end_s - link.start_s),
            "waited for": str(link.cause),
        }
        for link in longest
    ]
