"""Validations that the app runs: the command, its progress, cancelling, and the report that opens."""

import json
import os
import sys

import pytest
import streamlit

from tests.support import fake_jobs
from tests.support.app_pages import app_at, press
from tests.support.sample_runs import comparisons, sample_validation, write_sample_report
from tests.support.stand_in import answer_by
from traces.errors import SchedcastError
from ui.app import runs
from ui.app.links import arguments
from ui.app.model import reports_folder
from ui.app.runs import CommandRun
from ui.app.validation_run import free_folder
from ui.present.report import write_report
from ui.request import JobRequest
from ui.service.progress import LINES, PROGRESS, progress_bar

REQUEST = JobRequest(
    "lenet5", 64, 32, "sgd", "for", precision="fp32", devices=2, settings=("alpha=2",), strategies=("baseline", "turbodl")
)  # fmt: skip


class FakeRun(CommandRun):
    """A command that has said some lines, and ends when it is told to."""

    def __init__(self, arguments):
        self.arguments, self.lines, self.cancelled, self.ended = tuple(arguments), ["schedcast: takes about 10 seconds"], False, None
        self.title, self.done, self.total, self.text = "validating lenet5-b32", 12, 60, "mm"

    running = property(lambda self: self.ended is None)
    status = property(lambda self: self.ended)

    def cancel(self):
        self.cancelled, self.ended = True, 130


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    answer_by(fake_jobs, monkeypatch.setattr)
    monkeypatch.setattr("ui.app.runs.CommandRun", FakeRun)
    streamlit.cache_resource.clear()
    return app_at("validate").run


def words_of(app):
    kinds = ("markdown", "info", "error", "warning", "success", "subheader", "code")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def test_the_command_is_what_a_user_types(tmp_path):
    command = "validate --model lenet5 --batch 64 --image-size 32 --optimizer sgd:for --precision fp32 --devices 2 --set alpha=2"
    command += " --strategy baseline --strategy turbodl --quick --out DIR"
    assert " ".join(arguments(REQUEST, "--quick", "--out", "DIR", name="validate")) == command
    assert REQUEST.job().label == "lenet5-32px-b64"
    (tmp_path / "lenet5-32px-b64").mkdir()
    assert free_folder(tmp_path, REQUEST.job().label).name == "lenet5-32px-b64-2"


@pytest.mark.thorough
def test_a_validation_runs_and_its_report_opens(start):
    app = start()
    app.toggle[0].set_value(True).run()
    app = press(app, "Validate here")
    current = runs.latest("validate")
    assert "schedcast validate --model small-cnn --batch 32" in words_of(app)
    assert "takes about 10 seconds" in words_of(app)
    write_sample_report(current.folder)
    write_report(reports_folder() / "another", [sample_validation([run.result for run in comparisons()])])
    current.command.ended = 0
    app.run()
    assert not app.exception
    assert app.sidebar.selectbox[0].value == current.folder
    assert "Done; the report is called" in words_of(app)
    assert "Where the error is" in words_of(app)


def test_a_reload_and_another_tab_find_the_run_and_none_starts_a_second_one(start):
    app = start()
    app.toggle[0].set_value(True).run()
    press(app, "Validate here")
    other = start()
    assert "12 of 60" in other.get("progress")[0].proto.text
    assert [button.label for button in other.button if "Validate" in button.label] == []
    with pytest.raises(SchedcastError, match=r"schedcast demo was not started: schedcast validate .* is running; wait"):
        runs.start(["demo"], "editor", reports_folder())
    elsewhere = app_at("what-if").run()
    assert "12 of 60" in elsewhere.get("progress")[0].proto.text
    press(elsewhere, "Cancel")
    assert "Cancelled. No report was written." in words_of(other.run())


def test_a_cancelled_validation_leaves_no_report(start):
    app = start()
    app.toggle[0].set_value(True).run()
    app = press(press(app, "Validate here"), "Cancel")
    app.run()
    assert "Cancelled. No report was written." in words_of(app)
    assert not app.exception


