"""The app's page that compares strategies, at one point or over one or two parameters, and shows earlier results side by side.

Work in the background of a page, item by item, while the page shows its progress. It can be stopped between two items.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from simulator.predict.sweep import Axis, Outcome, points
from traces.errors import SchedcastError
from ui.app.history import history_ui, pin, remember
from ui.app.links import query_of
from ui.app.navigation import refusals_shown
from ui.app.page_parts import blocks_ui, formulas_ui
from ui.app.request_form import put_link, request_ui, request_words
from ui.app.share_parts import Download, csv, keep_link, one_page, share_ui
from ui.app.state import select, text
from ui.app.sweeping import Parameter, check_points, commands, outcomes_at, parameters, parse_values
from ui.present import sweeps
from ui.present.blocks import Sentences
from ui.present.formulas import formulas_of
from ui.present.labels import markdown_escaped, strategy_name
from ui.request import JobRequest


class BackgroundRun:
    """A thread that calls `work` on every item. `results` grows by the results of each item, in order.

    `error`: why the work ended early, in one line; empty if it did not.
    """

    def __init__(self, items: Sequence[tuple[float, ...]], work: Callable[[tuple[float, ...]], Iterable[Outcome]]):
        self.total = len(items)
        self.done = 0
        self.results: list[Outcome] = []
        self.error = ""
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(items, work), daemon=True)
        self.thread.start()

    @property
    def running(self) -> bool:
        """Whether items are left, and nobody has stopped the work."""
        return self.thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether the work was stopped before its end."""
        return self._stop.is_set() and self.done < self.total

    def stop(self) -> None:
        """End the work after the current item."""
        self._stop.set()

    def _run(self, items: Sequence[tuple[float, ...]], work: Callable[[tuple[float, ...]], Iterable[Outcome]]) -> None:
        for item in items:
            if self._stop.is_set():
                return
            try:
                self.results += work(item)
            except SchedcastError as error:
                self.error = str(error)
                return
            except Exception as error:  # a thread cannot raise to a caller: the page says what happened
                self.error = f"{type(error).__name__}: {error}"
                raise
            self.done += 1


TITLE, ICON, ORDER = "Compare", ":material/stacked_line_chart:", 20
NOTHING, FASTEST = "nothing", "the fastest at each point"
#: The name of the parameters in a link: over=batch=8,16,32.
OVER = "over"
#: Seconds between two updates of a sweep's progress, and of its outcomes.
REFRESH_S, REDRAW_S = 0.5, 4.0
_KEY = "sweep"


@dataclass
class Sweep:
    """A sweep that is running or has ended. `remembered`: whether its outcomes are in the session's history."""

    request: JobRequest
    changed: tuple[Parameter, ...]
    axes: tuple[Axis, ...]
    run: BackgroundRun
    remembered: bool = False


def page() -> None:
    """Let the user choose a job, strategies and parameters, and show what is predicted."""
    linked = put_link("compare", OVER)
    if linked is not None:
        put_parameters(linked.get(OVER, ()))
    with refusals_shown():
        with st.sidebar:
            request = request_ui()
        chosen, asked = parameters_ui(request)
        keep_link("compare", query(request, chosen))
        if asked:
            start(request, chosen)
    sweep = st.session_state.get(_KEY)
    if sweep is not None:
        st.subheader(markdown_escaped(sweeps.title(request_words(sweep.request), sweep.axes)), anchor=False)
        sweep_ui(sweep)
    else:
        st.info("Compare predicts the strategies of the sidebar, for its job or over one or two parameters: batch, devices, bandwidth, ...")
    history_ui()


def query(request: JobRequest, chosen: Sequence[tuple[Parameter, str]]) -> dict[str, list[str]]:
    """The query of a link that opens this page with the same choices."""
    over = [f"{parameter.name}={''.join(written.split())}" for parameter, written in chosen]
    return query_of(request) | ({OVER: over} if over else {})


def put_parameters(texts: Sequence[str]) -> None:
    """Set the parameters to those of a link."""
    for number in range(2):
        name, _, values = (texts[number] if number < len(texts) else NOTHING).partition("=")
        st.session_state[_parameter_key(number)] = name
        if values:
            st.session_state[_values_key(number, name)] = values.replace(",", ", ")


def _parameter_key(number: int) -> str:
    return f"sweep parameter {number}"


def _values_key(number: int, name: str) -> str:
    return f"sweep values {number} {name}"


def parameters_ui(request: JobRequest) -> tuple[list[tuple[Parameter, str]], bool]:
    """The parameters to vary, at most two, each with the text of its values; and whether the user asks for the comparison."""
    chosen: list[tuple[Parameter, str]] = []
    offered = {parameter.name: parameter for parameter in parameters(request)}
    for number, column in enumerate(st.columns(2)):
        names = [NOTHING, *(name for name in offered if name not in {parameter.name for parameter, _ in chosen})]
        words = {name: name for name in names} | ({} if number else {NOTHING: "nothing: this job alone"})
        label = "and over" if number else "Compare over"
        name = select(column, label, names, _parameter_key(number), words=words.__getitem__)
        if name == NOTHING:
            break
        usual = ", ".join(f"{value:g}" for value in offered[name].usual)
        chosen.append((offered[name], text(column.text_input, f"Values of {name}", _values_key(number, name), usual)))
    return chosen, st.button("Compare", type="primary", icon=":material/play_arrow:")


