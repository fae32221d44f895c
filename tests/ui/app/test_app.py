"""Every view of the app, opened without a browser."""

import json
import sys
import types
from dataclasses import replace

import pytest
import streamlit

from tests.support import fake_jobs
from tests.support.app_pages import app_at, go_to
from tests.support.canvas_payload import is_timeline, payloads_of_app
from tests.support.page_samples import result, two_lanes, validation
from tests.support.sample_runs import write_sample_report
from tests.support.sample_trainings import training
from tests.support.small_traces import write_trace
from tests.support.stand_in import answer_by
from tests.support.training_traces import TrainingJob, write_ranks
from traces.documents.comparison import Comparison
from traces.errors import SchedcastError
from ui.app import links
from ui.app import model as app_model
from ui.present import trainings
from ui.present.report import write_report
from ui.service import jobs


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts the app with arguments and with an empty data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    streamlit.cache_data.clear()
    streamlit.cache_resource.clear()

    def begin(*arguments, answers=fake_jobs, at="validate"):
        monkeypatch.setattr(sys, "argv", ["app.py", *map(str, arguments)])
        answer_by(answers, monkeypatch.setattr)
        return app_at(at).run()

    return begin


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_sample_report(tmp_path_factory.mktemp("reports") / "resnet50")


def text_of(app):
    kinds = ("markdown", "info", "error", "warning", "success", "subheader", "caption")
    return "\n".join(element.value for kind in kinds for element in app.get(kind))


def titles(app):
    """The titles of the charts and timelines on the page, from top to bottom, each in one line."""
    timelines = iter(payloads_of_app(app))
    drawn = [element for element in app.main if element.type == "plotly_chart" or is_timeline(element)]
    every = [next(timelines).header["title"] if is_timeline(e) else json.loads(e.proto.spec)["layout"]["title"]["text"] for e in drawn]
    return [title.replace("<br>", " ") for title in every]


def test_without_reports_it_says_how_to_make_one(start):
    app = start()
    assert not app.exception
    assert "schedcast validate" in text_of(app)


@pytest.mark.parametrize("at", ["", "validate", "board"])
def test_a_page_that_names_schedules_says_what_one_is(start, at):
    assert "A schedule says in which order the tasks of a step run" in text_of(start(answers=jobs, at=at))


def test_report_shows_charts_table_and_words(start, report):
    app = start(report)
    assert not app.exception
    assert titles(app)[:3] == [
        "predicted 51.3 ms, measured 52.4 ms: -2.0 %", "turbodl is 1.42x as fast as plain PyTorch", "Task time per phase",
    ]  # fmt: skip
    assert list(app.dataframe[0].value["strategy"]) == ["plain PyTorch", "baseline (one stream, our executor)", "turbodl", "1f1b", "gpipe"]
    assert "3 strategies ran." in text_of(app)
    assert "statistics per micro" in text_of(app)


def test_another_strategy_can_be_chosen(start, report):
    app = start(report)
    app.main.selectbox[0].set_value(1).run()
    assert not app.exception
    assert "predicted 28.0 ms, measured 28.7 ms: -2.4 %" in titles(app)


@pytest.mark.thorough
def test_reports_of_the_data_folder_are_found_and_several_jobs_offered(start):
    rows = result("baseline"), result("deepa")
    folder = app_model.reports_folder() / "kept"
    write_report(folder, [validation(row) for row in rows], [Comparison(two_lanes(), two_lanes("measured"), rows[1])])
    app = start()
    assert not app.exception
    assert app.selectbox[0].options == ["kept"]
    assert "holds no timelines" in text_of(app)
    app.selectbox[1].set_value(1).run()
    assert not app.exception
    assert "predicted 3.00 ms, measured 3.00 ms: 0.0 %" in titles(app)


def test_a_missing_or_damaged_report_is_one_message(start, tmp_path):
    app = start(tmp_path / "gone")
    assert not app.exception
    assert "no report at" in app.error[0].value
    (tmp_path / "validation.json").write_text("{")
    assert "not valid JSON" in start(tmp_path / "validation.json").error[0].value


def what_if(start, **state):
    """The page What if with some widgets set."""
    app = start(at="what-if")
    for key, value in state.items():
        app.session_state[key] = value
    app.run()
    assert not app.exception
    return app