def test_an_unusable_job_is_one_line(start):
    app = start()
    app.toggle[0].set_value(True).run()
    app = press(app, "Validate here")
    run = runs.latest("validate").command
    run.lines, run.ended = ["schedcast: batch 32 is not divisible by 5"], 2
    app.run()
    assert [error.value.replace("\\", "") for error in app.error] == ["schedcast: batch 32 is not divisible by 5"]
    app.text_input[0].set_value("alpha")
    assert "cannot read the option 'alpha'" in press(app, "Validate here").error[0].value.replace("\\", "")
    app.text_input[0].set_value("schedule=/etc/hostname")
    assert "schedule= names a file, which neither the app nor an agent may read" in press(app, "Validate here").error[0].value


@pytest.mark.thorough
def test_the_report_says_which_tasks_were_off_and_how_the_numbers_compare(start):
    compared = comparisons()
    write_report(reports_folder() / "kept", [sample_validation([run.result for run in compared])], compared)
    app = start()
    assert not app.exception
    titles = [json.loads(chart.proto.spec)["layout"]["title"]["text"] for chart in app.get("plotly_chart")]
    assert "Error by layer" in titles
    heads = [list(table.value.columns) for table in app.dataframe]
    assert any(head[0] == "task" and head[-1] == "likely cause" for head in heads)
    assert any(head[1] == "gradients differ by" for head in heads)


@pytest.mark.thorough
def test_a_reload_shows_the_same_strategy_and_a_missing_report_is_said(start, monkeypatch):
    compared = comparisons()
    write_report(reports_folder() / "kept", [sample_validation([run.result for run in compared])], compared)
    app = start()
    box = next(box for box in app.selectbox if box.label == "Strategy")
    box.set_value(0).run()
    reloaded = app_at("validate")
    reloaded.query_params.update(app.query_params)
    reloaded.run()
    assert next(box for box in reloaded.selectbox if box.label == "Strategy").value == 0
    missing = app_at("validate")
    missing.query_params["report"] = "gone"
    missing.run()
    assert "this link cannot be answered here: unknown report 'gone'" in words_of(missing)
    assert not missing.dataframe


def test_an_uploaded_report_is_shown_in_every_tab(start, tmp_path):
    runs_here = comparisons()
    document = sample_validation([run.result for run in runs_here]).model_dump_json().encode()
    app = start()
    app.get("file_uploader")[0].upload("validation.json", document, "application/json").run()
    assert not app.exception
    assert app.sidebar.selectbox[0].options == ["validation.json"]
    assert start().sidebar.selectbox[0].options == ["validation.json"]


def test_progress_of_a_command_that_is_read_is_in_lines(monkeypatch, capsys):
    monkeypatch.setenv(PROGRESS, LINES)
    with progress_bar("validating lenet5-b64") as report:
        report(12, 60, "mm")
    with progress_bar("validating lenet5-b64", quiet=True) as report:
        report(13, 60, "mm")
    line = capsys.readouterr().err
    assert line == "validating lenet5-b64: 12 of 60, mm\n"
    heard = FakeRun([])
    heard._hear(line.rstrip())
    heard._hear("schedcast: 3 of 4 speed-ups")
    assert (heard.title, heard.done, heard.total, heard.text) == ("validating lenet5-b64", 12, 60, "mm")
    assert heard.share == 0.2
    assert heard.mistake == "schedcast: 3 of 4 speed-ups"


def test_a_command_runs_in_a_process_of_its_own():
    run = CommandRun(["predict", "--model", "nonesuch", "--batch", "1"])
    run.reader.join(60)
    assert run.status == 2
    assert "nonesuch" in run.mistake
    assert run.command == "schedcast predict --model nonesuch --batch 1"


@pytest.mark.parametrize("ignores", [False, True])
def test_cancelling_ends_the_command_even_if_it_ignores_ctrl_c(monkeypatch, tmp_path, ignores):
    waits = "import signal, sys, time\n" + ("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignores else "")
    (tmp_path / "waits.py").write_text(f"{waits}print('x: 1 of 2, y', file=sys.stderr, flush=True)\ntime.sleep(60)\n")
    real = runs.subprocess.Popen
    monkeypatch.setattr(runs, "GRACE_S", 0.5)
    code = [sys.executable, str(tmp_path / "waits.py")]
    monkeypatch.setattr(runs.subprocess, "Popen", lambda command, **how: real(code, **how))
    run = CommandRun([])
    while not run.total:
        os.sched_yield()
    run.cancel()
    run.reader.join(30)
    assert not run.running
    assert run.status not in (None, 0)
