"""Validations and predictions as tables: the same cells for the terminal, the report page and the app."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from simulator.options import option_values
from simulator.strategies import registry as strategies
from traces import units
from traces.comparison import Prediction, Validation, ValidationResult
from ui.text.labels import options_text, row_labels

#: The columns that fit a terminal, and their heads there.
TERMINAL = {
    "strategy": "strategy",
    "predicted ms": "predicted\nms",
    "90 % interval": "90 %\ninterval",
    "measured ms": "measured\nms",
    "error": "error",
    "drift-corrected": "drift-\ncorrected",
    "speed-up pred. / meas.": "speed-up\npred. / meas.",
    "difference grad., param.": "difference\ngrad., param.",
}


def validation_cells(validation: Validation) -> list[dict[str, str]]:
    """One dictionary per strategy, column name to text. A skipped strategy says why in the last column."""
    labels = row_labels(validation.results)
    return [_validation_row(label, result) for label, result in zip(labels, validation.results, strict=True)]


def _validation_row(label: str, result: ValidationResult) -> dict[str, str]:
    def both(words_of: Callable, first: float | None, second: float | None, between: str = " / ") -> str:
        return units.NONE if first is second is None else f"{words_of(first)}{between}{words_of(second)}"

    return {
        "strategy": label,
        "predicted ms": units.ms(result.predicted_step_s),
        "90 % interval": units.interval(result.predicted_interval_s),
        "measured ms": units.ms(result.measured_step_s),
        "error": units.percent(result.error),
        "drift-corrected": units.percent(result.error_drift_corrected),
        "speed-up pred. / meas.": both(units.speedup, result.predicted_speedup, result.measured_speedup),
        "memory pred. / meas.": both(units.memory, result.predicted_peak_bytes, result.measured_peak_bytes),
        "difference grad., param.": both(units.difference, result.max_grad_error, result.max_param_error, between=", "),
        "status": result.status,
    }


def validation_table(validations: Sequence[Validation]) -> Table:
    """Predicted against measured, for the terminal.

    Several jobs give a first column that names them; the caption says what was skipped and why.
    """
    table = Table(header_style="bold", caption_justify="left")
    several = len(validations) > 1
    for head in (*(("job",) if several else ()), *TERMINAL.values()):
        table.add_column(head, justify="left" if head in ("job", "strategy") else "right", overflow="fold")
    skipped = []
    for validation in validations:
        job = (f"{validation.model} {validation.precision} {validation.mode}",) if several else ()
        for cells, result in zip(validation_cells(validation), validation.results, strict=True):
            row = cells if result.ok else {**cells, "measured ms": "skipped"}
            table.add_row(*map(Text, (*job, *(row[head] for head in TERMINAL))), style=None if result.ok else "dim")
            if not result.ok:
                skipped.append(" ".join((*job, f"{cells['strategy']} {result.status}")))
    table.caption = Text("\n".join(skipped)) if skipped else None
    return table


def prediction_cells(prediction: Prediction, label: str) -> dict[str, str]:
    """Column name to text, for one prediction called `label`."""
    busiest = max((device.busy_share for device in prediction.devices), default=None)
    return {
        "strategy": label,
        "step ms": units.ms(prediction.step_s),
        "90 % interval": units.interval(prediction.interval_s),
        "speed-up": units.speedup(prediction.speedup),
        "busiest device": units.percent(busiest, signed=False),
        "peak memory": units.memory(max((device.peak_bytes for device in prediction.devices), default=None)),
        "exposed transfer ms": units.ms(prediction.exposed_transfer_s),
        "bubble": units.percent(prediction.bubble_share, signed=False),
        "measured costs": units.percent(prediction.shares.measured, signed=False),
        "fits": "yes" if prediction.fits else "no",
    }


def prediction_rows(predictions: Sequence[Prediction]) -> list[dict[str, str]]:
    """The cells of predictions side by side, each labelled by its strategy and the options that are not the strategy's defaults."""
    return [prediction_cells(prediction, _label(prediction)) for prediction in predictions]


def _label(prediction: Prediction) -> str:
    options = dict(prediction.options)
    if prediction.strategy in strategies.names():
        usual = option_values(strategies.get(prediction.strategy).options())
        options = {name: value for name, value in options.items() if value != usual.get(name)}
    return f"{prediction.strategy}:{options_text(options)}" if options else prediction.strategy


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Predictions side by side, for the terminal; one that does not fit in memory is marked."""
    table = Table(header_style="bold")
    rows = prediction_rows(predictions)
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
            "ms": units.ms(link.end_s - link.start_s),
            "waited for": str(link.cause),
        }
        for link in longest
    ]