def test_what_if_answers_at_once_and_explains(start):
    app = what_if(start, strategies=["turbodl", "gpipe"], **{"option turbodl alpha": "2"})
    assert titles(app) == [
        "turbodl:alpha=2 28.0 ms", "From the baseline to turbodl:alpha=2",
        "Predicted step time per strategy (speed-up over plain PyTorch)",
    ]  # fmt: skip
    assert "ms shorter than the baseline's" in text_of(app)
    assert "needs 2 devices" in app.warning[0].value
    assert [metric.value for metric in app.metric][:3] == ["28.0 ms", "-", "1.47x"]
    assert "90 %: 26.8 to 29.4 ms" in [caption.value for caption in app.caption]
    assert app.dataframe[-1].value["strategy"][0] == "turbodl:alpha=2"
    assert "The critical path has" in text_of(app)


def test_a_measured_step_is_compared_with_the_one_that_is_looked_at(start):
    app = what_if(start, strategies=["turbodl"])
    assert "A measured step" not in text_of(app)
    app.number_input(key="measured ms").set_value(56.0).run()
    assert not app.exception
    assert "A measured step of 56.0 ms is slower than expected" in text_of(app)
    assert "2.00x the predicted 28.0 ms" in text_of(app)


def test_a_moved_slider_is_answered_without_a_button(start):
    app = what_if(start, strategies=["turbodl"])
    assert [button.label for button in app.button] == ["Pin"]
    app.select_slider(key="batch slider").set_value(64).run()
    assert "batch 64" in app.subheader[0].value
    assert app.number_input(key="batch").value == 64
    app.select_slider(key="times memory").set_value(2.0).run()
    assert app.subheader[0].value.endswith("with memory=2")
    assert "200 GB/s (2x)" in app.select_slider(key="times memory").options
    app.select_slider(key="devices").set_value(2).run()
    assert "2 devices" in app.subheader[0].value
    assert not app.exception


def test_the_fastest_is_looked_at_until_another_is_chosen(start):
    app = what_if(start, strategies=["baseline"])
    assert app.selectbox(key="looked at").value == "baseline (one stream, our executor)"
    app.multiselect(key="strategies").set_value(["baseline", "turbodl"]).run()
    assert app.selectbox(key="looked at").value == "turbodl"
    app.selectbox(key="looked at").set_value("baseline (one stream, our executor)").run()
    app.select_slider(key="times memory").set_value(2.0).run()
    assert app.selectbox(key="looked at").value == "baseline (one stream, our executor)"


def test_the_machine_is_described_where_it_is_chosen(start):
    app = what_if(start, precision="bf16")
    captions = [caption.value.replace("\\", "") for caption in app.sidebar.caption]
    assert captions[:2] == ["132 SMs, 66.9 TFLOP/s (bf16)", ":material/info: The device throttled while it was measured: power."]


def test_a_link_reproduces_the_page_and_names_its_command(start):
    app = what_if(start, strategies=["turbodl"], batch=64, precision="bf16", **{"option turbodl alpha": "2", "times memory": 2.0})
    line = "schedcast predict --model small-cnn --batch 64 --optimizer sgd:foreach --precision bf16 --machine h200 --scale memory=2"
    assert app.code[0].value == f"{line} --strategy turbodl:alpha=2"
    query = dict(app.query_params)
    assert query["strategy"] == "turbodl:alpha=2"
    again = app_at("what-if")
    again.query_params.update(query)
    again.run()
    assert again.subheader[0].value == app.subheader[0].value
    assert again.selectbox(key="option turbodl alpha").value == "2"
    assert again.code[0].value == app.code[0].value


def test_what_was_predicted_is_pinned_side_by_side(start):
    app = what_if(start, strategies=["turbodl"])
    app.button(key="button pin").click().run()
    app.select_slider(key="batch slider").set_value(64).run()
    app.button(key="button pin").click().run()
    app.select_slider(key="batch slider").set_value(128).run()  # kept, and not pinned
    go_to(app, "compare").run()
    assert not app.exception
    assert [words.split(", ")[1] for words in app.dataframe[-1].value.columns[1:]] == ["batch 32", "batch 64"]
    assert [words.split(", ")[1] for words in app.multiselect(key="pinned").options] == ["batch 32", "batch 64", "batch 128"]


def test_only_another_batch_waits_for_the_next_click(start, monkeypatch):
    waits = []
    app = what_if(start)
    monkeypatch.setattr("ui.app.pages.what_if.time", types.SimpleNamespace(sleep=waits.append))
    app.select_slider(key="times memory").set_value(2.0).run()
    assert waits == []
    app.number_input(key="batch").set_value(33).run()
    assert len(waits) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", ["", "x", "-1", "1e999", "nan", "turbodl:alpha", "a\0b", "9" * 400, "[$]"])
