"""The page of a recorded trace: uploads, the rule builder, and what rules changed."""

import re
import sys

import pytest
import streamlit

from calibrate.identity import comparable_cpu, cpu_identity
from simulator.model.job import Job
from simulator.replay.whatif.registry import parse
from simulator.strategies import registry as strategies
from tests.support import app_pages
from tests.support.app_pages import app_at, opened_by_link
from tests.support.canvas_payload import payloads_of_app
from tests.support.loader_traces import LOADER, write_loader_trace
from tests.support.own_profiles import profile_with
from tests.support.small_traces import write_trace, write_unexplained_trace
from traces import units
from traces.documents.comparison import Prediction
from traces.documents.profile import Dispatch, Profile
from traces.documents.profile_files import default_path
from ui.app import runs
from ui.app.uploads import offered_traces, safe_name
from ui.present.predictions import prediction_label
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


def test_a_replay_that_does_not_explain_the_recording_leads(start, tmp_path):
    app = start(write_unexplained_trace(tmp_path / "trace.json"))
    assert not app.exception
    assert app.subheader[0].value.startswith("The replay does not explain the recording")
    assert "No changes are ranked: their gains could not be trusted." in words_of(app)
    assert "What would make it faster" not in words_of(app)
    app.text_area[0].set_value("host 2x faster")
    next(button for button in app.button if button.label == "Ask").click().run()
    assert "off the recording" in app.warning[0].value


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
    assert "GPU waits for the data loader 65.6 % of the median step" in words_of(app)
    assert "2 of 5 steps are slow" in words_of(app)
    assert "of ProfilerStep#5" not in words_of(app)
    app = choose(app, box.label, 5)
    assert "The GPU waits for the data loader 97.5 % of ProfilerStep#5, 4.21 of 4.32 ms." in words_of(app)
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


def test_a_change_says_what_it_would_change_before_it_is_added(start, tmp_path):
    app = choose(start(write_loader_trace(tmp_path / "loader.json", (900.0, 300.0, 300.0))), "Change", "loader workers=4")
    assert "3 batches are loaded in the recording, each 0.500 ms on the host in the mean: 4 workers deliver one every 0.125 ms" in words_of(
        app
    )
    app = choose(app, "Change", "network {speed}")
    assert [error.value.replace("\\", "") for error in app.error] == [
        "network 2x faster changes nothing: the recording has no collectives, as on one rank"
    ]


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


# The page What if with the real predictor: every strategy of the registry, and the numbers of the command line.


#: A model that takes no time, on a machine with devices for every strategy.
JOB = {"model": "lenet5", "batch": "16", "machine": "p100x4"}

#: What links name that is not here, and what it may have meant.
NOT_HERE = [("model", "lenet6", "lenet5"), ("machine", "h1000", "h100"), ("strategy", "turbo", "")]


@pytest.fixture
def page(monkeypatch, schedcast):
    """Opens the page by a link, with the profiles of the command line."""

    return lambda **query: opened_by_link("what-if", query, monkeypatch, schedcast.data)


@pytest.fixture
def little_measured(monkeypatch, tmp_path):
    """Opens the page by a link in a data folder of its own, where a fifth of the costs of lenet5, batch 16, was measured on this CPU."""
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    profile_with(0.2, Job("lenet5", 16)).save(default_path(cpu_identity().name))
    return lambda **query: opened_by_link("what-if", query, monkeypatch, tmp_path)


