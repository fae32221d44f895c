"""The data of a sweep's charts."""

from dataclasses import replace

import pytest

from simulator.predict.sweep import Axis, Outcome
from tests.support import hostile
from traces.errors import Code, Refusal
from ui.present.sweep_chart import (
    MEMORY,
    RATE,
    SPEEDUP,
    STEP,
    curves,
    curves_figure,
    heat,
    heat_figure,
    measured_as,
    pareto_figure,
    too_large,
)

BATCH, LINK = Axis("batch", (8, 16, 64)), Axis("link bandwidth", (0.5, 1.0))


def one(strategy, batch, step_s, fits=True, peak=2**30):
    return Outcome(strategy, (batch,), step_s, (step_s * 0.9, step_s * 1.1), peak, fits, 0.1 / step_s)


def two(strategy, batch, link, step_s):
    return Outcome(strategy, (batch, link), step_s, fits=step_s is not None, peak_bytes=2**30, speedup=step_s and 0.1 / step_s)


def test_an_outcome_in_every_measure():
    each = one("turbodl", 16, 0.05)
    values = {measure: measured_as(each, measure, (BATCH,), batch=1) for measure in (STEP, RATE, SPEEDUP, MEMORY)}
    assert values == {STEP: 50.0, RATE: 320.0, SPEEDUP: 2.0, MEMORY: 1.0}
    assert measured_as(two("turbodl", 16, 0.5, 0.05), RATE, (Axis("devices", (16,)), LINK), batch=32) == 640.0


def test_curves_end_where_a_strategy_does_not_fit():
    outcomes = [
        one("a", 8, 0.1),
        one("a", 16, 0.2),
        one("a", 64, 0.8, fits=False),
        Outcome("b", (8,), refusal=Refusal(Code.DEVICES, "needs 2 devices")),
    ]
    (a, b) = curves(outcomes, BATCH, STEP, 8)
    assert (a.x, a.y, a.beyond) == ((8, 16), (100.0, 200.0), ((64, 800.0),))
    assert b.x == ()
    assert "100.0 ms (90.0 to 110.0)" in a.texts[0]
    ((left, right),) = too_large(outcomes, BATCH)
    assert (left, right) == (pytest.approx(32.0), 64)  # the geometric middle of 16 and 64, on a logarithmic axis
    figure = curves_figure(outcomes, BATCH, STEP, 8)
    assert figure.layout.xaxis.type == "log"
    assert [shape.type for shape in figure.layout.shapes] == ["rect"]
    assert [trace.marker.symbol for trace in figure.data if trace.x] == ["circle", "circle-open"]


def test_a_heat_map_names_the_fastest_and_says_what_cannot_run():
    outcomes = [two("a", 8, 0.5, 0.1), two("b", 8, 0.5, 0.05), two("a", 16, 0.5, None), two("a", 8, 1.0, 0.2), two("a", 16, 1.0, 0.4)]
    axes = Axis("batch", (8, 16)), LINK
    cells = heat(outcomes, axes, None, STEP, 8)
    assert cells.values == [[50.0, None], [200.0, 400.0]]
    assert cells.texts == [["b<br>50.0", "nothing fits"], ["a<br>200.0", "a<br>400.0"]]
    assert heat(outcomes, axes, "a", SPEEDUP, 8).texts == [["1.00x", "refused"], ["0.500x", "0.250x"]]
    figure = heat_figure(outcomes, axes, None, STEP, 8)
    assert list(figure.data[0].x) == ["8", "16"]
    assert [note.text for note in figure.layout.annotations] == ["nothing fits"]


def test_the_front_joins_what_no_other_beats():
    outcomes = [
        one("fast", 8, 0.1, peak=3 * 2**30),
        one("lean", 8, 0.2),
        one("neither", 8, 0.3, peak=2 * 2**30),
        one("large", 8, 0.01, False),
    ]
    figure = pareto_figure(outcomes, (BATCH,))
    front, *marks = figure.data
    assert (list(front.x), list(front.y)) == ([12.5, 25.0], [3.0, 1.0])  # ms of a sample, at batch 8
    assert list(pareto_figure([replace(each, at=()) for each in outcomes]).data[0].x) == [100.0, 200.0]
    assert [mark.name for mark in marks] == ["fast", "lean", "neither", "large"]
    assert marks[-1].marker.symbol[0].endswith("-open")


def test_no_name_of_a_strategy_becomes_a_part_of_the_chart():
    outcomes = [one(hostile.NAME, 8, 0.1), Outcome("a", (8,), refusal=Refusal(Code.NAME, hostile.NAME))]
    for figure in (curves_figure(outcomes, BATCH, STEP, 8), pareto_figure(outcomes, (BATCH,)),
                   heat_figure([two(hostile.NAME, 8, 0.5, 0.1)], (BATCH, LINK), None, STEP, 8)):  # fmt: skip
        text = figure.to_json().replace("\\u003c", "<")
        assert [tag for tag in ("<a ", "<img", "$$", "$x$") if tag in text] == []
