"""The app's page of papers: what they published next to what is predicted, and which of their claims hold."""

from pathlib import Path

import streamlit as st

from simulator.papers import registry as reproduce
from traces.documents.reproduction import Paper, Reproduction
from traces.documents.shipped import reproduction_file
from traces.errors import UnknownNameError
from ui.app import runs
from ui.app.model import reports_folder
from ui.app.navigation import refusals_shown
from ui.app.page_parts import blocks_ui
from ui.app.runs import command_ui, lines_ui
from ui.app.share_parts import Download, check_link, keep_link, opened_by_link, refuse_link, share_ui
from ui.app.state import select
from ui.present import reproductions
from ui.present.labels import markdown_escaped

TITLE, ICON, ORDER = "Papers", ":material/menu_book:", 90
#: The module of `ui.app.pages` that shows the runs: this one.
PAGE = "papers"


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
    kept = (folder / reproductions.DOCUMENT).exists()
    if run is not None and run.cancelled and run.status != 0:
        st.warning("Cancelled.")
    elif run is not None and run.status:
        st.error(markdown_escaped(f"The command ended with status {run.status}: {run.mistake}"))
        lines_ui(run)
    shipped = not kept and reproduction_file(name).exists()
    if shipped:
        st.write("These are the predictions that come with this version. Your own take a few minutes, because the models are captured.")
    elif not kept:
        st.write("Nothing is stored of this paper yet. The first run takes a few minutes, because its models are captured.")
    again, measure, _ = st.columns((2, 2, 3))
    pressed = again.button(
        "Predict it again" if kept else "Predict what the paper published", type="secondary" if kept or shipped else "primary"
    )
    measured = measure.button("Also measure it on this machine", help="Runs what this machine can run of it, and compares.")
    if pressed or measured:
        with refusals_shown():
            runs.start(["reproduce", name, "--measure" if measured else "--fresh", "--out", str(folder)], PAGE, folder)
            st.rerun()
    if kept or shipped:
        document_ui(reproduction_file(name) if shipped else folder / reproductions.DOCUMENT)
    read = (folder / reproductions.DOCUMENT).read_bytes
    files = [Download("Document (JSON)", f"{name}.json", "application/json", read)] if kept else []
    share_ui(f"schedcast reproduce {name} --fresh --out {name}", {"paper": [name]}, files)


def paper_folder(name: str) -> Path:
    """The folder in the user's data folder with a paper's reproduction."""
    return reports_folder().parent / "papers" / name


def document_ui(place: Path) -> None:
    """Show a stored reproduction. A damaged one is shown as one line."""
    with refusals_shown():
        for paper in load_reproduction(str(place), place.stat().st_mtime_ns).papers:
            paper_ui(paper)


@st.cache_resource(max_entries=8, show_spinner="Reading the reproduction")
def load_reproduction(place: str, stamp: int) -> Reproduction:
    """A reproduction from the cache. It is read again when its document has changed, which `stamp` shows."""
    return Reproduction.load(place)


def paper_ui(paper: Paper) -> None:
    """Show one paper: which claims hold, its setting, tables, charts, measurements and notes. A row that can be asked for has a link."""
    st.markdown(f"**{markdown_escaped(paper.title)}**")
    holding = reproductions.holding_words(paper)
    unjudged = sum(check.holds is None for check in paper.checks)
    if holding:
        st.markdown(f"**{markdown_escaped(holding)}**" + (f" {unjudged} cannot be judged." if unjudged else ""))
    blocks_ui(reproductions.blocks(paper), paper.name)
