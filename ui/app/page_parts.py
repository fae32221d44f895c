"""Renders blocks in the app, and what several pages draw: tables with their formulas, and timelines (a component of our own, fluid with
many spans).

A trace opens in ui.perfetto.dev from the browser's page; it goes to no server.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from traces.documents.timeline import Timeline
from traces.formats.perfetto import trace_document
from ui.app.state import COMPONENT
from ui.present.blocks import Block, Figure, Group, Headline, Note, Sentences, Table, Timelines
from ui.present.formulas import FORMULAS, column_formulas, formulas_markdown
from ui.present.labels import markdown_escaped
from ui.present.timeline_canvas.page import script, style
from ui.present.timeline_canvas.payload import timelines_payload


def table_ui(rows: Sequence[Mapping[str, Any]], shown: Any = None) -> None:
    """Show rows, column name to text or number. `shown`: the same rows with styles."""
    quantities = column_formulas(rows[0] if rows else ())
    config = {head: st.column_config.Column(help=FORMULAS[quantity]) for head, quantity in quantities.items()}
    if rows and OPEN in rows[0]:
        config[OPEN] = st.column_config.LinkColumn(OPEN, display_text=OPEN)
    st.dataframe(rows if shown is None else shown, hide_index=True, column_config=config)


def formulas_ui(*quantities: str) -> None:
    """Offer the formulas of some quantities of `FORMULAS`, one click away."""
    with st.popover("How is this computed?", type="tertiary"):
        st.markdown(formulas_markdown(quantities))


def blocks_ui(blocks: Sequence[Block], key: str) -> None:
    """Show blocks, each in the app's form. `key`: it distinguishes their charts and timelines from others of the page."""
    for number, block in enumerate(blocks):
        own = f"{key} {number}"
        match block:
            case Headline():
                st.subheader(markdown_escaped(block.text), anchor=False)
            case Sentences() if block.lines:
                st.markdown(_sentences(block))
            case Table() if block.rows:
                _table_ui(block)
            case Figure():
                st.plotly_chart(block.draw(), key=own)
            case Timelines():
                timelines_ui(own, *block.timelines, title=block.title)
            case Note():
                st.caption(markdown_escaped(block.text))
            case Group() if block.folded:
                with st.expander(markdown_escaped(block.title)):
                    blocks_ui(block.blocks, own)
            case Group():
                if block.title:
                    st.subheader(markdown_escaped(block.title), anchor=False)
                blocks_ui(block.blocks, own)


def _sentences(block: Sentences) -> str:
    """Sentences as a list, in yellow what a terminal shows so, or as a paragraph."""
    lines = [markdown_escaped(line) for line in block.lines]
    if not block.listed:
        return " ".join(lines)
    lines = [f":orange[{line}]" if block.styles.get(number) == "yellow" else line for number, line in enumerate(lines)]
    below = [f"  \n  :small[{markdown_escaped(text)}]" for text in block.below] or [""] * len(lines)
    return "\n".join(f"- {line}{small}" for line, small in zip(lines, below, strict=True))


#: What leads from a row to the page that asks for it, and the color of rows that a terminal shows in red.
OPEN, RED = "What if", "color: #D1495B"


def _table_ui(block: Table) -> None:
    """Show a table, in a box that opens on request if it is a detail."""
    rows = list(block.rows)
    if any(block.asks):
        rows = [{**row, OPEN: f"what-if?{urlencode(query, doseq=True)}"} for row, query in zip(rows, block.asks, strict=True)]
    shown = None
    if "red" in block.styles.values():
        import pandas as pd  # here, as styles take longer than all else

        red = [RED if block.styles.get(number) == "red" else "" for number in range(len(rows))]
        shown = pd.DataFrame(rows).style.apply(lambda column: red)
    with st.expander(markdown_escaped(block.title)) if block.detail and block.title else st.container():
        if block.title and not block.detail:
            st.markdown(f"**{markdown_escaped(block.title)}**")
        table_ui(rows, shown)
        for text in filter(None, (block.caption, block.about)):
            st.caption(markdown_escaped(text))


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
    # An event starts the app's next run, which receives its value, so its callback does nothing.
    callbacks: dict[str, Any] = {f"on_{event}_change": lambda: None for event in reported}
    result = _canvas(key=COMPONENT + key, data=payload, **callbacks)
    return {event: result.get(event) for event in reported}
