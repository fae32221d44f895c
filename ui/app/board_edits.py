"""The parts of the schedule board with which the user edits the order: moves by widgets, undo and redo, and the order as text."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import streamlit as st

from simulator.plan.board import order_csv
from simulator.plan.board.board import Board, Move
from simulator.plan.board.order import Entry, Order, OrderError
from simulator.plan.task import Task
from ui.app.board_history import History
from ui.app.state import BUTTON, segments, select
from ui.present.text.boards import move_words
from ui.present.text.labels import markdown_escaped

#: Adds an edit to the history: its words, and the order that it leads to.
Add = Callable[[str, Order], None]
#: What several tasks that move together have in common.
_GROUPS: Mapping[str, Callable[[Task], str]] = {
    "Task": lambda task: task.name,
    "Layer": lambda task: task.layer,
    "Phase": lambda task: task.phase,
    "Action": lambda task: task.action,
}
_END = "the end of the lane"
_BY = "board move"
_TEXT = "board text"


def stream_of(lane: str) -> int | None:
    """The stream of a lane of a timeline: 1 of "stream 1"; None for another lane."""
    number = lane.removeprefix("stream ")
    return int(number) if number.isdecimal() else None


def spare_lanes(order: Order) -> list[tuple[str, str]]:
    """(device, lane) of a stream of each device that no task uses yet."""
    return [(device, f"stream {_new_stream(order.entries, device)}") for device in dict.fromkeys(entry.device for entry in order.entries)]


def _new_stream(entries: Sequence[Entry], device: str) -> int:
    used = {entry.stream for entry in entries if entry.device == device}
    return next(stream for stream in count() if stream not in used)


def picked(task: str) -> None:
    """Choose the task that the user picked on the canvas in the boxes. Call this before they are drawn."""
    st.session_state[_BY], st.session_state[f"{_BY} Task"] = "Task", task


def dropped(board: Board, order: Order, event: Mapping[str, str | None], add: Add) -> None:
    """Add the move of a task that was dragged on the canvas. Raises OrderError for a task that cannot be moved."""
    stream = stream_of(str(event["lane"]))
    if stream is None:
        raise OrderError(f"{event['lane']} of {event['device']} is no stream; drop the task on a stream")
    move = Move(str(event["task"]), str(event["device"]), stream, event["before"])
    add(move_words([move.task], move), board.moved(order, move))


def move_ui(board: Board, order: Order, add: Add) -> None:
    """Let the user choose tasks, a lane and a place in it: the way to move without a mouse, and to move many tasks at once."""
    tasks = {task.name: task for task in board.plan.tasks}
    entries = order.entries[-len(tasks) :]
    by = segments("Move", [name for name, group in _GROUPS.items() if any(map(group, tasks.values()))], _BY, "Task")
    groups = _groups(by, entries, tasks)
    first, second, third, fourth = st.columns([8, 6, 8, 3], vertical_alignment="bottom")
    moved = groups[select(first, by, list(groups), f"{_BY} {by}")]
    lanes = _lanes(entries, moved[0].device)
    device, stream = select(second, "To", lanes, "board lane", lanes[0], words=lambda lane: f"{lane[0]} stream {lane[1]}")
    others = [entry.task for entry in entries if entry.lane == (device, stream) and entry not in moved]
    before = select(third, "Before", [_END, *others], "board before")
    if fourth.button("Move", key=f"{BUTTON}move", type="primary"):
        moves = [Move(entry.task, device, stream, None if before == _END else before) for entry in moved]
        for move in moves:
            order = board.moved(order, move)
        add(move_words([entry.task for entry in moved], moves[0]), order)


def _groups(by: str, entries: Sequence[Entry], tasks: Mapping[str, Task]) -> dict[str, list[Entry]]:
    """The tasks that can move together, by what the user chooses. Tasks of several devices are as many groups."""
    several = by != "Task" and len({entry.device for entry in entries}) > 1
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        name = _GROUPS[by](tasks[entry.task])
        if name:
            groups.setdefault(f"{name} on {entry.device}" if several else name, []).append(entry)
    return groups


def _lanes(entries: Sequence[Entry], device: str) -> list[tuple[str, int]]:
    """The lanes to move to: those of the task's device first, with a new one, then those of other devices."""
    used = sorted({entry.lane for entry in entries})
    own = [lane for lane in used if lane[0] == device]
    return [*own, (device, _new_stream(entries, device)), *(lane for lane in used if lane[0] != device)]


def edits_ui(history: History) -> None:
    """Show the edits, with buttons that undo, redo and reset."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Undo", icon=":material/undo:", key=f"{BUTTON}undo", on_click=history.undo, disabled=not history.done)
        st.button("Redo", icon=":material/redo:", key=f"{BUTTON}redo", on_click=history.redo, disabled=history.done == len(history.edits))
        st.button("Reset", icon=":material/restart_alt:", key=f"{BUTTON}reset", on_click=history.reset, disabled=not history.done)
        st.caption(f"{history.done} edit{'' if history.done == 1 else 's'}")
    lines = [f"{number}. {markdown_escaped(edit.words)}" for number, edit in enumerate(history.edits[: history.done], 1)]
    if lines:
        with st.expander("Edits", expanded=len(lines) < 6):
            st.markdown("\n".join(lines))


def text_ui(history: History, add: Add) -> None:
    """Let the user edit the order as text. What is typed is used when the user applies it."""
    shown = order_csv.write(history.order)
    if st.session_state.get(f"{_TEXT} of") != shown:
        st.session_state[_TEXT] = st.session_state[f"{_TEXT} of"] = shown
    with st.expander("The schedule as text", icon=":material/edit_note:"):
        st.caption("A line for each task in issue order. `--schedule FILE.csv` of predict, run and validate takes the same text.")
        text = st.text_area("Schedule", key=_TEXT, height=320, label_visibility="collapsed")
        if st.button("Apply", key=f"{BUTTON}apply", disabled=text == shown):
            try:
                add("the text was edited", order_csv.parse(text))
            except OrderError as error:
                st.error(markdown_escaped(order_csv.line_words(error)))
