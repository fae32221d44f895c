"""What pages receive from timelines, and what goes to Perfetto."""

import gzip
import json
import sys

import pytest
import streamlit
from streamlit.testing.v1 import AppTest

from calibrate.identity import comparable_cpu
from simulator.predict.coverage import judged
from simulator.predict.rule_records import rule_records
from tests.support.app_pages import app_at, charts_of, words_of
from tests.support.canvas_payload import decode
from tests.support.page_samples import two_lanes
from traces.documents.profile import KeyCost, Profile, Stats, Transfer
from traces.documents.profile_files import default_folder
from traces.documents.scoreboard import Scoreboard
from traces.documents.shipped import scoreboard_file, shipped_validations
from ui.app import page_parts as timeline_parts
from ui.app import state
from ui.app.page_parts import trace_bytes
from ui.present.rules import REASON, documented


def editable_page():
    """A page with a timeline whose tasks can be dragged."""
    import streamlit as st

    from tests.support.page_samples import two_lanes
    from ui.app.page_parts import timelines_canvas

    st.write(str(timelines_canvas([two_lanes()], "editor", events=("selected",), editable=True)))


def test_events_that_did_not_happen_are_none():
    app = AppTest.from_function(editable_page).run()
    assert not app.exception
    assert app.markdown[0].value == "{'selected': None, 'moved': None}"


def test_an_event_is_not_kept_for_the_next_run(monkeypatch):
    """Streamlit forgets an event after one run, unless the state of its component is set."""

    class Recorded(dict):
        def __setitem__(self, key, value):
            written.append(key)

    written = []
    monkeypatch.setattr(state.st, "session_state", Recorded({f"{state.COMPONENT}editor": {"moved": {"task": "c"}}, "batch": 8}))
    state.keep_widgets()
    assert written == ["batch"]


def test_the_browser_reports_what_the_page_asks_for(monkeypatch):
    def browser(key, data, on_selected_change, on_moved_change):
        header = decode(data).header
        assert (key, header["events"], header["editable"]) == (f"{state.COMPONENT}editor", ["selected", "moved"], True)
        return {"selected": {"task": "c"}, "moved": None}

    monkeypatch.setattr(timeline_parts, "_canvas", browser)
    events = timeline_parts.timelines_canvas([two_lanes()], "editor", events=("selected",), editable=True)
    assert events == {"selected": {"task": "c"}, "moved": None}


def test_a_trace_has_every_timeline_under_a_name_of_its_own():
    document = json.loads(gzip.decompress(trace_bytes([two_lanes(), two_lanes("measured")])))
    assert [label for label in document["otherData"] if label != "producer"] == ["predicted", "measured"]
    document = json.loads(gzip.decompress(trace_bytes([two_lanes(), two_lanes()])))
    assert [label for label in document["otherData"] if label != "producer"] == ["predicted 1", "predicted 2"]


# The page of accuracy shows every shipped step and how many lie in their intervals.


def test_every_shipped_step_is_drawn_and_counted():
    app = app_at("accuracy").run()
    assert not app.exception
    steps = judged(shipped_validations())
    figure = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert figure["layout"]["title"]["text"].startswith(f"{sum(step.inside for step in steps)} of {len(steps)} (")
    by_group, by_strategy, *_ = (table.value for table in app.dataframe)
    assert sum(by_group["steps"]) == sum(by_strategy["steps"]) == len(steps)
    assert {"pipelines", "several processes"} <= set(by_group["group"])
    published = app.dataframe[-1].value
    assert len(published) == len(Scoreboard.load(scoreboard_file()).by_gpu) > 20


def test_what_if_rules_have_their_records_and_what_is_not_predicted_its_reason():
    app = app_at("accuracy").run()
    by_columns = {tuple(table.value.columns): table.value for table in app.dataframe}
    records, left_out = (next(own for heads, own in by_columns.items() if head in heads) for head in ("sign right", REASON))
    assert [int(count) for count in records["pairs"]] == [record.pairs for record in rule_records().records] + [0] * len(
        documented().unjudged
    )
    assert len(left_out) == len(rule_records().left_out)


# The page of a machine, with the real predictor.


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
    assert charts_of(app)[0] == "Roofline: every op of the job"
    heads = [next(iter(table.value.columns)) for table in app.dataframe]
    assert {"op", "figure", "links", "time"} <= {*heads}
    assert all("SM clock" in box.value for box in app.warning), "in which conditions the shipped profile was measured"
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
