"""The app's page of two recorded traces: why one is slower than the other."""

import shlex
from pathlib import Path

import streamlit as st

from simulator.replay.diff.traces import Compared, compare_traces
from traces.documents.shipped import example_traces
from traces.errors import UnknownNameError
from ui.app.page_parts import blocks_ui, formulas_ui
from ui.app.share_parts import Download, check_link, csv, json_bytes, keep_link, one_page, opened_by_link, refuse_link, share_ui
from ui.app.state import select
from ui.app.uploads import offered_traces, stamp, uploads_ui
from ui.present import diffs

TITLE, ICON, ORDER = "Differences", ":material/compare_arrows:", 70


def page() -> None:
    """Let the user choose two traces, and show why they differ: a sentence, bars, both steps drawn, and a table."""
    traces = offered_traces()
    if len(traces) < 2:
        st.info(
            "Two traces are needed, so these are made-up examples. Start the app with"
            " `schedcast ui --trace before.json.gz --trace after.json.gz`, or upload them at the left."
        )
        traces = example_traces()
    names = [path.name for path in traces]

    def label(path: Path) -> str:
        return path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"

    linked = opened_by_link("differences", ("a", "b"))
    if linked is not None:
        by_label = {label(path): path for path in traces}
        missing = ""
        for name in ("a", "b"):
            named = linked.get(name, [""])[-1]
            st.session_state[f"diff {name}"] = by_label.get(named)
            missing = missing or (named if named not in by_label else "")
        refuse_link(str(UnknownNameError("trace", missing, list(by_label))) if missing else "")
    first = select(st.sidebar, "A", traces, "diff a", words=label)
    second = select(st.sidebar, "B", traces, "diff b", traces[1], words=label)
    with st.sidebar:
        if uploads_ui():
            st.rerun()
    query = {"a": [label(first)], "b": [label(second)]}
    check_link((first, second))
    keep_link("differences", query)
    compared = load_compared(str(first), str(second), (stamp(first), stamp(second)))
    shown = diffs.section(compared.diff, compared.one_step())
    blocks_ui(shown.blocks, "diff")
    formulas_ui("Term of a difference")
    table = csv(diffs.cells(compared.diff))
    files = [one_page(lambda: [shown])]
    files.append(Download("Table (CSV)", "diff.csv", "text/csv", lambda: table))
    files.append(Download("Difference (JSON)", "diff.json", "application/json", lambda: json_bytes(compared.diff.document())))
    share_ui(shlex.join(["schedcast", "diff", str(first), str(second)]), query, files)


@st.cache_resource(max_entries=4, show_spinner="Comparing the traces")
def load_compared(a: str, b: str, stamps: tuple[int, int]) -> Compared:
    """The difference of two traces, from the cache. They are compared again when a file has changed, which `stamps` show."""
    return compare_traces(a, b)
