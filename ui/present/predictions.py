"""Predictions in sentences, as one table and as one document: what does not fit in memory, and how sure a speed-up is."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from simulator.engine.memory.contents import AT_LIMIT_WORDS, fitting_words, holders_words, need_words, shortfall_words
from simulator.machine.presets import card_of
from traces import units
from traces.documents.comparison import BASELINE, Prediction
from traces.documents.predictions import Normal, Predictions
from traces.errors import Refusal
from ui.present.tables import COMMUNICATION, SPARE, Grid, folded_prediction, prediction_label, prediction_rows


def verdict_line(prediction: Prediction) -> str:
    """The prediction in one line: turbodl: 25.8 ms, 1.16x (1.08 to 1.22), faster, fits in memory (3.00 GiB of 80 GiB)."""
    if not prediction.fits:
        return f"{prediction_label(prediction)}: {memory_words(prediction)}"
    over = " over the baseline" if prediction.compared_with == BASELINE else ""
    judged = [] if prediction.gain is None else [f"{prediction.gain.text}{over}, {prediction.gain.verdict}"]
    return ", ".join([f"{prediction_label(prediction)}: {units.duration(prediction.step_s)}", *judged, memory_words(prediction)])


def memory_words(prediction: Prediction) -> str:
    """Whether the prediction fits the memory that it fills most, and by how much."""
    if not prediction.memories:
        return "fits" if prediction.fits else "does not fit"
    fullest = max(prediction.memories, key=lambda need: need.needed_bytes / need.size_bytes if need.size_bytes else 0.0)
    needed, size = (units.memory(count) for count in (fullest.needed_bytes, fullest.size_bytes))
    own = need_words(fullest)
    if not prediction.fits:
        return f"needs {needed}{f' ({own})' if own else ''}, {size} there"
    return f"{AT_LIMIT_WORDS if prediction.is_at_limit else 'fits in memory'} ({needed} of {size}{f': {own}' if own else ''})"


def gain_words(interval: tuple[float, float] | None, probability: float | None) -> str:
    """What is known of a speed-up besides its value: its 90 % interval and how likely the step is shorter."""
    parts = [f"90 %: {units.factors(interval)}"] if interval is not None else []
    if probability is not None:
        parts.append(f"faster with a probability of {units.percent(probability, signed=False)}")
    return "; ".join(parts)


def fit_words(prediction: Prediction) -> list[str]:
    """By how much the prediction does not fit, what holds the memory, and what would fit; or that it is at its limit."""
    if prediction.fits:
        slow = "published steps took 3 to 16 times as long there, so there is no verdict"
        return [f"{prediction.strategy} {memory_words(prediction)}; {slow}."] if prediction.is_at_limit else []
    shortfall = f": {shortfall_words(prediction.memories)}" if prediction.memories else ""
    held = [f"Memory: {holders_words(prediction.at_peak)}."] if prediction.at_peak else []
    sought = prediction.batch_sought or prediction.largest_batch is not None
    tried = prediction.changes_sought or bool(prediction.would_fit) or not prediction.batch_sought
    fitting = sentences_of(fitting_words(prediction.largest_batch, prediction.would_fit, tried)) if sought else []
    return [f"{prediction.strategy} does not fit{shortfall}.", *held, *fitting]


def sentences_of(phrases: Iterable[str]) -> list[str]:
    """Phrases as sentences."""
    return [f"{phrase[:1].upper()}{phrase[1:]}." for phrase in phrases]


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


def normal_words(document: Normal) -> list[str]:
    """Whether a measured step is as long as predicted, what is usual if it is not, and how accurate predictions of such steps are."""
    sentences = []
    if document.measured_s is not None:
        predicted = f"{units.duration(document.step_s)} ({units.interval(document.interval_s)})"
        factor = f"{units.speedup(document.measured_s / document.step_s)} the predicted {predicted}"
        within = f"normal: the prediction is {predicted}"
        kind = {"slower": f"slower than expected: {factor}", "faster": f"faster than expected: {factor}"}.get(str(document.verdict), within)
        sentences = [f"A measured step of {units.duration(document.measured_s)} is {kind}.", *_USUAL.get(str(document.verdict), ())]
    if document.groups:
        rows = sum(group.score.rows for group in document.groups)
        errors = sorted(group.score.median_error for group in document.groups)
        between = " to ".join(dict.fromkeys(units.percent(error, signed=False) for error in (errors[0], errors[-1])))
        covered = sum(round(group.score.covered * group.score.rows) for group in document.groups)
        sources = ", ".join(dict.fromkeys(group.source for group in document.groups))
        where = f"{document.groups[0].family} on {', '.join(dict.fromkeys(group.gpu for group in document.groups))}"
        sentences.append(
            f"Of {rows} published steps of {where} ({sources}), {covered} lie in their intervals; median errors by source: {between}."
        )
    return sentences


#: What usually is the cause if a measured step is not as long as predicted.
_USUAL = {
    "slower": (
        "Usually the loop waits for data, for Python or for a synchronization (.item(), a print of the loss), which a prediction leaves"
        " out: schedcast replay of a trace, or sc.watch, says which.",
    ),
    "faster": (
        "Usually the job is another one: lower precision (TF32, autocast), torch.compile, a smaller batch; or the clock was read before the"
        " GPU was done (torch.cuda.synchronize).",
    ),
}


def near_cells(document: Normal) -> list[dict[str, str]]:
    """The published steps nearest to a job, with what is predicted for them, in ms of a sample; column name to text."""
    return [
        {
            "published step": f"{step.model}, {step.devices} x {card}" if step.devices > 1 else f"{step.model}, {card}",
            "schedule": step.strategy,
            "batch": str(step.batch),
            "precision": step.precision,
            "published ms per sample": units.ms(step.published_s / step.batch),
            "predicted": units.ms(step.predicted_s / step.batch),
            "error": units.error(step.predicted_s, step.published_s),
            "source": step.source,
        }
        for step in document.near
        for card in [card_of(step.machine) or step.machine]
    ]


def near_table(document: Normal) -> Grid:
    """`near_cells` for the terminal."""
    return Grid(near_cells(document), ("published step", "schedule", "source"), ("source", "schedule"))


def answers_document(answers: Sequence[tuple[Mapping[str, Any], str, Prediction | Refusal]], one: bool) -> dict[str, Any]:
    """The JSON document of the only prediction, if it is `one`, or that of several and of what was refused.

    `answers`: the `place` of each, the strategy as it was asked for, and its prediction or why there is none.
    """
    documents = [prediction_document(where, own) for where, _, own in answers if isinstance(own, Prediction)]
    if one:
        return documents[-1]
    refused = [{**where, "strategy": text, "why": own.words} for where, text, own in answers if isinstance(own, Refusal)]
    return {"schema": Predictions.schema_name, "predictions": documents, "refused": refused}


def place(model: str, batch: int, machine: str) -> dict[str, Any]:
    """Which combination a prediction or a refusal is about, in such a document."""
    return {"model": model, "batch": batch, "machine": machine}


def prediction_document(where: Mapping[str, Any], prediction: Prediction) -> dict[str, Any]:
    """The JSON document of one prediction, which says what it is before all else, for whoever reads the file; `where`: its `place`."""
    document = prediction.document()
    return {"schema": document["schema"], **where, **document}
