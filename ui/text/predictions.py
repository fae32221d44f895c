"""Predictions of several jobs on several machines as one table and as one document."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from traces.comparison import Prediction
from traces.predictions import Predictions
from ui.text.tables import prediction_rows

#: The columns of `prediction_rows` that are shown, after machine and batch.
SHOWN = ("strategy", "step ms", "90 % interval", "against PyTorch", "verdict", "over baseline", "peak memory", "fits")


def predictions_cells(predictions: Sequence[tuple[int, str, Prediction]]) -> list[dict[str, str]]:
    """Column name to text, a row per (batch, machine, prediction)."""
    rows = prediction_rows([prediction for *_, prediction in predictions])
    return [
        {"machine": machine, "batch": str(batch)} | {head: row[head] for head in SHOWN}
        for (batch, machine, _), row in zip(predictions, rows, strict=True)
    ]


def predictions_table(predictions: Sequence[tuple[int, str, Prediction]]) -> Table:
    """The rows for the terminal, with a line between machines and batches. One that does not fit in memory is red."""
    table = Table(header_style="bold")
    rows = predictions_cells(predictions)
    for head in rows[0]:
        table.add_column(head, justify="left" if head in ("machine", "strategy") else "right", overflow="fold")
    before = None
    for row, (batch, machine, prediction) in zip(rows, predictions, strict=True):
        if before not in (None, (batch, machine)):
            table.add_section()
        before = batch, machine
        table.add_row(*map(Text, row.values()), style=None if prediction.fits else "red")
    return table


def predictions_document(predicted: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON document of several predictions, and of the strategies that were refused. `place` names the combination of each."""
    return {"schema": Predictions.schema_name, "predictions": list(predicted), "refused": list(refused)}


def place(model: str, batch: int, machine: str) -> dict[str, Any]:
    """Which combination a prediction or a refusal is about, in such a document."""
    return {"model": model, "batch": batch, "machine": machine}
