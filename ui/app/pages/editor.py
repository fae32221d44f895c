"""The app's schedule editor: a strategy's plan as lanes whose tasks the user moves by dragging, by widgets or as text, with undo.

It says whether the plan is still correct and what it costs, and runs it on this machine, with predicted above measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import streamlit as st

from simulator.machine.presets import THIS_CPU
from simulator.plan.editor import order_csv
from simulator.plan.editor.editor import Move, ScheduleEditor
from simulator.plan.editor.order import Entry, Order, OrderError
from simulator.plan.task import Task
from traces import units
from traces.documents.comparison import Comparison, Validation
from traces.errors import SchedcastError, UnknownNameError
from traces.files import write_atomic
from ui.app import links, runs
from ui.app.editor_history import EDITS, Edit, History, history_of, open_history
from ui.app.links import command, query_of
from ui.app.model import reports_folder
from ui.app.page_parts import timelines_canvas, timelines_ui
from ui.app.request_form import put_link, request_ui, title
from ui.app.runs import command_ui
from ui.app.share_parts import Download, check_link, keep_link, refuse_link, share_ui, timeline_svg
from ui.app.state import BUTTON, segments, select
from ui.app.validation_run import ended_ui, free_folder
from ui.present import edits, validations
from ui.present.edits import move_words
from ui.present.labels import SCHEDULE, markdown_escaped
from ui.present.report import read_report
from ui.request import JobRequest
from ui.service import jobs
from ui.service.jobs import Answer, OnBoard

#: The module of `ui.app.pages` that shows the runs.
PAGE = "editor"


def editor_run_ui(request: JobRequest, strategy: str, order: Order, can_run: bool) -> None:
    """Let the user run the order here. `can_run`: if not, the button is off."""
    if request.machine != THIS_CPU or request.scale:
        st.caption(f"To run the schedule here, choose the machine {THIS_CPU} as it is. Elsewhere, use the file of the download.")
        return
    current = runs.latest(PAGE)
    if current is not None and current.command.running:
        with st.container(border=True):
            st.fragment(command_ui, run_every=runs.REFRESH_S)(current.command)
        return
    help_text = (
        "Measures the costs of the tasks and the steps of this schedule and of the baseline on this machine, and compares the numbers."
    )
    if st.button("Run it here", icon=":material/play_arrow:", key=f"{BUTTON}run editor", disabled=not can_run, help=help_text):
        out = free_folder(reports_folder(), f"editor-{request.job().label}")
        schedule = write_atomic(out.with_suffix(".csv"), order_csv.write(order))
        try:
            runs.start(arguments(request, strategy, schedule, out), PAGE, out, (request, strategy, order))
        except SchedcastError as error:
            schedule.unlink()
            st.error(markdown_escaped(str(error)))
        else:
            st.rerun()
    if current is not None:
        if current.of != (request, strategy, order):
            st.caption("This is the run of an earlier schedule:")
        ended_ui(current)
        ran = compared(current.results)
        if ran is not None:
            validation, comparison = ran
            if validation.busy:
                st.error(markdown_escaped(validations.headline(validation)))
            st.write(markdown_escaped(" ".join(validations.result_words(validation, comparison.result))))
            timelines_ui("editor measured", comparison.predicted, comparison.measured)


def arguments(request: JobRequest, strategy: str, schedule: Path, out: Path) -> Sequence[str]:
    """The arguments of `schedcast` that validate a strategy in the order of a file, and write the report to `out`."""
    asked = replace(request, strategies=(strategy,))
    return links.arguments(asked, "--quick", "--schedule", str(schedule), "--out", str(out), name="validate")


def compared(folder: Path) -> tuple[Validation, Comparison] | None:
    """The validation in a report, with the schedule's predicted and measured timeline; None if it did not run."""
    if not (folder / "report.json").exists():
        return None
    report = read_report(folder)
    comparisons = report.comparisons[0]
    return next(((report.validations[0], each) for each in comparisons if "schedule" in each.result.options), None)


