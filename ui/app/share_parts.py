"""The part at the end of each page that exports its answer: as a command, as a link, as files."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import streamlit as st

from traces.documents.timeline import Timeline
from traces.errors import SchedcastError
from ui.app.state import BUTTON
from ui.present.blocks import Section
from ui.present.labels import markdown_escaped
from ui.present.page import page
from ui.present.pictures import svg
from ui.present.timeline_picture import timelines_figure

#: Where a session stores why its link cannot be answered, and what the controls show instead.
_REFUSED, _SHOWN_INSTEAD = "refused link", "shown instead"


@dataclass(frozen=True)
class Download:
    """A file that the page offers. `make` is called when the user asks for it."""

    label: str
    file_name: str
    mime: str
    make: Callable[[], bytes]


def share_ui(command: str, query: Mapping[str, Sequence[str]], downloads: Sequence[Download] = ()) -> None:
    """Show the command line that gives the same answer, the link that opens the same page, and the files. Both texts have a copy button.

    `command`: empty if no command gives the same answer.
    """
    parts = ["command line"] * bool(command) + ["link"] + ["files"] * bool(downloads)
    with st.expander(f"Take it along: {', '.join(parts)}", icon=":material/ios_share:"):
        if command:
            st.caption("Command line")
            st.code(command, language="bash", wrap_lines=True)
        st.caption("Link to this page")
        st.code(link(query), language=None, wrap_lines=True)
        with st.container(horizontal=True):
            for number, file in enumerate(downloads):
                key = f"{BUTTON}{number} {file.label}"
                st.download_button(markdown_escaped(file.label), file.make, file.file_name, file.mime, key=key, on_click="ignore")


def link(query: Mapping[str, Sequence[str]]) -> str:
    """The address of this page with a query."""
    here = urlsplit(st.context.url or "http://127.0.0.1:8501")
    return here._replace(query=urlencode(query, doseq=True), fragment="").geturl()


def timeline_svg(label: str, name: str, timeline: Callable[[], Timeline]) -> Download:
    """The picture of a timeline as the file NAME.svg."""
    return Download(f"{label} (SVG)", f"{name}.svg", "image/svg+xml", lambda: svg(timelines_figure(timeline())).encode())


def one_page(sections: Callable[[], Sequence[Section]]) -> Download:
    """The answer as one page for a colleague, which needs no other file: what `schedcast report` makes of the answer's documents."""

    def make() -> bytes:
        return page("Schedcast report", sections()).encode()

    return Download("One page for a colleague (HTML)", "report.html", "text/html", make)


def csv(rows: Sequence[Mapping[str, object]]) -> bytes:
    """Rows as CSV with a line of names."""
    import pandas as pd

    return pd.DataFrame(list(rows)).to_csv(index=False).encode()


def json_bytes(document: Mapping[str, object]) -> bytes:
    """A document as a file of JSON."""
    return json.dumps(document, allow_nan=False).encode()


def opened_by_link(page: str, names: Sequence[str]) -> dict[str, list[str]] | None:
    """The query that the user came with, once, if it names anything of `names`; None while it is the one that `keep_link` wrote."""
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    if query == st.session_state.get(_written(page), {}) or not set(query) & set(names):
        return None
    st.session_state[_written(page)] = query
    return query


def keep_link(page: str, query: Mapping[str, Sequence[str]]) -> None:
    """Write the query of the page's address, so that reloading shows the same page."""
    query = {name: list(values) for name, values in query.items()}
    if {name: st.query_params.get_all(name) for name in st.query_params} != query:
        st.query_params.from_dict(query)
    st.session_state[_written(page)] = query


def refuse_link(why: str) -> None:
    """Say why the page cannot show what the user's link names; empty: it can. `check_link` acts on it."""
    st.session_state[_REFUSED] = why
    st.session_state.pop(_SHOWN_INSTEAD, None)


def check_link(shown: Hashable) -> None:
    """Raise SchedcastError while a link is refused and the user has not changed what the controls show instead.

    Without it, the page would answer for another model or machine than the link names. `shown`: the choices of all controls.
    """
    why = st.session_state.get(_REFUSED)
    if why and st.session_state.setdefault(_SHOWN_INSTEAD, shown) == shown:
        raise SchedcastError(f"this link cannot be answered here: {why}; choose something else to go on")
    st.session_state.pop(_REFUSED, None)


def _written(page: str) -> str:
    return f"link of {page}"