def test_a_link_with_any_values_opens_the_page(start, value):
    start(at="what-if")
    app = app_at("what-if")
    app.query_params.update(dict.fromkeys(links.OPTIONS, value))
    app.run()
    assert not app.exception


def test_a_prediction_that_does_not_fit_is_red_and_has_no_step_time(start):
    app = what_if(start, batch=fake_jobs.TOO_LARGE, strategies=["turbodl"])
    assert "needs 20 GiB, 16 GiB there, 4 GiB too much" in app.error[0].value
    assert "Step time" not in [metric.label for metric in app.metric]
    kinds = [element.type for element in app.main]
    assert kinds.index("error") < kinds.index("plotly_chart"), kinds
    app.button[0].click().run()
    assert "The largest batch that fits is 3000. This batch would fit with --checkpoint full." in text_of(app)


def test_what_if_with_unusable_requests_shows_one_line(start):
    assert "not divisible" in what_if(start, batch=13).error[0].value
    app = what_if(start, strategies=[])
    assert "no strategy chosen" in app.error[0].value
    assert len(app.error) == 1


def test_the_controls_survive_a_look_at_another_page(start):
    app = what_if(start, batch=64, model="resnet50", strategies=["turbodl"])
    go_to(app, "validate").run()
    assert not app.multiselect
    go_to(app, "what-if").run()
    assert not app.exception
    assert (app.number_input(key="batch").value, app.selectbox(key="model").value) == (64, "resnet50")
    assert app.subheader[0].value == "resnet50, batch 64, sgd\\:\u2060foreach, fp32, on h200"
    assert "turbodl 28.0 ms" in titles(app)


@pytest.mark.thorough
def test_the_headline_of_a_report_is_colored_by_its_verdict(start, tmp_path):
    for number, (interval, box) in enumerate([((1.1, 1.3), "success"), ((0.99, 1.01), "info"), ((0.7, 0.9), "warning"), (None, "warning")]):
        row = result(against_pytorch=0.8, against_pytorch_interval=interval)
        write_report(tmp_path / str(number), [validation(row)])
        app = start(tmp_path / str(number))
        assert "plain PyTorch" in app.get(box)[0].value
        assert app.subheader[0].value == "small-cnn, batch 64, sgd, fp32, eager, on this-cpu"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "job.json.gz")


def open_replay(start, *arguments):
    return start(*arguments, at="trace")


def test_replay_without_a_trace_says_how_to_name_one(start):
    app = open_replay(start)
    assert not app.exception
    assert "schedcast ui --trace" in app.info[0].value


def test_replay_over_the_recording_and_what_if(start, trace):
    app = open_replay(start, f"--trace={trace}")
    assert not app.exception
    (title,) = titles(app)
    assert title.startswith("ProfilerStep#")
    assert title.endswith(": replayed 1.00 ms, recorded 1.00 ms")
    assert [metric.value for metric in app.metric][:2] == ["1.00 ms", "1.00 ms"]
    assert "Synchronizations cost 20.0 % of" in text_of(app)
    assert "24 kernels on 2 streams" in text_of(app)
    assert "remove:/REGEX/" in text_of(app)
    assert "(judged on others' pairs: not judged)" in text_of(app).replace("\\", "")
    assert "The largest gain" in text_of(app)
    assert list(app.dataframe[0].value["ms"]) == ["0.700", "0.100", "0.200", "1.00"]
    app.text_area[0].set_value("remove:nccl\n\nkernel:/gemm/ 2x faster\nfaster")
    app.sidebar.button[0].click().run()
    assert not app.exception
    assert [metric.value for metric in app.metric][4:] == ["1.00 ms", "0.800 ms", "1.25x"]
    assert len(titles(app)) == 2
    assert "all others keep their recorded durations" in text_of(app)
    answers = next(table.value for table in app.table if "together" in table.value.index)
    saved = [cell.replace("\\", "") for cell in answers["saves ms"]]
    assert [cell if cell == "-" else float(cell) for cell in saved] == [0.1, 0.1, "-", 0.2]


def test_the_pictures_of_a_replay_have_host_rows(start, trace):
    app = open_replay(start, f"--trace={trace}")
    rows = [row["label"] for panel in payloads_of_app(app)[0].header["panels"] for row in panel["rows"]]
    assert set(rows) == {"host thread 0", "host thread 1", "cuda:0 stream 7", "cuda:0 stream 20"}