@pytest.mark.thorough
def test_every_strategy_is_predicted_or_says_why_not(page):
    app = page(**JOB, strategy=strategies.names())
    shown = set(app.dataframe[-1].value["strategy"])
    refused = {warning.value for warning in app.warning if warning.value not in shown}
    missing = {name for name in strategies.names() if name not in {re.split(r":| \(", label)[0] for label in shown}}
    assert all(any(text.startswith(name) for text in refused) for name in missing)
    assert len(shown) > 12
    for label in app.selectbox(key="looked at").options:
        app.selectbox(key="looked at").set_value(label).run()
        assert not app.exception
        assert payloads_of_app(app)[0].header["panels"][0]["rows"], f"{label} has a timeline"
    offered = {widget.key.split()[1] for kind in ("toggle", "selectbox", "number_input", "text_input") for widget in app.get(kind)
               if str(widget.key).startswith("option ")}  # fmt: skip
    assert offered == {name for name in strategies.names() if strategies.get(name).option_names}


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["turbodl:alpha=2", "1f1b:microbatches=2"])
def test_the_number_on_the_page_is_that_of_the_command_line(page, schedcast, strategy):
    words = [word for name, value in {**JOB, "scale": "memory=2"}.items() for word in (f"--{name}", value)]
    answer = schedcast.call("predict", *words, "--strategy", strategy, "--json")
    printed = Prediction.model_validate(answer.document)
    app = page(**JOB, strategy=strategy, scale="memory=2")
    app.selectbox(key="looked at").set_value(prediction_label(printed)).run()
    assert app.metric[0].value == units.duration(printed.step_s)
    assert app.metric[1].value == units.speedup(printed.against_pytorch)
    assert app.code[0].value.endswith(f"--scale memory=2 --strategy {strategy}")


@pytest.mark.thorough
def test_a_stored_profile_is_chosen_as_a_machine_is(page, schedcast, monkeypatch):
    """Two profiles of one CPU, one of which throttled, are two choices; each answer is the command line's with `--profile`."""
    folder = schedcast.data / "profiles"
    monkeypatch.setenv("SCHEDCAST_DATA", str(schedcast.data))
    for name, overhead_s in (("cool", 1e-5), ("hot", 1e-3)):
        identity = comparable_cpu().model_copy(update={"throttle": {"power": name == "hot"}})
        Profile(identity=identity, dispatch=Dispatch(task_overhead_s=overhead_s)).save(folder / f"{name}.json")
    shown = {}
    for name in ("cool", "hot"):
        app = page(model="lenet5", batch="16", strategy="baseline", machine=f"profile {name}.json")
        app.selectbox(key="looked at").set_value("baseline (one stream, our executor)").run()
        captions = " ".join(caption.value for caption in app.sidebar.caption)
        assert ("throttled" in captions) == (name == "hot")
        command = app.code[0].value.split()
        assert command[command.index("--profile") + 1] == str(folder / f"{name}.json")
        printed = Prediction.model_validate(schedcast.call(*command[1:], "--json").document)
        shown[name] = app.metric[0].value
        assert shown[name] == units.duration(printed.step_s)
    assert shown["cool"] != shown["hot"]


def test_the_page_opens_on_the_example_of_the_first_page_with_strategies_that_run(page):
    app = page()
    assert app.code[0].value.endswith("--model resnet18 --batch 32 --machine h100 --strategy backward-fusion --strategy turbodl")
    assert all("fits in memory" in box.value for box in app.warning), "a slower strategy may be one, a refused one not"
    assert not app.error


def test_other_pages_open_on_that_example_too(monkeypatch, schedcast):
    for address in ("compare", "search", "board"):
        app = opened_by_link(address, {}, monkeypatch, schedcast.data)
        assert (app.selectbox(key="model").value, app.selectbox(key="machine").value) == ("resnet18", "h100"), address


def test_where_little_was_measured_there_is_no_verdict_and_an_offer_to_measure(little_measured):
    app = little_measured(model="lenet5", batch="16", strategy=["backward-fusion", "turbodl"], machine="this-cpu")
    assert app.warning[0].value.startswith("No verdict")
    assert not app.success
    assert not any("probability" in caption.value for caption in app.caption)
    assert [button.label for button in app.button if "easure" in button.label] == ["Measure this job"]
    elsewhere = little_measured(**JOB, strategy=["backward-fusion", "turbodl"])
    assert not any("No verdict" in warning.value for warning in elsewhere.warning)
    assert not any(button.label == "Measure this job" for button in elsewhere.button)


def test_a_measurement_of_this_job_is_found_by_a_reload_and_by_other_pages(little_measured, monkeypatch):
    class Endless:
        """A command that runs for ever."""

        command, title, done, total, text, share, lines, mistake = "schedcast predict", "measuring", 1, 4, "mm", 0.25, [], ""
        running, status, cancelled = True, None, False

        def __init__(self, arguments):
            self.arguments = arguments

        def cancel(self):
            pass

    monkeypatch.setattr(runs, "CommandRun", Endless)
    query = {"model": "lenet5", "batch": "16", "strategy": "backward-fusion", "machine": "this-cpu"}
    little_measured(**query).button(key="button measure").click().run()
    assert runs.running().command.arguments[:3] == ["predict", "--model", "lenet5"]
    for reloaded in (little_measured(**query), app_at().run()):
        assert "1 of 4" in reloaded.get("progress")[0].proto.text
        assert not any(button.label == "Measure this job" for button in reloaded.button)


