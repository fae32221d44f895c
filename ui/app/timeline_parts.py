"""The part of the app that draws timelines: a component of our own, which stays fluid with many spans.

The part of the app that opens timelines in ui.perfetto.dev. The trace goes from the browser's page to that page, to no server.
"""

import base64
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from traces.documents.timeline import Timeline
from traces.formats.perfetto import trace_document
from ui.app.state import COMPONENT
from ui.present.figures.timeline_canvas.assets import script, style
from ui.present.figures.timeline_canvas.payload import timelines_payload

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


_canvas = st.components.v2.component("schedcast_timeline", css=style(), js=script("streamlit"))


def timelines_ui(key: str, first: Timeline, second: Timeline | None = None, title: str | None = None) -> None:
    """Draw one step of a timeline, or of two above each other. `title`: plain text in place of the timelines' own."""
    timelines = [timeline for timeline in (first, second) if timeline is not None]
    timelines_canvas(timelines, key, title or None)
    perfetto_ui(timelines, f"{key} in Perfetto")


def timelines_canvas(
    timelines: Sequence[Timeline],
    key: str,
    title: str | None = None,
    events: Sequence[str] = (),
    editable: bool = False,
    spare: Sequence[tuple[str, str]] = (),
) -> dict[str, dict | None]:
    """Draw one step of each timeline, and return what the user did since the last run, by event.

    `events` may name "selected": the span that the user picked, as a dict of task, layer, phase, kind, device, lane, start_ms, duration_ms,
    micro_batch and iteration. With `editable`, "moved" is a task that the user dragged: task, the device and lane it was dropped on, and
    `before`, the task there that it was dropped before (None: after all). `spare`: (device, lane) of empty lanes to drop tasks on. An event
    that did not happen is None.
    """
    reported = [*events, *(["moved"] if editable else [])]
    payload = timelines_payload(timelines, title, reported, editable, spare)
    result = _canvas(key=COMPONENT + key, data=payload, **{f"on_{event}_change": _nothing for event in reported})
    return {event: result.get(event) for event in reported}


def _nothing() -> None:
    """An event of the component starts the app's next run, which receives its value."""