def test_replay_with_unusable_rules_or_files_is_one_message(start, trace, tmp_path):
    app = open_replay(start, f"--trace={trace}")
    app.text_area[0].set_value("faster")
    app.sidebar.button[0].click().run()
    assert not app.exception
    assert "unknown what-if rule" in app.error[0].value
    (tmp_path / "bad.json").write_text("{")
    app = open_replay(start, f"--trace={tmp_path / 'bad.json'}", f"--trace={trace}")
    assert not app.exception
    assert len(app.error) == 1
    assert app.sidebar.selectbox[0].options == ["bad.json", "job.json.gz", "all 2, as ranks of one job"]


def open_compare(start, *traces):
    return start(*(f"--trace={trace}" for trace in traces), at="differences")


def test_two_traces_are_compared(start, trace, tmp_path):
    before, after = TrainingJob().save(tmp_path / "before.json"), TrainingJob(loader=500.0).save(tmp_path / "after.json")
    app = open_compare(start, before, after)
    assert not app.exception
    assert app.subheader[0].value.startswith("B is 0.40 ms slower than A (1.34 to 1.74 ms)")
    assert titles(app) == ["From A to B", "One step of A above one of B"]
    assert next(iter(app.dataframe[0].value["what makes the difference"])) == "Python between launches"
    app.sidebar.selectbox[0].set_value(after).run()
    assert app.subheader[0].value == r"B takes as long as A\: 1.74 ms."
    app = open_compare(start, before, trace)
    assert not app.exception
    assert "of their device time in common" in app.error[0].value


@pytest.mark.parametrize(("at", "query"), [("trace", {"trace": "lost.json"}), ("differences", {"a": "lost.json", "b": "before.json"})])
def test_a_link_to_a_trace_that_is_not_there_says_so(start, tmp_path, at, query):
    before, after = TrainingJob().save(tmp_path / "before.json"), TrainingJob(loader=500.0).save(tmp_path / "after.json")
    start(f"--trace={before}", f"--trace={after}", at=at)
    app = app_at(at)
    app.query_params.update(query)
    app.run()
    assert "this link cannot be answered here: unknown trace 'lost.json'" in app.error[0].value.replace("\\", "")
    assert not app.subheader
    assert dict(app.query_params).keys() == query.keys(), "the address stays"


def test_traces_of_one_name_are_told_apart_by_their_folders(start, tmp_path):
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
    traces = [TrainingJob().save(tmp_path / folder / "step.json") for folder in ("monday", "tuesday")]
    assert open_compare(start, *traces).sidebar.selectbox[0].options == ["monday/step.json", "tuesday/step.json"]


def test_comparing_needs_two_traces(start, trace):
    app = open_compare(start, trace)
    assert not app.exception
    assert "Two traces are needed" in app.info[0].value


def test_the_ranks_of_a_job_have_stragglers(start, tmp_path):
    job = TrainingJob()
    ranks = write_ranks(tmp_path, [job, replace(job, loader=400.0), job])
    app = open_replay(start, *(f"--trace={path}" for path in ranks))
    app.sidebar.selectbox[0].set_value(tuple(ranks)).run()
    assert not app.exception
    assert "rank 1 alone, a step would be 0.300 ms shorter" in text_of(app)


def test_settings():
    assert app_model.parse_settings(" microbatches=4, stages = 2,") == ("microbatches=4", "stages=2")
    assert app_model.parse_settings("") == ()
    with pytest.raises(SchedcastError):
        app_model.parse_settings("=4")


def test_a_training_is_shown_with_its_curves(start, tmp_path):
    trainings.write(tmp_path / "lenet", training(300, "baseline", "autograd"))
    app = start(tmp_path / "lenet")
    assert not app.exception
    assert titles(app) == ["Loss over iterations"]
    assert list(app.dataframe[0].value["trained by"]) == ["plain PyTorch", "baseline"]
    (tmp_path / "lenet" / "run.json").write_text("{")
    app = start(tmp_path / "lenet")
    assert not app.exception
    assert "is not valid JSON" in text_of(app)


#: The keys of the widgets of the page What if.
WIDGETS = (
    "model", "batch", "batch slider", "image size", "optimizer", "accumulate", "clip norm", "devices", "partition", "memory limit", "mode",
    "strategies", "link", "times memory", "option turbodl alpha", "option turbodl async", "option turbodl fuse", "looked at",
)  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("junk", [1.5, "text", "a\ud800", ["a"], {"a": 1}, True, -3, 2**60, None, b"\0"])
def test_what_no_widget_can_hold_is_replaced_by_its_default(start, trace, junk):
    for address, keys in (
        ("what-if", WIDGETS),
        ("trace", ("rules text",)),
        ("differences", ("diff a", "diff b")),
    ):
        start(f"--trace={trace}")
        app = app_at(address)
        for key in keys:
            app.session_state[key] = junk
        app.run()
        assert not app.exception
