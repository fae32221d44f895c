"""The app's page of searches: every strategy with its options and combinations on one job and machine, ranked."""

from dataclasses import replace

import streamlit as st

from simulator.predict.search.ranking import Ranking
from traces import units
from traces.documents.search_result import RankedPlan, SearchResult
from traces.documents.whole_training import WholeTraining
from ui.app.links import command, query_of
from ui.app.navigation import link_ui, refusals_shown
from ui.app.page_parts import blocks_ui, formulas_ui, table_ui, timelines_ui
from ui.app.request_form import put_link, request_ui, title
from ui.app.share_parts import Download, csv, json_bytes, keep_link, one_page, share_ui
from ui.app.state import BUTTON, select, several, text
from ui.present import searches
from ui.present.blocks import Sentences
from ui.present.formulas import FORMULAS, formulas_of
from ui.present.labels import PEAK, markdown_escaped, strategy_name
from ui.request import JobRequest
from ui.service import jobs

TITLE, ICON, ORDER = "Search", ":material/travel_explore:", 30
ABOUT = (
    "Tries everything that the strategies offer on this job and machine: their options and combinations. Plans whose lower bound"
    " shows that they cannot win, or that they cannot fit, are not simulated. Without a strategy in the sidebar, all are tried; for a"
    " language model on several devices it is fsdp, with other microbatches and activation checkpointing too."
)
#: Rows of the table that are shown at first.
SHOWN = 20


def page() -> None:
    """Show the controls in the sidebar, the button that searches, and the last answer under the job that it belongs to."""
    linked = put_link("search")
    if linked is not None:
        st.session_state["searched strategies"] = [each.partition(":")[0] for each in linked.get("strategy", ())]
        st.session_state["tries"] = " ".join(linked.get("try", ()))
    with refusals_shown():
        with st.sidebar:
            request = replace(request_ui(every=True), tries=tries_ui())
        keep_link("search", query_of(request))
        st.subheader(title(request), anchor=False)
        st.write(ABOUT)
        asked, cancel = st.container(horizontal=True), st.empty()
        if asked.button("Search", type="primary", key=f"{BUTTON}search"):
            answer_to(request, cancel)
    if "searched" not in st.session_state:
        return
    answered, answer = st.session_state["searched"]
    answered = replace(answered, tokens=request.tokens, price=request.price)  # which say what to make of the answer
    if answered != request:
        st.warning(f"This answer belongs to an earlier request: {title(answered)}. Search answers the present one.")
    answer_ui(answered, answer)


def tries_ui() -> tuple[str, ...]:
    """The variants of the job that the user wants tried; none for the usual ones."""
    about = "Microbatches per update, and activation checkpointing. Empty: both, for a language model on several devices."
    given = text(st.text_input, "Variants of the job", "tries", placeholder="accumulate=1,2,4 checkpoint=none,full", help=about)
    return tuple(given.split())


def answer_to(request: JobRequest, place) -> None:
    """Search, with progress and a button that cancels. Evaluated plans are cached, so that another search continues."""
    st.session_state.pop("searched", None)
    with place.container():
        bar = st.progress(0.0, "Capturing the model")
        st.button("Cancel", key=f"{BUTTON}cancel", help="Evaluations so far are saved: Search continues there.")

        def progress(done: int, total: int, candidate: str) -> None:
            bar.progress(done / total, f"{done} of {total} plans: {markdown_escaped(candidate)}")

        st.session_state["searched"] = (request, jobs.search(request, progress))
    place.empty()


def answer_ui(request: JobRequest, answer: Ranking) -> None:
    """Show the best plan, why it wins, the chart, the table, and the ways to take the answer along."""
    result = answer.result
    box = st.error if result.winner is None else st.info if searches.tied(result) else st.success
    box(markdown_escaped(searches.headline(result)))
    if result.tokens:
        configurations_ui(request, result)
    figures_ui(result)
    blocks_ui(searches.configuration_blocks(result), "configurations")
    blocks_ui([searches.chart(result), Sentences(searches.words(result))], "search")
    plans_ui(result)
    take_ui(request, result)
    why_ui(answer)
    share_ui(command(request, name="search"), query_of(request), downloads(result))


