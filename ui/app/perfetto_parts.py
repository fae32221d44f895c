"""The part of the app that opens timelines in ui.perfetto.dev. The trace goes from the browser's page to that page, to no server."""

import base64
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from traces.documents.timeline import Timeline
from traces.formats.perfetto import trace_document
from ui.app.state import COMPONENT

_button = st.components.v2.component(
    "schedcast_perfetto",
    css=Path(__file__).with_name("perfetto.css").read_text(encoding="utf-8"),
    js=Path(__file__).with_name("perfetto.js").read_text(encoding="utf-8"),
)


@st.fragment
def perfetto_ui(timelines: Sequence[Timeline], key: str) -> None:
    """A button that opens the timelines in ui.perfetto.dev. The trace is made when the button is pressed."""
    wanted = f"{key}: wanted"

    def ask() -> None:
        st.session_state[wanted] = True

    data = {"title": "Schedcast"}
    if st.session_state.pop(wanted, False):
        data["trace"] = base64.b64encode(trace_bytes(timelines)).decode()
    _button(key=COMPONENT + key, data=data, on_wanted_change=ask)


def trace_bytes(timelines: Sequence[Timeline]) -> bytes:
    """The timelines as one trace, compressed. Timelines of one kind are numbered."""
    kinds = [timeline.kind for timeline in timelines]
    labels = [kind if kinds.count(kind) == 1 else f"{kind} {number}" for number, kind in enumerate(kinds, start=1)]
    document = trace_document(dict(zip(labels, timelines, strict=True)))
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
