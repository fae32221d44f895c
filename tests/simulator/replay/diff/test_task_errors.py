"""Errors of single tasks: by phase, layer and op, and with a likely cause."""

import pytest

from simulator.replay.diff.task_errors import Cause, grouped, op_of, task_errors
from tests.support.page_samples import result
from traces.documents.comparison import Comparison
from traces.documents.timeline import Span, Timeline


def timeline(kind, *rows, earlier=()):
    """A steady period of 10 ms from 0. `rows`: (task, lane, start, end, phase) in ms; `earlier`: such rows before the period."""
    spans = tuple(Span(task, "gpu0", lane, start / 1e3, end / 1e3, phase, task.partition("/")[0]) for task, lane, start, end, phase in rows)
    before = tuple(Span(task, "gpu0", lane, start / 1e3, end / 1e3, phase, "") for task, lane, start, end, phase in earlier)
    return Timeline(kind, (*before, *spans), 0.010, (0.0, 0.010))


@pytest.fixture
def comparison():
    predicted = timeline(
        "predicted",
        ("a/mm", "0", 0, 2, "forward"), ("b/relu", "0", 2, 3, "forward"), ("b/mm_backward.dX", "0", 3, 5, "backward"),
        ("a/mm_backward.dW", "1", 5, 6, "backward"), ("a/update", "0", 6, 6.02, "update"), ("loss", "0", 7, 8, "forward"),
    )  # fmt: skip
    measured = timeline(
        "measured",
        ("a/mm", "0", 0, 4, "forward"), ("b/relu", "0", 4, 5, "forward"), ("b/mm_backward.dX", "0", 5, 8, "backward"),
        ("a/mm_backward.dW", "1", 5, 7, "backward"), ("a/update", "0", 8, 8.05, "update"), ("only/measured", "0", 9, 10, "forward"),
        earlier=[("a/mm", "0", start, start + 2, "forward") for start in (-10, -7, -4)],
    )  # fmt: skip
    return Comparison(predicted, measured, result())


def test_every_task_of_both_has_an_error_and_a_cause(comparison):
    errors = {error.task: error for error in task_errors(comparison)}
    assert next(iter(errors)) == "a/mm"
    assert {task: (round(error.difference_s * 1e3, 6), error.cause) for task, error in errors.items()} == {
        "a/mm": (2.0, Cause.DISTURBED), "a/mm_backward.dW": (1.0, Cause.BESIDE_MORE),
        "b/mm_backward.dX": (1.0, Cause.BESIDE_MORE), "a/update": (0.03, Cause.SHORT), "b/relu": (0.0, Cause.PREDICTED),
    }  # fmt: skip


def test_a_task_alone_is_blamed_on_its_cost():
    alone = [timeline(kind, ("a/mm", "0", 0, end, "forward")) for kind, end in (("predicted", 2), ("measured", 1))]
    (error,) = task_errors(Comparison(*alone, result()))
    assert (error.cause, error.difference_s) == (Cause.COST, pytest.approx(-0.001))


def test_less_contention_than_predicted():
    predicted = timeline("predicted", ("a/mm", "0", 0, 2, "forward"), ("b/mm", "1", 0, 2, "forward"))
    measured = timeline("measured", ("a/mm", "0", 0, 1, "forward"), ("b/mm", "1", 1, 2, "forward"))
    assert {error.cause for error in task_errors(Comparison(predicted, measured, result()))} == {Cause.BESIDE_LESS}


def test_errors_by_phase_layer_and_op(comparison):
    errors = task_errors(comparison)
    by = {key: {group.name: round(group.difference_s * 1e3, 6) for group in grouped(errors, key)} for key in ("phase", "layer", "op")}
    assert by == {
        "phase": {"forward": 2.0, "backward": 2.0, "update": 0.03},
        "layer": {"a": 3.03, "b": 1.0},
        "op": {"mm": 2.0, "mm_backward": 2.0, "update": 0.03, "relu": 0.0},
    }
    assert sum(by["phase"].values()) == pytest.approx(sum(by["op"].values()))


@pytest.mark.parametrize(
    ("task", "op"),
    [("features.0/convolution", "convolution"), ("a/mm.dX", "mm"), ("1/addmm@2", "addmm"), ("loss/nll[3]", "nll"), ("copy", "copy")],
)
def test_the_op_of_a_task(task, op):
    assert op_of(Span(task, "gpu0", "0", 0.0, 1.0, "forward")) == op


def test_what_moves_data_is_called_by_its_first_word():
    assert op_of(Span("send features.5/max_pool2d@cuda:2@4", "gpu0", "0", 0.0, 1.0, "transfer")) == "send"
