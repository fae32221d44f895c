"""The page that compares strategies over parameters, and the session's history."""

import sys
import threading
from dataclasses import replace

import pytest
import streamlit

from simulator.predict.sweep import Axis
from simulator.strategies import registry as strategies
from tests.support import fake_jobs
from tests.support.app_pages import app_at, charts_of, words_of
from tests.support.stand_in import answer_by
from traces.errors import Code, SchedcastError
from ui.app.pages.compare import BackgroundRun
from ui.app.sweeping import check_points, commands, outcomes_at, parameters, parse_values
from ui.request import JobRequest

REQUEST = JobRequest("lenet5", 32, strategies=("baseline", "gpipe"))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Opens the page with the tests' predictor."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    answer_by(fake_jobs, monkeypatch.setattr)
    streamlit.cache_data.clear()
    return app_at("compare").run


def pick(app, label, value):
    (box,) = [box for box in app.selectbox if box.label == label]
    return box.set_value(value)


def asked(app):
    """The page after the button that asks, when the sweep has ended."""
    (button,) = [button for button in app.button if button.label == "Compare"]
    button.click().run()
    app.session_state["sweep"].run.thread.join(30)
    app.run()
    assert not app.exception
    return app


def test_strategies_side_by_side_without_a_sweep(start):
    app = start()
    app.multiselect[0].set_value(["baseline", "turbodl", "gpipe"]).run()
    app = asked(app)
    assert charts_of(app) == ["Step time against peak allocated memory"]
    assert list(app.dataframe[0].value["strategy"]) == ["baseline (one stream, our executor)", "turbodl", "gpipe"]
    assert "needs 2 devices" in app.warning[0].value
    assert "turbodl is predicted to be the fastest: 28.0 ms; against baseline 1.47x, cannot tell." in words_of(app)


def test_what_was_tried_is_pinned_side_by_side_until_it_is_cleared(start):
    app = start()
    asked(app)
    app.number_input[0].set_value(64)
    app = asked(app)
    table = app.dataframe[-1].value
    assert [words.split(",")[1].strip() for words in table.columns[1:]] == ["batch 32", "batch 64"]
    (clear,) = [button for button in app.button if button.label == "Clear"]
    clear.click().run()
    assert "Tried in this session" not in words_of(app)


def test_a_sweep_of_one_parameter_draws_curves_and_says_where_memory_ends(start):
    app = start()
    app.multiselect[0].set_value(["baseline", "turbodl"])
    pick(app, "Compare over", "batch").run()
    (values,) = [box for box in app.text_input if box.label == "Values of batch"]
    values.set_value(f"64, 32, {fake_jobs.TOO_LARGE}")
    app = asked(app)
    assert charts_of(app) == ["Speed-up over plain PyTorch over batch", "Time per sample against peak allocated memory"]
    assert list(app.dataframe[0].value["batch"]) == ["32", "32", "64", "64", "4,096", "4,096"]
    words = (
        "cannot tell whether turbodl is faster than baseline (one stream, our executor) at every batch from 32 to 64: 1.47x; above batch 64"
    )
    assert words in words_of(app)


def test_a_sweep_of_two_parameters_is_a_heat_map(start):
    app = start()
    pick(app, "Compare over", "batch").run()
    pick(app, "and over", "devices").run()
    app = asked(app)
    assert charts_of(app)[0] == "Speed-up over plain PyTorch of the fastest strategy"
    assert len(app.dataframe[0].value) == 5 * 3


@pytest.mark.parametrize(
    ("values", "line"),
    [("8, x", "cannot read 'x' as a value of batch"), ("", "batch has no values"), ("1.5", "expected whole numbers"),
     (",".join(map(str, range(1, 200))), "the sweep has 199 points; the app predicts at most 144")],
)  # fmt: skip
def test_unusable_values_are_one_line(start, values, line):
    app = start()
    pick(app, "Compare over", "batch").run()
    (box,) = [box for box in app.text_input if box.label == "Values of batch"]
    box.set_value(values)
    (button,) = [button for button in app.button if button.label == "Compare"]
    button.click().run()
    assert not app.exception
    assert line in app.error[0].value.replace("\\", "")
    assert "sweep" not in app.session_state


