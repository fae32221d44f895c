"""The schedule editor with the real predictor: moves, their verdict and cost, text, and every strategy of the registry."""

import pytest

from simulator.plan.editor import order_csv
from simulator.plan.editor.order import Entry, Order
from simulator.strategies import registry as strategies
from tests.support.app_pages import opened_by_link
from tests.support.canvas_payload import payloads_of_app
from traces import units
from ui.app import page_parts as timeline_parts
from ui.app import runs
from ui.app.editor_history import Edit, History
from ui.app.pages.editor import arguments
from ui.app.runs import CommandRun
from ui.request import JobRequest

#: A model that takes no time, on a machine with devices for every strategy, with an update for each parameter.
JOB = {"model": "lenet5", "batch": "16", "machine": "p100x4", "optimizer": "momentum:for"}


@pytest.fixture
def page(monkeypatch, schedcast):
    """Opens the page by a link, with the profiles of the command line."""

    return lambda **query: opened_by_link("board", query, monkeypatch, schedcast.data)


def words(app) -> str:
    """What the boxes of the page say."""
    assert not app.exception
    return (
        "\n".join(box.value for kind in ("success", "info", "warning", "error") for box in app.get(kind))
        .replace("\\", "")
        .replace("\u2060", "")
    )


def move(app, task: str, lane: tuple[str, int], before: str | None = None, by: str = "Task"):
    """Move a task, or a group of tasks, with the boxes."""
    app.session_state["editor move"] = by
    app.run()
    app.selectbox(key=f"editor move {by}").set_value(task).run()
    app.selectbox(key="editor lane").set_value(lane).run()
    app.selectbox(key="editor before").set_value(before or "the end of the lane").run()
    return app.button(key="button move").click().run()


def step_ms(app) -> str:
    """The step time that the canvas shows."""
    return payloads_of_app(app)[0].header["title"]


def test_a_correct_move_says_what_it_costs(page):
    app = page(**JOB, strategy="baseline")
    own = step_ms(app)
    assert words(app) == f"{own.removeprefix('predicted ')}: baseline's own order."
    app = move(app, "classifier.4.bias/update", ("cuda:0", 1))
    assert "The schedule computes the same numbers." in words(app)
    assert "than baseline's own order" in words(app)
    assert [row["lane"] for row in payloads_of_app(app)[0].header["panels"][0]["rows"]] == ["stream 0", "stream 1", "stream 2"]
    app.button(key="button undo").click().run()
    assert step_ms(app) == own
    assert app.button(key="button undo").disabled
    app.button(key="button redo").click().run()
    assert "The schedule computes the same numbers." in words(app)


def test_a_move_that_breaks_a_hazard_keeps_the_last_correct_timeline(page):
    app = page(**JOB, strategy="baseline")
    own = step_ms(app)
    app = move(app, "classifier.4.weight/update", ("cuda:0", 0), before="classifier.4/mm.dX")
    assert "classifier.4.weight/update must come after classifier.4/mm.dX: it changes the parameter classifier.4.weight" in words(app)
    assert step_ms(app) == f"the last order that can run: {own}"
    app.button(key="button reset").click().run()
    assert step_ms(app) == own


def test_a_dragged_task_and_a_picked_one(page, monkeypatch):
    """The browser's events come with the next run of the page, once."""
    events = [{"moved": {"task": "classifier.4.bias/update", "device": "cuda:0", "lane": "stream 1", "before": None}}]
    monkeypatch.setattr(timeline_parts, "_canvas", lambda **call: events.pop() if events else {})
    app = page(**JOB, strategy="baseline")
    assert "1. classifier.4.bias/update to the end of stream 1 of cuda" in [
        line.value.partition(":")[0].replace("\\", "") for line in app.markdown
    ]
    events.append({"selected": {"task": "classifier.4/mm.dX"}})
    app.run()
    assert app.selectbox(key="editor move Task").value == "classifier.4/mm.dX"
    events.append({"moved": {"task": "gone", "device": "cuda:0", "lane": "stream 1", "before": None}})
    app.run()
    assert "'gone' is not a task of the run's last plan" in words(app)


def test_moves_turn_one_strategy_into_another(page, schedcast):
    """All updates of backward-fusion on a second stream are what its option update_stream makes of it: the same time, to the bit."""
    app = move(page(**JOB, strategy="backward-fusion"), "update", ("cuda:0", 1), by="Phase")
    job = [word for name, value in JOB.items() for word in (f"--{name}", value)]
    done = schedcast.call("predict", *job, "--strategy", "backward-fusion:update_stream=on", "--json")
    assert step_ms(app) == f"predicted {units.duration(done.document['step_s'])}"
    path = schedcast.folder / "moved.csv"
    path.write_text(app.text_area(key="editor text").value)
    followed = schedcast.call("predict", *job, "--strategy", "backward-fusion", "--schedule", path, "--json")
    assert followed.document["step_s"] == done.document["step_s"]


def test_the_text_is_edited_and_applied(page):
    app = page(**JOB, strategy="baseline")
    text = app.text_area(key="editor text").value
    update = next(line for line in text.splitlines(keepends=True) if line.startswith("classifier.4.bias/update"))
    app.text_area(key="editor text").set_value(text.replace(update, update.replace("cuda:0,0", "cuda:0,3"))).run()
    app.button(key="button apply").click().run()
    assert "The schedule computes the same numbers." in words(app)
    assert "classifier.4.bias/update,cuda:0,3,0" in app.text_area(key="editor text").value
    app.text_area(key="editor text").set_value(text.replace(update, "")).run()
    app.button(key="button apply").click().run()
    assert "it lacks 'classifier.4.bias/update'; list each task of the plan once" in words(app)
    app.text_area(key="editor text").set_value(text.replace("task,", "tisk,")).run()
    app.button(key="button apply").click().run()
    assert "expected the line task,device,stream,priority" in words(app)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", strategies.names())
