"""Predictions of several jobs on several machines as one table and as one document."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from traces.documents.comparison import Prediction
from traces.documents.predictions import Predictions
from ui.present.text.tables import COMMUNICATION, SPARE, folded_prediction, prediction_rows
from ui.present.text.terminal import Grid


def _cells(predictions: Sequence[tuple[int, str, Prediction]]) -> list[dict[str, str]]:
    rows = prediction_rows([prediction for *_, prediction in predictions])
    return [row | {"machine": machine, "batch": str(batch)} for (batch, machine, _), row in zip(predictions, rows, strict=True)]


def predictions_table(predictions: Sequence[tuple[int, str, Prediction]]) -> Grid:
    """The rows for the terminal, with a line between machines and batches. One that does not fit in memory is red."""
    rows = [{"machine": row["machine"], "batch": row["batch"]} | folded_prediction(row) for row in _cells(predictions)]
    places = [(batch, machine) for batch, machine, _ in predictions]
    kept = [head for head in rows[0] if head not in (COMMUNICATION, "idle")]
    return Grid(
        [{head: row[head] for head in kept} for row in rows],
        ("machine", "strategy"),
        SPARE,
        styles={number: "red" for number, (*_, prediction) in enumerate(predictions) if not prediction.fits},
        sections=[number for number, (before, after) in enumerate(pairwise(places), 1) if before != after],
    )


def predictions_document(predicted: Sequence[Mapping[str, Any]], refused: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON document of several predictions, and of the strategies that were refused. `place` names the combination of each."""
    return {"schema": Predictions.schema_name, "predictions": list(predicted), "refused": list(refused)}


def place(model: str, batch: int, machine: str) -> dict[str, Any]:
    """Which combination a prediction or a refusal is about, in such a document."""
    return {"model": model, "batch": batch, "machine": machine}