def start(request: JobRequest, chosen: Sequence[tuple[Parameter, str]]) -> None:
    """Start a sweep in the background, in place of an earlier one. Raises SchedcastError for unusable values."""
    changed = tuple(parameter for parameter, _ in chosen)
    axes = tuple(Axis(parameter.name, parse_values(written, parameter)) for parameter, written in chosen)
    check_points(axes)
    if _KEY in st.session_state:
        st.session_state[_KEY].run.stop()
    run = BackgroundRun(points(axes), partial(outcomes_at, request, changed))
    st.session_state[_KEY] = Sweep(request, changed, axes, run)


def sweep_ui(sweep: Sweep) -> None:
    """Show the progress of a sweep, and its outcomes so far.

    While it runs, both are updated, the outcomes less often because they are slow to draw.
    """
    run, running = sweep.run, sweep.run.running
    if running:
        st.fragment(progress_ui, run_every=REFRESH_S)(sweep)
    elif run.stopped:
        st.warning(f"Stopped after {run.done} of {run.total} points.")
    if run.error:
        st.error(markdown_escaped(run.error))
    st.fragment(outcomes_ui, run_every=REDRAW_S if running else None)(sweep)
    if not running and not sweep.remembered:
        sweep.remembered = True
        if not sweep.axes:
            remember(words := request_words(sweep.request), run.results)
            pin(words)


def progress_ui(sweep: Sweep) -> None:
    """Show the progress of a running sweep, with a button that stops it."""
    run = sweep.run
    if not run.running:
        st.rerun()  # ends the refreshing, and draws the history
    left, right = st.columns([6, 1], vertical_alignment="center")
    left.progress(run.done / run.total, text=f"{run.done} of {run.total} points predicted")
    right.button("Stop", icon=":material/stop:", on_click=run.stop)


def outcomes_ui(sweep: Sweep) -> None:
    """Show the outcomes: what they say in words, the chart that suits the number of parameters, time against memory, and a table."""
    axes, batch, outcomes = sweep.axes, sweep.request.stated_batch, list(sweep.run.results)
    if not outcomes:
        return
    refused = {(each.strategy, each.refusal.words): None for each in outcomes if each.refusal}
    if not axes:
        for strategy, why in refused:
            st.warning(markdown_escaped(f"{strategy}: {why}"))
    blocks_ui([Sentences([sweeps.fastest_words(outcomes, axes)], listed=False)], "fastest")
    if len(axes) == 1:
        curves_ui(outcomes, axes[0], batch)
    elif len(axes) == 2:
        heat_ui(outcomes, axes, batch)
    blocks_ui(sweeps.front(outcomes, axes), "front")
    cells = sweeps.outcome_cells(outcomes, axes)
    formulas_ui(*formulas_of(cells[0]))
    if not sweep.run.running:
        pairs = zip(sweep.changed, axes, strict=True)
        written = [(parameter, ",".join(f"{value:g}" for value in axis.values)) for parameter, axis in pairs]
        job = request_words(sweep.request)
        files = [
            one_page(lambda: [sweeps.section(job, outcomes, axes, batch)]),
            Download("Table (CSV)", "comparison.csv", "text/csv", lambda: csv(cells)),
        ]
        share_ui(commands(sweep.request, axes, sweep.changed), query(sweep.request, written), files)


def curves_ui(outcomes: Sequence[Outcome], axis: Axis, batch: int) -> None:
    """Show curves over one parameter, and in words where a strategy starts or stops paying."""
    left, right = st.columns(2)
    measure = select(left, "Show", tuple(sweeps.LABELS), "sweep measure")
    rival = select(right, "Compare with", sweeps.rivals(outcomes), "sweep rival", words=strategy_name)
    blocks_ui(sweeps.over_one(outcomes, axis, measure, rival, batch), "curves")


def heat_ui(outcomes: Sequence[Outcome], axes: Sequence[Axis], batch: int) -> None:
    """Show a heat map over two parameters, of one strategy or of the fastest at each point."""
    left, right = st.columns(2)
    measure = select(left, "Show", tuple(sweeps.LABELS), "sweep measure")
    names = [FASTEST, *dict.fromkeys(each.strategy for each in outcomes)]
    shown = select(right, "Strategy", names, "sweep strategy", words=strategy_name)
    strategy = None if shown == FASTEST else shown
    blocks_ui(sweeps.over_two(outcomes, (axes[0], axes[1]), strategy, measure, batch), "heat")