def test_every_strategy_has_a_editor_or_says_why_not(page, name):
    """The job is that of the tests of What if, whose graphs are kept."""
    app = page(model="lenet5", batch="16", machine="p100x4", strategy=name)
    if app.error:
        assert app.error[0].value.replace("\\", "").startswith(f"{name}: ")
        return
    assert words(app).startswith(step_ms(app).removeprefix("predicted "))
    assert f": {name}'s own order." in words(app)
    text = app.text_area(key="editor text").value
    assert order_csv.write(order_csv.parse(text)) == text


def test_the_command_that_runs_a_editor(tmp_path):
    request = JobRequest("lenet5", 16, optimizer="adam", form="for", strategies=("baseline", "turbodl"), devices=2, settings=("alpha=2",))
    command = "validate --model lenet5 --batch 16 --optimizer adam:for --devices 2 --set alpha=2"
    command += " --strategy turbodl --quick --schedule b.csv --out d"
    assert " ".join(arguments(request, "turbodl", "b.csv", "d")) == command


@pytest.mark.thorough
def test_a_editor_runs_here(page, monkeypatch, schedcast, tmp_path):
    """The command is run by the warm process in the place of a new one."""

    class WarmRun(CommandRun):
        def __init__(self, arguments):
            self.arguments, self.lines, self.cancelled = tuple(arguments), [], False
            self.done = schedcast.call(*arguments)

        running, status = False, property(lambda self: self.done.status)

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(runs, "CommandRun", WarmRun)
    app = page(model="lenet5", batch="8", machine="this-cpu", optimizer="momentum:for", strategy="baseline")
    app = move(app, "classifier.4.bias/update", ("cpu:0", 1))
    order = app.text_area(key="editor text").value
    app.button(key="button run editor").click().run(timeout=120)
    assert "Done; the report is called" in words(app)
    assert "The schedule computes the same numbers." in words(app), "the run measured the costs anew, and the edits stay"
    (schedule,) = tmp_path.rglob("editor-lenet5-b8.csv")
    assert schedule.read_text() == order
    measured = payloads_of_app(app)[1].header
    assert [panel["kind"] for panel in measured["panels"]] == ["predicted", "measured"]
    assert all([row["lane"] for row in panel["rows"]] == ["stream 0", "stream 1"] for panel in measured["panels"])
    earlier = "This is the run of an earlier schedule:"
    assert earlier not in [caption.value for caption in app.caption]
    app.button(key="button undo").click().run()
    assert earlier in [caption.value for caption in app.caption]


def test_edits_survive_a_reload(page):
    app = page(**JOB, strategy=["turbodl", "baseline"], start="baseline")
    app = move(app, "classifier.4.bias/update", ("cuda:0", 1))
    edited, link = app.text_area(key="editor text").value, dict(app.query_params)
    reloaded = page(**link)
    assert reloaded.text_area(key="editor text").value == edited
    assert reloaded.selectbox(key="editor strategy").value == "baseline"
    assert not reloaded.button(key="button undo").disabled
    other = page(**{**link, "edits": "nosuch"})
    assert other.text_area(key="editor text").value != edited, "a session of its own begins with the strategy's own order"


@pytest.mark.parametrize("query", [{**JOB, "strategy": ["turbodl", "baseline"], "start": "baselin"}, {"start": "nosuch"}])
def test_a_link_to_an_unknown_start_is_not_answered_for_another_one(page, query):
    app = page(**query)
    expected = f"this link cannot be answered here: unknown strategy to start from {query['start']!r}"
    assert words(app).startswith(expected)
    assert words(app.run()).startswith(expected), "another run of the page does not answer either"
    assert not payloads_of_app(app)
    for name, value in JOB.items():
        app.session_state[name] = int(value) if name == "batch" else value.partition(":")[0]
    app.multiselect(key="strategies").set_value(["turbodl"]).run()
    assert not app.error
    assert app.query_params["start"] == "turbodl"


def test_an_order_that_breaks_a_hazard_cannot_be_run(page):
    app = page(model="lenet5", batch="8", machine="this-cpu", optimizer="momentum:for", strategy="baseline")
    assert not app.button(key="button run editor").disabled
    app = move(app, "classifier.4.weight/update", ("cpu:0", 0), before="classifier.4/mm.dX")
    assert app.button(key="button run editor").disabled


# Edits of the schedule editor: undone, redone and forgotten.


A, B, C = (Order((Entry(name, "d", 0, 0),)) for name in "abc")


def test_edits_are_undone_and_redone():
    history = History("job", A, 3.0)
    history.add(Edit("to b", B, 2.0))
    history.add(Edit("to c", C, None))
    assert (history.order, history.last_correct) == (C, B)
    history.undo()
    assert history.order == B
    history.redo()
    assert history.order == C
    history.reset()
    assert (history.order, history.last_correct) == (A, A)
    assert history.best == (2.0, 1), "also of edits that were undone"


def test_a_new_edit_forgets_those_undone():
    history = History("job", A, 3.0)
    history.add(Edit("to b", B, 2.0))
    history.undo()
    history.add(Edit("to c", C, 4.0))
    assert [edit.words for edit in history.edits] == ["to c"]
    assert history.best == (3.0, 0)
    history.add(Edit("to c again", C, 4.0))
    assert history.done == 1, "an order that stays as it is is no edit"
