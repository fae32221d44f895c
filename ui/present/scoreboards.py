"""A scoreboard in words and tables: on the terminal, on a page of the documentation, and on the app's page of accuracy."""

from collections.abc import Mapping

from traces.documents.scoreboard import Score, Scoreboard
from ui.present.blocks import Block, Sentences, Table, markdown

#: Reasons why rows were not predicted that are named at most.
_NAMED = 12


def summary(document: Scoreboard) -> str:
    """How many steps were predicted, and how accurate."""
    total = document.total
    if total is None:
        return "None of the rows can be predicted."
    return (
        f"{total.rows:,} measured steps: half of the predictions err by {total.median_error:.0%} at most, {total.within_30:.0%} of them by"
        f" 30 % at most, and {total.covered:.0%} of the steps lie in their 90 % intervals."
    )


def cells(score: Score) -> dict[str, str]:
    """The columns of a score."""
    return {
        "rows": f"{score.rows:,}",
        "median error": f"{score.median_error:.0%}",
        "worst": f"{score.worst_error:+.0%}",
        "bias": f"{score.bias:+.0%}",
        "within 30 %": f"{score.within_30:.0%}",
        "in the 90 % interval": f"{score.covered:.0%}",
    }


def tables(document: Scoreboard) -> dict[str, list[dict[str, str]]]:
    """By what divides the steps, a table of scores, with the totals first."""
    whole = {"all": document.total, "that wait for the host": document.waiting_for_host, "all others": document.others}
    parts: dict[str, Mapping[str, Score | None]] = {
        "steps": whole,
        "source": document.by_source,
        "GPU": document.by_gpu,
        "family": document.by_family,
        "precision": document.by_precision,
    }
    return {what: [{what: name, **cells(score)} for name, score in scores.items() if score is not None] for what, scores in parts.items()}


def peer_cells(document: Scoreboard) -> list[dict[str, str]]:
    """The errors that peers publish of themselves."""
    return [
        {
            "peer": peer.peer,
            "GPU": peer.gpu,
            "rows": str(peer.rows),
            "median error": f"{peer.median_error:.1%}",
            "worst": f"{peer.worst_error:+.0%}",
            "bias": f"{peer.bias:+.1%}",
            "note": peer.note,
        }
        for peer in document.peers
    ]


def correction_cells(document: Scoreboard) -> list[dict[str, str]]:
    """By what factors the predictions of a GPU in a precision are wrong."""
    return [
        {
            "GPU": item.gpu,
            "precision": item.precision,
            "rows": str(item.rows),
            "measured over predicted (90 %)": f"{item.factor:.2f} ({item.interval[0]:.2f} to {item.interval[1]:.2f})",
            "median error": f"{item.error_without:.0%}",
            "with the factor of other models": f"{item.error_with:.0%}",
        }
        for item in document.corrections
    ]


def unpredicted_cells(document: Scoreboard) -> list[dict[str, str]]:
    """Why rows were not predicted, the most frequent reason first."""
    named, others = document.unpredicted[:_NAMED], document.unpredicted[_NAMED:]
    rest = [{"not predicted": f"{len(others)} other reasons", "rows": f"{sum(item.rows for item in others):,}"}] if others else []
    return [{"not predicted": item.why, "rows": f"{item.rows:,}"} for item in named] + rest


def blocks(document: Scoreboard) -> list[Block]:
    """How right the predictions are, in a sentence and in tables."""
    every = [*tables(document).values(), correction_cells(document), peer_cells(document), unpredicted_cells(document)]
    return [Sentences([summary(document)], mark=""), *(Table(rows, tuple(rows[0])) for rows in every if rows)]


def page(document: Scoreboard) -> str:
    """The page of the documentation."""
    parts = [_INTRODUCTION, summary(document)]
    parts += [_table(rows) for rows in tables(document).values() if rows]
    if document.corrections:
        parts += [_CORRECTIONS, _table(correction_cells(document))]
    if document.peers:
        parts += [_PEERS, _table(peer_cells(document))]
    return "\n\n".join([*parts, _UNPREDICTED, _table(unpredicted_cells(document))]) + "\n"


def _table(rows: list[dict[str, str]]) -> str:
    return "\n".join(markdown(rows))


_INTRODUCTION = """# Scoreboard

Written by `python -m tools.scoreboard`. The same for tables of your own steps: `schedcast judge TABLE...`.

Training steps that others published, and what presets predict for them without any calibration. A table of hundreds of models is sampled.
*Error* is predicted over measured, less 1: the median of its size, the worst, and the median with its sign (*bias*). Some costs of presets
are fitted on some of these steps; the scores of GPUs and models that were excluded from the fits are in [accuracy.md](accuracy.md)."""
_CORRECTIONS = """## What a GPU's own rows would correct

One factor for each GPU and precision, the median of measured over predicted, where steps of four models or more are known. It is judged on
models that it was not estimated with. Predictions do not use it: multiply a prediction for your machine by the factor of your own rows."""
_PEERS = """## Peers

Errors of step times that peers publish of themselves, or others of them, on jobs of their own choice: a yardstick, not the same jobs."""
_UNPREDICTED = "## Rows that were not predicted"