#: Adds an edit to the history: its words, and the order that it leads to.
Add = Callable[[str, Order], None]
#: The common property of tasks that move together.
_GROUPS: Mapping[str, Callable[[Task], str]] = {
    "Task": lambda task: task.name,
    "Layer": lambda task: task.layer,
    "Phase": lambda task: task.phase,
    "Action": lambda task: task.action,
}
_END = "the end of the lane"
_BY = "editor move"
_TEXT = "editor text"


def stream_of(lane: str) -> int | None:
    """The stream of a lane of a timeline: 1 of "stream 1"; None for another lane."""
    number = lane.removeprefix("stream ")
    return units.read_integer(number, 0)


def spare_lanes(order: Order) -> list[tuple[str, str]]:
    """(device, lane) of a stream of each device that no task uses yet."""
    return [(device, f"stream {_new_stream(order.entries, device)}") for device in dict.fromkeys(entry.device for entry in order.entries)]


def _new_stream(entries: Sequence[Entry], device: str) -> int:
    used = {entry.stream for entry in entries if entry.device == device}
    return next(stream for stream in count() if stream not in used)


def picked(task: str) -> None:
    """Choose the task that the user picked on the canvas in the boxes. Call this before they are drawn."""
    st.session_state[_BY], st.session_state[f"{_BY} Task"] = "Task", task


def dropped(editor: ScheduleEditor, order: Order, event: Mapping[str, str | None], add: Add) -> None:
    """Add the move of a task that was dragged on the canvas. Raises OrderError for a task that cannot be moved."""
    stream = stream_of(str(event["lane"]))
    if stream is None:
        raise OrderError(f"{event['lane']} of {event['device']} is no stream; drop the task on a stream")
    move = Move(str(event["task"]), str(event["device"]), stream, event["before"])
    add(move_words([move.task], move), editor.moved(order, move))


def move_ui(editor: ScheduleEditor, order: Order, add: Add) -> None:
    """Let the user choose tasks, a lane and a place in it: the way to move without a mouse, and to move many tasks at once."""
    tasks = {task.name: task for task in editor.plan.tasks}
    entries = order.entries[-len(tasks) :]
    by = segments("Move", [name for name, group in _GROUPS.items() if any(map(group, tasks.values()))], _BY, "Task")
    groups = _groups(by, entries, tasks)
    first, second, third, fourth = st.columns([8, 6, 8, 3], vertical_alignment="bottom")
    moved = groups[select(first, by, list(groups), f"{_BY} {by}")]
    lanes = _lanes(entries, moved[0].device)
    device, stream = select(second, "To", lanes, "editor lane", lanes[0], words=lambda lane: f"{lane[0]} stream {lane[1]}")
    others = [entry.task for entry in entries if entry.lane == (device, stream) and entry not in moved]
    before = select(third, "Before", [_END, *others], "editor before")
    if fourth.button("Move", key=f"{BUTTON}move", type="primary"):
        moves = [Move(entry.task, device, stream, None if before == _END else before) for entry in moved]
        for move in moves:
            order = editor.moved(order, move)
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


#: Links to the page have said so from the start.
URL = "board"
TITLE, ICON, ORDER = "Schedule editor", ":material/view_timeline:", 25
ABOUT = (
    f"{SCHEDULE} Each lane below is a stream of a device. Drag a task to another place or lane, or move it with the boxes below. The editor"
    " says at once whether the schedule still computes the same numbers, and what a step would take."
)
#: The name in the page's link of the strategy to start from.
START = "start"
#: The file with the order in the command line that the page shows.
FILE = "editor.csv"


