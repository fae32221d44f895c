"""The app's schedule board: a strategy's plan as lanes, whose tasks the user moves; it says what is still correct, and what it costs."""

from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from simulator.plan.board import order_csv
from simulator.plan.board.order import Order, OrderError
from traces import units
from traces.errors import SchedcastError, UnknownNameError
from ui.app.board_edits import dropped, edits_ui, move_ui, picked, spare_lanes, text_ui
from ui.app.board_history import EDITS, Edit, History, history_of, open_history
from ui.app.board_run import board_run_ui
from ui.app.links import command, query_of
from ui.app.request_form import put_link, request_ui, title
from ui.app.share_parts import Download, check_link, keep_link, picture, refuse_link, share_ui
from ui.app.state import select
from ui.app.timeline_parts import timelines_canvas
from ui.present.text import boards
from ui.present.text.labels import SCHEDULE, markdown_escaped
from ui.request import JobRequest
from ui.service import jobs
from ui.service.jobs import OnBoard

TITLE, ICON, ORDER = "Schedule board", ":material/view_timeline:", 25
ABOUT = (
    f"{SCHEDULE} Each lane below is a stream of a device. Drag a task to another place or lane, or move it with the boxes below. The board"
    " says at once whether the schedule still computes the same numbers, and what a step would take."
)
#: The name in the page's link of the strategy to start from.
START = "start"
#: The file that holds the order in the command line that the page shows.
FILE = "board.csv"


def page() -> None:
    """Show the controls in the sidebar, and the board of one of their strategies."""
    linked = put_link("board", START)
    try:
        with st.sidebar:
            request = request_ui()
        if linked is not None:
            put_start(linked, request)
        st.subheader(title(request), anchor=False)
        st.write(ABOUT)
        strategy = select(st, "Strategy to start from", request.strategies, "board strategy")
        keep_link("board", query_of(request) | {START: [strategy], EDITS: [open_history((linked or {}).get(EDITS, [""])[-1])]})
        with st.spinner("Predicting", show_time=True):
            started = jobs.on_board(request, strategy)
        board_ui(request, strategy, started)
    except SchedcastError as error:
        st.error(markdown_escaped(str(error)))


def put_start(linked: Mapping[str, Sequence[str]], request: JobRequest) -> None:
    """Choose the strategy to start from that a link names. Raises SchedcastError if it is not among the request's strategies."""
    named = linked.get(START, [""])[-1]
    if named in request.strategies:
        st.session_state["board strategy"] = named
    elif named:
        refuse_link(str(UnknownNameError("strategy to start from", named, request.strategies)))
        check_link(request)


def board_ui(request: JobRequest, strategy: str, started: OnBoard) -> None:
    """Show the board, what is said of its order, the ways to edit it, and the run. `started`: the strategy's own order."""
    board = started.board

    def step_s(order: Order) -> float | None:
        edited = jobs.on_board(request, strategy, order).edited
        return None if edited is None else edited.prediction.step_s

    history = history_of((request, strategy), board.own, started.own.prediction.step_s, step_s)

    def add(words: str, order: Order) -> None:
        history.add(Edit(words, order, step_s(order)))
        st.rerun()

    present = jobs.on_board(request, strategy, history.order)
    drawn = present if present.edited is not None else jobs.on_board(request, strategy, history.last_correct)
    verdict_ui(present, history, strategy)
    heading, spare = canvas_title(present, drawn), spare_lanes(history.order)
    done = timelines_canvas([drawn.edited.timeline], "board", heading, events=("selected",), editable=True, spare=spare)
    if done["selected"] is not None:
        picked(done["selected"]["task"])
    try:
        if done["moved"] is not None:
            dropped(board, history.order, done["moved"], add)
        edits_ui(history)
        move_ui(board, history.order, add)
    except OrderError as error:
        st.error(markdown_escaped(str(error)))
    text_ui(history, add)
    board_run_ui(request, strategy, history.order, can_run=present.edited is not None)
    own = query_of(request)
    share_ui(command(request, "--schedule", FILE), own, downloads(history.order, drawn, strategy))


def verdict_ui(present: OnBoard, history: History, strategy: str) -> None:
    """Say whether the order is correct and what it costs, or which hazards it breaks."""
    if present.edited is None:
        lines = "\n".join(f"- {markdown_escaped(line)}" for line in boards.fault_lines(present.faults))
        st.error(f"This order would compute other numbers, or cannot run:\n{lines}")
        return
    prediction = present.edited.prediction
    edited = history.order != history.own
    words = [boards.cost_words(prediction.step_s, history.own_s, strategy, edited)]
    if edited:
        words += ["The schedule computes the same numbers.", boards.best_words(prediction.step_s, *history.best)]
    if not prediction.fits:
        words.append("It does not fit in memory.")
    box = st.info if prediction.step_s == history.own_s else st.success if prediction.step_s < history.own_s else st.warning
    box(markdown_escaped(" ".join(words)))


def canvas_title(present: OnBoard, drawn: OnBoard) -> str | None:
    """The title of the timeline, if it is not that of the present order."""
    step = units.duration(drawn.edited.prediction.step_s)
    return None if present.edited is not None else f"the last order that can run: predicted {step}"


def downloads(order: Order, drawn: OnBoard, strategy: str) -> list[Download]:
    """The order as a file for --schedule, and the pictures of the timeline."""
    name, timeline = strategy.partition(":")[0], drawn.edited.timeline
    return [
        Download("Schedule (CSV)", FILE, "text/csv", lambda: order_csv.write(order).encode()),
        Download("Timeline (PNG)", f"{name}-board.png", "image/png", partial(picture, timeline, ".png")),
        Download("Timeline (SVG)", f"{name}-board.svg", "image/svg+xml", partial(picture, timeline, ".svg")),
    ]
