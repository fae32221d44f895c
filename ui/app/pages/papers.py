"""The app's page of papers: what they published beside what is predicted, and which of their claims hold."""

from pathlib import Path
from urllib.parse import urlencode

import streamlit as st

from simulator.papers import registry as reproduce
from traces.documents.comparison import Validation
from traces.documents.reproduction import Paper, Reproduction, Table
from traces.documents.shipped import reproduction_file
from traces.errors import UnknownNameError
from ui.app import runs
from ui.app.model import reports_folder
from ui.app.navigation import refusals_shown
from ui.app.page_parts import table_ui
from ui.app.runs import command_ui, lines_ui
from ui.app.share_parts import Download, check_link, keep_link, opened_by_link, refuse_link, share_ui
from ui.app.state import select
from ui.present import reproductions as reproduction_words
from ui.present import reproductions_page as reproduction_report
from ui.present import sentences, tables
from ui.present.labels import markdown_escaped

TITLE, ICON, ORDER = "Papers", ":material/menu_book:", 90
#: The module of `ui.app.pages` that shows the runs: this one.
PAGE = "papers"
#: The column of links.
OPEN = "What if"


def page() -> None:
    """Let the user choose a paper; reproduce it here with progress, or show what was reproduced before."""
    papers = {name: reproduce.get(name) for name in reproduce.names()}
    linked = opened_by_link("papers", ["paper"])
    if linked is not None:
        st.session_state["paper"] = named = linked["paper"][-1]
        refuse_link("" if named in papers else str(UnknownNameError("paper", named, list(papers))))
    name = select(st.sidebar, "Paper", list(papers), "paper")
    check_link(name)
    keep_link("papers", {"paper": [name]})
    st.subheader(markdown_escaped(papers[name].about), anchor=False)
    folder = paper_folder(name)
    latest = runs.latest(PAGE, folder)
    run = latest.command if latest is not None else None
    if run is not None and run.running:
        st.fragment(command_ui, run_every=runs.REFRESH_S)(run)
        return
    kept = (folder / reproduction_report.DOCUMENT).exists()
    if run is not None and run.cancelled and run.status != 0:
        st.warning("Cancelled.")
    elif run is not None and run.status:
        st.error(markdown_escaped(f"The command ended with status {run.status}: {run.mistake}"))
        lines_ui(run)
    shipped = not kept and reproduction_file(name).exists()
    if shipped:
        st.write("These are the predictions that come with this version. Your own take a few minutes, because the models are captured.")
    elif not kept:
        st.write("Nothing is kept of this paper yet. The first run takes a few minutes, because its models are captured.")
    again, measure, _ = st.columns((2, 2, 3))
    pressed = again.button(
        "Predict it again" if kept else "Predict what the paper published", type="secondary" if kept or shipped else "primary"
    )
    measured = measure.button("Also measure it on this machine", help="Runs what this machine can run of it, and compares.")
    if pressed or measured:
        with refusals_shown():
            runs.start(["reproduce", name, *(["--measure"] if measured else []), "--out", str(folder)], PAGE, folder)
            st.rerun()
    if kept or shipped:
        document_ui(reproduction_file(name) if shipped else folder / reproduction_report.DOCUMENT)
    read = (folder / reproduction_report.DOCUMENT).read_bytes
    files = [Download("Document (JSON)", f"{name}.json", "application/json", read)] if kept else []
    share_ui(f"schedcast reproduce {name} --out {name}", {"paper": [name]}, files)


def paper_folder(name: str) -> Path:
    """The folder in the user's data folder that keeps a paper's reproduction."""
    return reports_folder().parent / "papers" / name


def document_ui(place: Path) -> None:
    """Show a reproduction that was kept. A damaged one is one line."""
    with refusals_shown():
        for paper in load_reproduction(str(place), place.stat().st_mtime_ns).papers:
            paper_ui(paper)


@st.cache_resource(max_entries=8, show_spinner="Reading the reproduction")
def load_reproduction(place: str, stamp: int) -> Reproduction:
    """A reproduction from the cache. It is read again when its document has changed, which `stamp` shows."""
    return Reproduction.load(place)


def paper_ui(paper: Paper) -> None:
    """Show one paper: its setting, which claims hold, charts, tables, measurements and notes."""
    st.markdown(f"**{markdown_escaped(paper.title)}**")
    st.caption(markdown_escaped(paper.reference))
    st.write(markdown_escaped(" ".join(reproduction_words.about_words(paper))))
    if paper.checks:
        holding = sum(check.holds is True for check in paper.checks)
        judged = sum(check.holds is not None for check in paper.checks)
        st.markdown(f"**{holding} of {judged} claims hold** ({len(paper.checks) - judged} cannot be judged).")
        claims_ui(paper)
    for shown in reproduction_report.drawn_of(paper):
        st.plotly_chart(reproduction_report.figure_of(shown), key=f"{paper.name} {shown.name}")
    for number, table in enumerate(paper.tables):
        with st.expander(markdown_escaped(table.title), expanded=number == 0):
            table_of(table)
            st.caption(markdown_escaped(table.about))
    for measured in paper.measured:
        validation = Validation.model_validate(measured)
        st.markdown(f"Measured: {markdown_escaped(sentences.job_words(validation))}")
        table_ui(tables.validation_cells(validation))
    for note in paper.notes:
        st.caption(markdown_escaped(note))


def table_of(table: Table) -> None:
    """Show a table; a row that can be asked for opens in What if."""
    cells: list[dict[str, str]] = reproduction_words.cells(table)
    if any(row.asks for row in table.rows):
        cells = [{**cell, OPEN: f"what-if?{urlencode(row.asks, doseq=True)}"} for cell, row in zip(cells, table.rows, strict=True)]
    st.dataframe(cells, hide_index=True, column_config={OPEN: st.column_config.LinkColumn(OPEN, display_text=OPEN)})


def claims_ui(paper: Paper) -> None:
    """Show what the paper claims: in green what holds, in yellow what does not, with the figures and the cause."""
    for check in paper.checks:
        claim, figures = reproduction_words.check_words(check)
        color = {True: "green", False: "orange", None: "gray"}[check.holds]
        st.markdown(f"- :{color}[{markdown_escaped(claim)}]  \n  :small[{markdown_escaped(figures)}]")
