"""What several pages draw: timelines (a component of our own, fluid with many spans), waterfalls, and tables with their formulas.

A trace opens in ui.perfetto.dev from the browser's page; it goes to no server.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from traces.documents.comparison import Prediction, ValidationResult
from traces.documents.timeline import Timeline
from traces.formats.perfetto import trace_document
from ui.app.state import COMPONENT
from ui.present import waterfalls
from ui.present.formulas import FORMULAS, column_formulas, formulas_markdown
from ui.present.labels import markdown_escaped, strategy_name
from ui.present.timeline_canvas.page import script, style
from ui.present.timeline_canvas.payload import timelines_payload
from ui.present.waterfall_figures import waterfall_figure


def table_ui(rows: Sequence[Mapping[str, Any]], shown: Any = None) -> None:
    """Show rows, column name to text or number. `shown`: the same rows with styles."""
    quantities = column_formulas(rows[0] if rows else ())
    config = {head: st.column_config.Column(help=FORMULAS[quantity]) for head, quantity in quantities.items()}
    st.dataframe(rows if shown is None else shown, hide_index=True, column_config=config)


def formulas_ui(*quantities: str) -> None:
    """Offer the formulas of some quantities of `FORMULAS`, one click away."""
    with st.popover("How is this computed?", type="tertiary"):
        st.markdown(formulas_markdown(quantities))


def prediction_waterfall_ui(prediction: Prediction) -> None:
    """Show why a strategy is faster or slower than the baseline; nothing for the baseline itself."""
    if prediction.waterfall:
        st.write(markdown_escaped(" ".join(waterfalls.prediction_words(prediction))))
        title = f"From the baseline to {strategy_name(prediction.strategy)}"
        st.plotly_chart(waterfall_figure(waterfalls.prediction_bars(prediction), title), key="waterfall")


def measured_waterfall_ui(result: ValidationResult) -> None:
    """Show why the measured step is not as long as predicted; nothing if the document does not say."""
    if result.waterfall:
        st.write(markdown_escaped(" ".join(waterfalls.measured_words(result))))
        st.plotly_chart(waterfall_figure(waterfalls.measured_bars(result), "From predicted to measured"), key="measured waterfall")


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


def timelines_ui(key: str, *timelines: Timeline, title: str | None = None) -> None:
    """Draw one step of a timeline, or of two above each other. `title`: plain text in place of the timelines' own."""
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
    microbatch and iteration. With `editable`, "moved" is a task that the user dragged: task, the device and lane it was dropped on, and
    `before`, the task there that it was dropped before (None: after all). `spare`: (device, lane) of empty lanes to drop tasks on. An event
    that did not happen is None.
    """
    reported = [*events, *(["moved"] if editable else [])]
    payload = timelines_payload(timelines, title, reported, editable, spare)
    # An event starts the app's next run, which receives its value, so that nothing is left to do for its callback.
    callbacks: dict[str, Any] = {f"on_{event}_change": lambda: None for event in reported}
    result = _canvas(key=COMPONENT + key, data=payload, **callbacks)
    return {event: result.get(event) for event in reported}
