"""The page of a machine, with the real predictor."""

import sys

import pytest
import streamlit

from calibrate.identity import comparable_cpu
from tests.support.app_pages import app_at, charts_of, words_of
from traces.documents.profile import KeyCost, Profile, Stats, Transfer
from traces.documents.profile_files import default_folder


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    streamlit.cache_resource.clear()
    return app_at("machine").run


def choose(app, label, value):
    (box,) = [box for box in app.selectbox if box.label == label]
    box.set_value(value)


def test_a_preset_has_figures_and_a_roofline(start):
    app = start()
    choose(app, "Machine or profile", "h100")
    choose(app, "Model", "lenet5")
    app.run()
    assert not app.exception
    assert charts_of(app) == ["Roofline: every op of the job"]
    heads = [next(iter(table.value.columns)) for table in app.dataframe]
    assert heads == ["op", "figure", "links", "time"]
    assert not app.warning
    (command,) = [code.value for code in app.get("code") if code.value.startswith("schedcast")]
    assert command == "schedcast predict --model lenet5 --batch 32 --machine h100 --strategy baseline"
    assert app.query_params["machine"] == "h100"


def test_a_profile_says_what_it_has_and_what_is_wrong_with_it(start):
    identity = comparable_cpu().model_copy(update={"torch": "1.0"})
    stats = Stats.from_samples([0.001, 0.002])
    update = KeyCost(stats, stats, "update.sgd:for", 10.0, 10.0)
    transfer = Transfer(latency_s=1e-6, bytes_per_s=1e9, points=[(1e6, 1e-3)])
    default_folder().mkdir(parents=True)
    Profile(identity=identity, costs={"update.sgd:for|x@2": update}, transfers={"a>b": transfer}).save(default_folder() / "other.json")
    (default_folder() / "broken.json").write_text("{")
    app = start()
    choose(app, "Model", "lenet5")
    choose(app, "Machine or profile", "profile other.json")
    app.run()
    assert not app.exception
    assert charts_of(app) == ["Roofline: every op of the job", "Transfers and collectives: measured points and fitted laws"]
    assert "It is of another machine or software: torch is 1.0 here" in words_of(app)
    assert "Optimizer updates, warm and cold" in words_of(app)
    choose(app, "Machine or profile", "profile broken.json")
    app.run()
    assert not app.exception
    assert "not valid JSON" in app.error[0].value
