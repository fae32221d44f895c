"""The files that pages offer: they are what they say, and documents are those of the command line."""

import csv
import io
import json
import shlex
import sys
from xml.etree import ElementTree

import pytest
import streamlit

from tests.support.app_pages import app_at
from tests.support.html_pages import figures_of_page, written_words
from traces.documents.shipped import example_report, example_traces
from ui.present.labels import strategy_name


@pytest.fixture
def files(monkeypatch, schedcast):
    """Opens a page by a link, and returns its files and the first text with a copy button: name to bytes, and the command line."""

    def of(address, **query):
        made = {}
        monkeypatch.setattr(sys, "argv", ["app.py"])
        monkeypatch.setenv("SCHEDCAST_DATA", str(schedcast.data))
        monkeypatch.setenv("XDG_DATA_HOME", str(schedcast.folder / "home"))
        monkeypatch.setattr(streamlit, "download_button", lambda _, make, name, *rest, **how: made.update({name: make}))
        app = app_at(address)
        app.query_params.update(query)
        app.run()
        assert not app.exception
        commands = [code.value for code in app.code if code.value.startswith("schedcast")]
        return {name: make() for name, make in made.items()}, commands[-1] if commands else ""

    return of


def rows_of(content):
    return list(csv.DictReader(io.StringIO(content.decode())))


def without_wall_time(document):
    """A document without the time that it took to make it."""
    if isinstance(document, list):
        return [without_wall_time(each) for each in document]
    if isinstance(document, dict):
        return {name: without_wall_time(value) for name, value in document.items() if name != "simulate_wall_s"}
    return document


def printed(schedcast, command):
    """What a command prints with --json, without what others measured, which the page asks for by itself."""
    document = schedcast.call(*shlex.split(command)[1:], "--json").document
    return without_wall_time({name: value for name, value in document.items() if name != "normal"})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategies", "compared"), [(["turbodl"], ["baseline (one stream, our executor)"]), (["turbodl", "gpipe", "deepa"], [])]
)
def test_the_document_of_a_prediction_is_that_of_the_command_line(files, schedcast, strategies, compared):
    """The table has what a strategy is compared with, and an only one also the baseline."""
    made, command = files("what-if", model="lenet5", batch="16", machine="h100", strategy=strategies)
    assert without_wall_time(json.loads(made["predictions.json"])) == printed(schedcast, command)
    loops = ["plain PyTorch", "plain PyTorch, one CUDA graph"]
    assert [row["strategy"] for row in rows_of(made["predictions.csv"])] == [*loops, *compared, "turbodl"]


def test_the_picture_of_a_prediction_opens(files):
    made, _ = files("what-if", model="lenet5", batch="16", machine="h100", strategy="baseline")
    (name,) = [name for name in made if name.endswith(".svg")]
    words = {element.text for element in ElementTree.fromstring(made[name]).iter()}
    assert {"forward", "backward", "update", "predicted"} <= words


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("address", "query", "words"),
    [
        ("what-if", {"model": "lenet5", "batch": "16", "machine": "h100", "strategy": ["turbodl"]}, "Predicted: lenet5, batch 16"),
        ("validate", {}, "lenet5, batch 256"),
        ("differences", {}, "B is 0.60 ms faster than A"),
    ],
)
def test_an_answer_is_one_page_for_a_colleague(files, address, query, words):
    made, _ = files(address, **query)
    page = made["report.html"].decode()
    assert words in written_words(page)
    assert 'src="' not in written_words(page)
    assert figures_of_page(page)


@pytest.mark.thorough
@pytest.mark.parametrize("rules", [[], ["host 2x faster"]])
def test_the_document_of_a_trace_is_that_of_the_command_line(files, schedcast, rules):
    made, command = files("trace", **({"what-if": rules, "trace": example_traces()[0].name} if rules else {}))
    assert shlex.split(command) == ["schedcast", "replay", str(example_traces()[0]), *(["--what-if", *rules] if rules else [])]
    assert json.loads(made["replay.json"]) == printed(schedcast, command)
    assert set(rows_of(made["changes.csv"])[0]) >= {"change", "speed-up", "note"}
    assert ElementTree.fromstring(made["step.svg"]).tag.endswith("svg")


@pytest.mark.thorough
def test_the_document_of_a_difference_is_that_of_the_command_line(files, schedcast):
    made, command = files("differences")
    assert json.loads(made["diff.json"]) == printed(schedcast, command)
    assert rows_of(made["diff.csv"])[-1]["what makes the difference"] == "one step"


def test_the_document_of_a_report_is_what_was_measured(files):
    made, _ = files("validate")
    document, measured = json.loads(made["validation.json"]), json.loads((example_report() / "validation.json").read_text())["results"]
    assert [row["measured_step_s"] for row in document["results"]] == [row["measured_step_s"] for row in measured]
    assert [row["strategy"] for row in rows_of(made["validation.csv"])][1:] == [strategy_name(row["strategy"]) for row in measured]


def test_tables_of_machines_and_of_accuracy_have_every_row(files):
    made, _ = files("machine", machine="h100", model="lenet5")
    assert any(row["op"].endswith("convolution") for row in rows_of(made["ops.csv"]))
    made, command = files("accuracy")
    assert {"measured_s", "predicted_s"} <= set(rows_of(made["steps.csv"])[0])
    assert command == ""
