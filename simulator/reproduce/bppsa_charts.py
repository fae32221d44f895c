"""Predictions for figures 8 and 9 of the BPPSA paper, together with the points of table 4."""

from collections.abc import Callable, Iterator, Mapping

from simulator.reproduce.bppsa_cases import BATCH, TABLE_4, Epoch, Scope
from simulator.reproduce.bppsa_model import Times
from simulator.reproduce.bppsa_tables import TimesByCase
from traces.reproduction import Chart, Panel, Series

_EPOCHS: Mapping[str, Callable[[Times | Epoch], float]] = {
    "forward": lambda epoch: epoch.forward_s,
    "baseline": lambda epoch: epoch.baseline_s,
    "BPPSA": lambda epoch: epoch.bppsa_s,
}
_GAINS: Mapping[str, Callable[[Times | Epoch], float]] = {
    "whole epoch": lambda epoch: epoch.speedup,
    "backward": lambda epoch: epoch.backward_speedup,
}


def charts(scope: Scope, rnn: TimesByCase, gru: TimesByCase) -> Iterator[Chart]:
    """Yield epochs and speed-ups over the length and over the mini-batch, and the GRU's speed-ups over the mini-batch."""
    by_length = {case.length: rnn[case] for case in scope.by_length}
    by_batch = {case.batch: rnn[case] for case in sorted(scope.by_batch, key=lambda case: case.batch)}
    published_batch = {BATCH: TABLE_4[scope.length]} if scope.length in TABLE_4 and BATCH in by_batch else {}
    published = {length: TABLE_4[length] for length in by_length if length in TABLE_4}
    lengths, batches = f"length T (B = {BATCH})", f"mini-batch B (T = {scope.length})"
    yield _chart("lengths", "Seconds of an epoch over the length", lengths, "seconds", _EPOCHS, by_length, published)
    yield _chart("length-speedups", "Speed-up over the length", lengths, "speed-up", _GAINS, by_length, published)
    yield _chart("batches", "Seconds of an epoch over the mini-batch", batches, "seconds", _EPOCHS, by_batch, published_batch)
    yield _chart("batch-speedups", "Speed-up over the mini-batch", batches, "speed-up", _GAINS, by_batch, published_batch)
    yield _gru(scope, gru)


def _chart(
    name: str, title: str, x_label: str, y_label: str, values: Mapping[str, Callable], predicted: Mapping, published: Mapping
) -> Chart:
    """Return a chart with a panel for each of `values`, which shows predicted and published points."""
    panels = tuple(
        Panel(title=what, series=(_series("predicted", predicted, value), _series("published", published, value, published=True)))
        for what, value in values.items()
    )
    level = 1.0 if values is _GAINS else None
    return Chart(name=name, title=title, x_label=x_label, y_label=y_label, panels=panels, level=level, log_x=True, log_y=True)


def _gru(scope: Scope, predicted: TimesByCase) -> Chart:
    """Return a chart with a panel for each speed-up and a line for each set."""
    sets: dict[str, dict[int, Times]] = {}
    for case, name in scope.gru.items():
        sets.setdefault(name, {})[case.batch] = predicted[case]
    panels = tuple(
        Panel(title=what, series=tuple(_series(f"set {name}", batches, value) for name, batches in sets.items()))
        for what, value in _GAINS.items()
    )
    title = "Predicted speed-up of the GRU over the mini-batch"
    return Chart(name="gru", title=title, x_label="mini-batch B", y_label="speed-up", panels=panels, level=1.0, log_x=True, log_y=True)


def _series(name: str, epochs: Mapping[int, Times | Epoch], value: Callable, published: bool = False) -> Series:
    return Series(name=name, x=tuple(map(float, epochs)), y=tuple(map(value, epochs.values())), published=published)
