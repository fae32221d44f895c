"""Validations and predictions as tables, with the same cells for the terminal, the report page and the app."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from simulator.options import option_values
from simulator.strategies import registry as strategies
from traces import units
from traces.comparison import INTERLEAVED, Prediction, Validation, ValidationResult
from ui.text.labels import options_text, plain_label, row_labels

#: The columns of a validation.
COLUMNS = (
    "strategy",
    "predicted ms",
    "90 % interval",
    "measured ms",
    "error",
    "drift-corrected",
    "speed-up pred. / meas.",
    "memory pred. / meas.",
    "difference grad., param.",
    "status",
)
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
    """One dictionary per row, column name to text: plain PyTorch first, if it was measured, then every strategy.

    The last column says why a strategy was skipped.
    """
    rows = [_validation_row(label, result) for label, result in zip(row_labels(validation.results), validation.results, strict=True)]
    return [*_plain_row(validation), *rows]


def _plain_row(validation: Validation) -> list[dict[str, str]]:
    """The row of plain PyTorch, whose speed-up is against the baseline like those of the strategies; no row if it was not measured."""
    if validation.reference_step_s is None:
        return []
    gain = validation.plain_speedup
    known = {
        "strategy": plain_label(validation),
        "measured ms": units.ms(validation.reference_step_s),
        "speed-up pred. / meas.": units.NONE if gain is None else f"{units.NONE} / {units.speedup(gain)}",
        "status": "ok",
    }
    return [dict.fromkeys(COLUMNS, units.NONE) | known]


def _validation_row(label: str, result: ValidationResult) -> dict[str, str]:
    def both(words_of: Callable, first: float | None, second: float | None, between: str = " / ") -> str:
        return units.NONE if first is second is None else f"{words_of(first)}{between}{words_of(second)}"

    cells = (
        label,
        units.ms(result.predicted_step_s),
        units.interval(result.predicted_interval_s),
        units.ms(result.measured_step_s),
        units.percent(result.error),
        units.percent(result.error_drift_corrected) if result.calibration != INTERLEAVED else units.NONE,
        both(units.speedup, result.predicted_speedup, result.measured_speedup),
        both(units.memory, result.predicted_peak_bytes, result.measured_peak_bytes),
        both(units.difference, result.max_grad_error, result.max_param_error, between=", "),
        result.status,
    )
    return dict(zip(COLUMNS, cells, strict=True))


def validation_table(validations: Sequence[Validation]) -> Table:
    """Predicted against measured step times, for the terminal, with plain PyTorch as the first row of each job.

    If there are several jobs, each has a section that begins with its name. The caption says which strategies were skipped, and why.
    """
    table = Table(header_style="bold", caption_justify="left")
    for head in TERMINAL.values():
        table.add_column(head, justify="left" if head == "strategy" else "right", overflow="fold")
    skipped = []
    for validation in validations:
        job = (f"{validation.model} {validation.precision} {validation.mode}",) if len(validations) > 1 else ()
        if job:
            table.add_section()
            table.add_row(Text(*job, style="bold"))
        for cells in validation_cells(validation):
            ran = cells["status"] == "ok"
            row = cells if ran else {**cells, "measured ms": "skipped"}
            table.add_row(*(Text(row[head]) for head in TERMINAL), style=None if ran else "dim")
            if not ran:
                skipped.append(" ".join((*job, f"{cells['strategy']} {cells['status']}")))
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
    """The cells of several predictions. Each is labelled by its strategy and by the options that differ from the strategy's defaults."""
    return [prediction_cells(prediction, _label(prediction)) for prediction in predictions]


def _label(prediction: Prediction) -> str:
    options = dict(prediction.options)
    if prediction.strategy in strategies.names():
        usual = option_values(strategies.get(prediction.strategy).options())
        options = {name: value for name, value in options.items() if value != usual.get(name)}
    return f"{prediction.strategy}:{options_text(options)}" if options else prediction.strategy


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Several predictions, for the terminal. One that does not fit in memory is red, and its times, which it never takes, are dimmed."""
    table = Table(header_style="bold")
    rows = prediction_rows(predictions)
    for head in rows[0] if rows else ("strategy",):
        table.add_column(head, justify="left" if head == "strategy" else "right", overflow="fold")
    for row, prediction in zip(rows, predictions, strict=True):
        dimmed = () if prediction.fits else row.keys() - {"strategy", "peak memory", "fits"}
        table.add_row(
            *(Text(text, "dim" if head in dimmed else "") for head, text in row.items()), style=None if prediction.fits else "red"
        )
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