def configurations_ui(request: JobRequest, result: SearchResult) -> None:
    """Show the most important configurations side by side, with what a training costs, each with its link."""
    known = searches.worth_knowing(result)
    if not known:
        return
    st.subheader("Configurations worth knowing", anchor=False)
    for column, own in zip(st.columns(len(known)), known, strict=True):
        with column.container(border=True):
            st.markdown(f"**{own.why}**")
            st.code(own.plan.text, language=None, wrap_lines=True)
            st.caption(f"microbatches per update: {own.plan.accumulate}, checkpointing: {markdown_escaped(own.plan.checkpoint)}")
            st.metric("Step time", units.duration(own.plan.step_s))
            st.metric("Speed", searches.rate_words(result, own))
            st.metric("MFU", units.percent(own.plan.mfu, signed=False), help=FORMULAS["MFU"])
            st.metric(PEAK.capitalize(), units.memory(own.plan.peak_bytes))
            st.caption(markdown_escaped(own.memory_words))
            training = WholeTraining.at(own.plan, result.tokens or 1, result.devices, request.budget)
            st.metric(f"{units.amount(training.tokens)} tokens", units.duration(training.hours * 3600))
            if training.cost is not None:
                st.metric("Cost", f"${training.cost:,.0f}")
            link_ui("what_if", "Open in What if", query_of(_request_of(request, own.plan)))


def _request_of(request: JobRequest, plan: RankedPlan) -> JobRequest:
    """The request of a plan's own job, with the baseline."""
    texts = tuple(dict.fromkeys(("baseline", plan.text)))
    return replace(request, strategies=texts, accumulate=plan.accumulate, checkpoint=plan.checkpoint, tries=())


def plans_ui(result: SearchResult) -> None:
    """Show the table of plans, of all strategies or of those that the user picks, and the plans that were not simulated."""
    st.subheader("All plans", anchor=False)
    names = list(dict.fromkeys(plan.strategy for plan in result.plans))
    kept = several(st, "Strategies", names, "search shown", (), placeholder="all", help="Show only the plans of these strategies.")
    rows = [row for row in searches.cells(result) if not kept or searches.strategy_of(row) in kept]
    every = len(rows) <= SHOWN or st.toggle(f"Show all {len(rows)}", key="search all")
    table_ui(rows if every else rows[:SHOWN])
    formulas_ui(*formulas_of(rows[0] if rows else (), ("Above the bound", "Tied plans", "Why")))
    pruned = [row for row in searches.pruned_cells(result) if not kept or searches.strategy_of(row) in kept]
    if pruned:
        with st.expander(f"Not simulated, because they cannot win: {len(pruned)}"):
            table_ui(pruned)


def take_ui(request: JobRequest, result: SearchResult) -> None:
    """Let the user take one plan, with the baseline, to the pages that show it in detail and over a range of batches or links."""
    if not result.fitting:
        return
    names = [group[0].plan for group in searches.groups(result.fitting)]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = select(st, "A plan, to see beside the baseline", names, "search taken", names[0])
        query = query_of(_request_of(request, next(plan for plan in result.fitting if plan.plan == chosen)))
        link_ui("what_if", "Open in What if", query)
        link_ui("compare", "Open in Compare", query)


def figures_ui(result: SearchResult) -> None:
    """Show the best plan's figures."""
    best = result.winner
    if best is None:
        return
    gains = [("Over the baseline", units.speedup(best.speedup), ""), ("Against PyTorch", units.speedup(best.against_pytorch), "")]
    values = (
        ("Step time", units.duration(best.step_s), best.interval_s and f"90 %: {units.between(best.interval_s)}"),
        *(gains if searches.compared_fits(result) else []),
        (PEAK.capitalize(), units.memory(best.peak_bytes), ""),
        ("Above the bound", units.percent(max(0.0, result.gap or 0.0), signed=False), f"bound: {units.duration(result.bound_s)}"),
        ("Tied plans", str(len(searches.tied(result))), "within 2 %, or not told apart"),
    )
    for column, (label, value, below) in zip(st.columns(len(values), gap="xsmall"), values, strict=True):
        column.metric(label, value, help=FORMULAS.get(label))
        if below:
            column.caption(below)


def why_ui(answer: Ranking) -> None:
    """Show why the best plan is faster than the baseline, and than the best plan of another family, and their timelines."""
    if answer.result.winner is None or answer.best is None:
        return
    st.subheader("Why it wins", anchor=False)
    blocks_ui(searches.why(answer.result), "search why")
    timelines_ui("search timeline", replace(answer.best, kind=f"{strategy_name(answer.result.winner.plan)}, predicted"))


def downloads(result: SearchResult) -> list[Download]:
    """The page, the table and the document."""
    return [
        one_page(lambda: [searches.section(result)]),
        Download("Table (CSV)", "search.csv", "text/csv", lambda: csv(searches.cells(result))),
        Download("Search (JSON)", "search.json", "application/json", lambda: json_bytes(result.document())),
    ]