def test_another_strategy_leaves_the_other_answers_as_they_are(page, monkeypatch):
    from simulator.predict import forecast as planning

    planned, plan = [], planning.plan_of
    monkeypatch.setattr(planning, "plan_of", lambda job, text, *rest, **how: planned.append(text) or plan(job, text, *rest, **how))
    app = page(**JOB, strategy=["forward-fusion"], optimizer="adagrad:for")
    assert sorted(planned) == ["baseline", "forward-fusion", "pytorch", "pytorch-ddp", "pytorch-fsdp", "pytorch-graph"]
    planned.clear()
    app.session_state["strategies"] = ["forward-fusion", "backward-fusion"]
    app.run()
    assert planned == ["backward-fusion"]


def test_a_refusal_stands_in_place(page):
    app = page(model="lenet5", machine="h100", strategy="gpipe")
    assert any("gpipe" in warning.value and "2 devices" in warning.value for warning in app.warning)
    app = page(model="lenet5", machine="this-cpu", strategy="baseline", mode="graph")
    assert "--mode graph needs CUDA" in app.error[0].value
    assert app.selectbox(key="mode").value == "graph", "the controls stay"


MODEL = """
import torch


def make(batch_size=12):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), (torch.randn(batch_size, 3, 4),), torch.zeros(batch_size).long()
"""


def test_a_model_named_at_start_is_offered_first_and_read_again_when_its_file_changes(page, monkeypatch, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(MODEL)
    opened = page(machine="h100")
    assert not any("own.py" in name for name in opened.selectbox(key="model").options)
    monkeypatch.setattr(sys, "argv", ["app.py", f"--model={file}:make"])
    app = app_at("what-if")
    app.session_state["machine"] = "h100"
    app.run()
    assert not app.exception
    assert app.selectbox(key="model").value == f"{file}:make"
    first = peak_memory(app)
    file.write_text(MODEL.replace("Linear(12, 3)", "Linear(12, 4096)"))
    app.run()
    assert peak_memory(app) != first


def peak_memory(app):
    return next(metric.value for metric in app.metric if metric.label == "Peak allocated")


def test_a_change_shows_the_difference_and_plain_pytorch_stands_above(page):
    app = page(**JOB, strategy="turbodl")
    app.selectbox(key="looked at").set_value("turbodl").run()
    before = app.metric[0]
    assert before.delta == ""
    panels = payloads_of_app(app)[0].header["panels"]
    assert [panel["kind"] for panel in panels] == ["plain PyTorch, predicted", "turbodl, predicted"]
    app.select_slider(key="times launch").set_value(2.0).run()
    assert app.metric[0].delta.startswith("+")
    app.select_slider(key="times launch").set_value(1.0).run()
    assert app.metric[0].value == before.value
    assert app.metric[0].delta.startswith("-")


@pytest.mark.parametrize(("field", "name", "near"), NOT_HERE)
def test_a_link_to_what_is_not_here_is_not_answered_for_something_else(page, field, name, near):
    app = page(**{**JOB, "strategy": "turbodl", field: name})
    (error,) = app.error
    words = error.value.replace("\\", "")
    assert f"this link cannot be answered here: unknown {field} {name!r}" in words
    assert near in words
    assert not app.metric
    assert not app.run().metric, "another run of the page does not answer either"
    app.selectbox(key="model").set_value("lenet5").run()
    app.multiselect(key="strategies").set_value(["baseline"]).run()
    if field == "machine":  # the box shows it, so that no other machine is answered for
        assert app.error
        app.selectbox(key="machine").set_value("h100").run()
    assert not app.error
    assert app.metric
    assert app.query_params["model"] == "lenet5"


def test_no_link_makes_the_app_run_another_file(page, tmp_path):
    file = tmp_path / "other.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    app = page(model=f"{file}:make")
    assert app.selectbox(key="model").value == "resnet18"
    assert not (tmp_path / "ran").exists()
