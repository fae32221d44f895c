"""The page of a recorded trace: uploads, the rule builder, and what rules changed."""

import sys

import pytest
import streamlit

from simulator.replay.whatif.registry import parse
from tests.support import app_pages
from tests.support.app_pages import app_at
from tests.support.canvas_payload import payloads_of_app
from tests.support.loader_traces import LOADER, write_loader_trace
from tests.support.small_traces import write_trace
from ui.app.uploads import offered_traces, safe_name
from ui.present.rules import OF_KERNELS, RULES, SPEEDS, rule_text


@pytest.fixture
def start(monkeypatch, tmp_path):
    streamlit.cache_resource.clear()

    def begin(*traces, at="trace"):
        monkeypatch.setattr(sys, "argv", ["app.py", *(f"--trace={trace}" for trace in traces)])
        return app_at(at).run()

    return begin


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "job.json.gz")


def words_of(app):
    return app_pages.words_of(app).replace("\u2060", "")


def choose(app, label, value):
    (box,) = [box for box in app.selectbox if box.label == label]
    box.set_value(value)
    return app.run()


def test_every_rule_that_the_page_builds_can_be_read():
    for form in RULES:
        rule, _ = parse(rule_text(form, "2x faster", "gemm|conv"))
        assert form.startswith(rule.name)
    assert {form for form in RULES if "REGEX" in parse(rule_text(form, "2x faster", "a"))[0].form} == OF_KERNELS
    for speed in SPEEDS:
        parse(f"host {speed}")


def test_a_search_is_counted_and_the_rule_is_asked(start, trace):
    app = choose(start(trace), "Kernels", "a search of my own")
    assert "Write what the kernels' names contain" in words_of(app)
    (box,) = [box for box in app.text_input if box.label.startswith("Search kernels")]
    box.set_value("wgrad").run()
    assert "8 kernels of the recording, 0.400 ms of each step's kernel time (40.0 %)." in words_of(app)
    (add,) = [button for button in app.button if button.label == "Add the change"]
    add.click().run()
    assert not app.exception
    assert app.text_area[0].value == "kernel:/wgrad/ 2x faster"
    assert "What if kernel:/wgrad/ 2x faster" in words_of(app)
    assert "8 tasks are shorter (-0.8 ms in all)" in words_of(app)
    box.set_value("nothing of this name").run()
    assert "no kernel matches" in app.error[0].value
    box.set_value("(").run()
    assert not app.exception
    assert "is not a regular expression" in words_of(app)


def test_recorded_and_what_if_are_on_one_axis_with_the_changes_marked(start, trace):
    app = start(trace)
    app.text_area[0].set_value("kernel:/gemm/ 2x faster\nremove:/nccl/")
    app.sidebar.button[0].click().run()
    assert not app.exception
    header = payloads_of_app(app)[0].header
    assert header["title"].startswith("recorded 1.00 ms, with kernel:/gemm/ 2x faster, remove:/nccl/ 0.")
    assert {"shorter", "removed"} <= {phase["name"] for phase in header["phases"]}


def test_the_picked_step_is_the_one_in_the_table_and_in_the_picture(start, tmp_path):
    app = start(write_loader_trace(tmp_path / "loader.json", (900.0, 300.0, 300.0, 1300.0, 300.0, 4300.0)))
    assert not app.exception
    (box,) = [box for box in app.selectbox if box.label.startswith("Step,")]
    assert box.options[3:] == ["ProfilerStep#3: 1.32 ms, slow", "ProfilerStep#4: 0.320 ms, the median", "ProfilerStep#5: 4.32 ms, slow"]
    assert "GPU waits for Python 68.8 % of the median step" in words_of(app)
    assert "2 of 5 steps are slow" in words_of(app)
    assert "of ProfilerStep#5" not in words_of(app)
    app = choose(app, box.label, 5)
    assert "The GPU waits for Python 97.7 % of ProfilerStep#5." in words_of(app)
    assert f"Meanwhile the host is in {LOADER} (4.21 ms)" in words_of(app)
    assert payloads_of_app(app)[0].header["title"] == "ProfilerStep#5: replayed 4.32 ms, recorded 4.32 ms"


def test_one_step_is_diagnosed_and_not_ranked(start, tmp_path):
    app = start(write_loader_trace(tmp_path / "one.json", (900.0,)))
    assert not app.exception
    assert "Only one step is recorded, so no changes are ranked" in words_of(app)
    assert "What would make it faster" not in words_of(app)


def test_diagnosis_comes_first_then_what_would_help_then_the_builder(start, trace):
    app = start(trace)
    subheaders = [header.value.replace("\\", "") for header in app.subheader]
    assert subheaders[1:] == ["What would make it faster", "Build a change"]


def test_a_trace_can_be_uploaded_and_a_damaged_one_is_one_line(start, trace):
    app = start()
    app.get("file_uploader")[0].upload("job.json.gz", trace.read_bytes(), "application/gzip").run()
    app.run()
    assert not app.exception
    assert app.sidebar.selectbox[0].options[0] == "job.json.gz"
    assert "Synchronizations cost" in words_of(app)
    app = start()
    assert app.sidebar.selectbox[0].options[0] == "job.json.gz", "a reload finds it"
    app.get("file_uploader")[0].upload("../../bad.json", b"{", "application/json").run()
    app.sidebar.selectbox[0].set_value((offered_traces()[1],)).run()
    assert not app.exception
    assert len(app.error) == 1


@pytest.mark.parametrize("content", [b"{", b"\x1f\x8b\x08 half a file", b'{"traceEvents": [{"ph": "X", "ts": "soon"}]}'])
def test_damaged_uploads_are_one_line_where_traces_are_compared(start, trace, content):
    app = start(at="differences")
    files = [("before.json.gz", trace.read_bytes(), "application/gzip"), ("after.json", content, "application/json")]
    app.get("file_uploader")[0].set_value(files).run()
    choose(app, "B", offered_traces()[1])
    assert not app.exception
    assert len(app.error) == 1
    assert "after.json" in app.error[0].value.replace("\\", "")


@pytest.mark.parametrize(
    ("name", "safe"), [("a b.json", "a-b.json"), ("../../x.json", "x.json"), ("c:\\y.json", "y.json"), ("..", "trace.json")]
)
def test_names_of_uploads_have_no_folders(name, safe):
    assert safe_name(name) == safe
