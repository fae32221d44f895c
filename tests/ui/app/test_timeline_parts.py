"""What pages receive from timelines, and what goes to Perfetto."""

import gzip
import json

from streamlit.testing.v1 import AppTest

from tests.support.canvas_payload import decode
from tests.support.page_samples import two_lanes
from ui.app import page_parts as timeline_parts
from ui.app import state
from ui.app.page_parts import trace_bytes


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