def test_numeric_options_of_any_strategy_are_parameters():
    names = {parameter.name for parameter in parameters(replace(REQUEST, strategies=tuple(strategies.names())))}
    assert {"batch", "devices", "link GB/s", "stages", "microbatches", "alpha", "bucket", "per_device"} <= names
    assert "link GB/s" not in {parameter.name for parameter in parameters(replace(REQUEST, machine="h100"))}
    by_name = {parameter.name: parameter for parameter in parameters(REQUEST)}
    assert by_name["link GB/s"].change(REQUEST, 0.5).link == "copy:0.5"
    assert by_name["microbatches"].change(REQUEST, 4).strategies == ("baseline", "gpipe:microbatches=4")
    again = by_name["stages"].change(by_name["microbatches"].change(REQUEST, 4), 2)
    assert again.strategies == ("baseline", "gpipe:microbatches=4,stages=2")
    assert by_name["memory bandwidth, times"].change(replace(REQUEST, scale="memory=3,link=2"), 0.5).scale == "memory=0.5,link=2"
    assert parse_values("1, 0.5", by_name["link GB/s"]) == (0.5, 1.0)
    with pytest.raises(SchedcastError, match=r"'nan' as a value of link GB/s"):
        parse_values("nan", by_name["link GB/s"])
    check_points([])


def test_a_point_that_was_predicted_is_not_predicted_again(monkeypatch):
    calls = []

    class Counting:
        @staticmethod
        def predict_many(request):
            calls.append(request.batch)
            return fake_jobs.predict_many(request)

    answer_by(Counting, monkeypatch.setattr)
    batch = parameters(REQUEST)[0]
    first, again = (outcomes_at(REQUEST, [batch], (8,)) for _ in range(2))
    assert first == again
    assert calls == [8]
    refused = outcomes_at(REQUEST, [batch], (13,))
    assert [(each.strategy, each.at, each.refusal.code) for each in refused] == [
        ("baseline", (13,), Code.BATCH),
        ("gpipe", (13,), Code.BATCH),
    ]


def test_a_link_and_commands_reproduce_a_sweep(start):
    app = start()
    pick(app, "Compare over", "batch").run()
    app = asked(app)
    assert app.query_params["over"] == "batch=8,16,32,64,128"
    codes = [code.value for code in app.get("code")]
    assert codes[0].startswith(
        "schedcast predict --model small-cnn --batch 8,16,32,64,128 --optimizer sgd:foreach --precision fp32 --machine h200"
    )
    again = app_at("compare")
    again.query_params["over"] = ["batch=4,6"]
    again.query_params["batch"] = "64"
    again.run()
    assert not again.exception
    assert [box.value for box in again.text_input if box.label == "Values of batch"] == ["4, 6"]
    assert again.number_input[0].value == 64


def test_the_commands_of_two_parameters_are_one_per_point():
    by_name = {parameter.name: parameter for parameter in parameters(REQUEST)}
    changed = [by_name["devices"], by_name["microbatches"]]
    lines = commands(REQUEST, [Axis("devices", (1, 2)), Axis("microbatches", (2, 4))], changed).splitlines()
    assert len(lines) == 4
    assert [word in lines[-1] for word in ("--strategy gpipe:microbatches=4", "--devices 2")] == [True, True]


def test_outcomes_keep_the_names_of_the_strategies_whose_options_change(monkeypatch):
    answer_by(fake_jobs, monkeypatch.setattr)
    request = replace(REQUEST, strategies=("baseline", "turbodl:beta=1"))
    (own,) = [parameter for parameter in parameters(request) if parameter.name == "alpha"]
    assert {each.strategy for each in outcomes_at(request, [own], (4,))} == {"baseline", "turbodl:beta=1"}


def test_a_stopped_run_ends_after_its_current_item():
    def work(item):
        if item == 1:
            run.stop()
        return [item]

    run = BackgroundRun([], work)
    run.thread.join(5)
    assert (run.running, run.stopped, run.total) == (False, False, 0)
    started = threading.Event()

    def waiting(item):
        started.wait(5)
        return work(item)

    run = BackgroundRun([0, 1, 2, 3], waiting)
    started.set()
    run.thread.join(5)
    assert (run.results, run.done, run.stopped) == ([0, 1], 2, True)


def test_an_unexpected_error_ends_a_run_with_one_line():
    def refuse(item):
        raise SchedcastError("no such machine")

    run = BackgroundRun([0], refuse)
    run.thread.join(5)
    assert (run.error, run.done) == ("no such machine", 0)