def page() -> None:
    """Show the controls in the sidebar, and the editor of one of their strategies."""
    linked = put_link("editor", START)
    with st.sidebar:
        request = request_ui()
    if linked is not None:
        put_start(linked, request)
    st.subheader(title(request), anchor=False)
    st.write(ABOUT)
    strategy = select(st, "Strategy to start from", request.strategies, "editor strategy")
    keep_link("editor", query_of(request) | {START: [strategy], EDITS: [open_history((linked or {}).get(EDITS, [""])[-1])]})
    with st.spinner("Predicting", show_time=True):
        started = jobs.in_editor(request, strategy)
    editor_ui(request, strategy, started)


def put_start(linked: Mapping[str, Sequence[str]], request: JobRequest) -> None:
    """Choose the strategy to start from that a link names. Raises SchedcastError if it is not among the request's strategies."""
    named = linked.get(START, [""])[-1]
    if named in request.strategies:
        st.session_state["editor strategy"] = named
    elif named:
        refuse_link(str(UnknownNameError("strategy to start from", named, request.strategies)))
        check_link(request)


def editor_ui(request: JobRequest, strategy: str, started: OnBoard) -> None:
    """Show the editor, the assessment of its order, the ways to edit it, and the run. `started`: the strategy's own order."""
    editor = started.editor

    def step_s(order: Order) -> float | None:
        edited = jobs.in_editor(request, strategy, order).edited
        return None if edited is None else edited.prediction.step_s

    history = history_of((request, strategy), editor.own, started.own.prediction.step_s, step_s)

    def add(words: str, order: Order) -> None:
        history.add(Edit(words, order, step_s(order)))
        st.rerun()

    present = jobs.in_editor(request, strategy, history.order)
    drawn = present if present.edited is not None else jobs.in_editor(request, strategy, history.last_correct)
    verdict_ui(present, history, strategy)
    shown = drawn.edited
    assert shown is not None, "the last correct order has no faults"
    step = units.duration(shown.prediction.step_s)
    heading = None if drawn is present else f"the last order that can run: predicted {step}"
    spare = spare_lanes(history.order)
    done = timelines_canvas([shown.timeline], "editor", heading, events=("selected",), editable=True, spare=spare)
    if done["selected"] is not None:
        picked(done["selected"]["task"])
    try:
        if done["moved"] is not None:
            dropped(editor, history.order, done["moved"], add)
        edits_ui(history)
        move_ui(editor, history.order, add)
    except OrderError as error:
        st.error(markdown_escaped(str(error)))
    text_ui(history, add)
    editor_run_ui(request, strategy, history.order, can_run=present.edited is not None)
    own = query_of(request)
    share_ui(command(request, "--schedule", FILE), own, downloads(history.order, shown, strategy))


def verdict_ui(present: OnBoard, history: History, strategy: str) -> None:
    """Say whether the order is correct and what it costs, or which hazards it breaks."""
    if present.edited is None:
        lines = "\n".join(f"- {markdown_escaped(line)}" for line in edits.fault_lines(present.faults))
        st.error(f"This order would compute other numbers, or cannot run:\n{lines}")
        return
    prediction = present.edited.prediction
    edited = history.order != history.own
    words = [edits.cost_words(prediction.step_s, history.own_s, strategy, edited)]
    if edited:
        words += ["The schedule computes the same numbers.", edits.best_words(prediction.step_s, *history.best)]
    if not prediction.fits:
        words.append("It does not fit in memory.")
    box = st.info if prediction.step_s == history.own_s else st.success if prediction.step_s < history.own_s else st.warning
    box(markdown_escaped(" ".join(words)))


def downloads(order: Order, drawn: Answer, strategy: str) -> list[Download]:
    """The order as a file for --schedule, and the picture of the timeline."""
    name, timeline = strategy.partition(":")[0], drawn.timeline
    return [
        Download("Schedule (CSV)", FILE, "text/csv", lambda: order_csv.write(order).encode()),
        timeline_svg("Timeline", f"{name}-editor", lambda: timeline),
    ]
