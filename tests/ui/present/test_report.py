"""Report folders are complete or absent, can be read back, and withstand hostile names and damage. Also their sentences and tables."""

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from tests.support.canvas_payload import payloads_of_page
from tests.support.golden import check_words
from tests.support.hostile import HOST, NAME
from tests.support.html_pages import figures_of_page, written_words
from tests.support.page_samples import prediction, result, skipped, two_lanes, validation
from tests.support.sample_runs import comparisons, sample_validation
from tests.support.sample_trainings import training
from tests.support.search_samples import search_result
from traces.documents.comparison import Comparison, Validation
from traces.documents.gpu_report import GpuReport
from traces.documents.replay_result import Diff, HostWait, Part, ReplayResult, ReplayStep, RuleAnswer, StepPart
from traces.errors import SchedcastError, UnusableFileError
from ui.commands.reporting import DOCUMENTS, sections_of
from ui.present import diffs, gpu_report, pictures, predictions, trainings, validations
from ui.present.page import html, page
from ui.present.report import read_report, write_report
from ui.present.terminal import show
from ui.present.timeline_canvas import page as timelines_page


@pytest.fixture(scope="module")
def runs():
    return comparisons()


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    place = tmp_path_factory.mktemp("reports") / "one"
    document = sample_validation([*(run.result for run in runs), skipped()])
    write_report(place, [document], runs, [None, None, {"schema": "schedcast.plan/1"}])
    return place


def text_of(table, width=200):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(console, table)
    console.file.close()
    return console.export_text()


def test_folder_has_every_part_and_nothing_else(folder):
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    parts = {"predicted.json.gz", "measured.json.gz", "perfetto.json.gz", "timelines.svg", "memory.svg"}
    expected = {f"{strategy}/{part}" for strategy in ("baseline", "turbodl", "1f1b") for part in parts}
    assert names == expected | {"1f1b/plan.json.gz", "index.html", "report.json", "summary.svg", "validation.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["one"], "no temporary folder stays"
    assert json.loads(gzip.decompress((folder / "1f1b/perfetto.json.gz").read_bytes()))["traceEvents"]


def test_page_has_what_it_shows_and_needs_neither_a_network_nor_its_folder(folder):
    page = written_words((folder / "index.html").read_text())
    links = re.findall(r'href="([^"]+)"', page)
    assert links
    assert all(link.startswith("data:application/json;base64,") or (folder / link).is_file() for link in links)
    assert 'src="' not in re.sub("<noscript>.*?</noscript>", "", page)
    assert "http" not in page
    assert "<script" not in page
    assert "predicted 51.3 ms, measured 52.4 ms: -2.0 %" in page


def test_page_holds_the_timelines_and_their_script_once(folder, runs):
    page = (folder / "index.html").read_text()
    drawn = payloads_of_page(page)
    assert [len(timelines.bars(panel=1)) for timelines in drawn] == [len(run.measured.window()) for run in runs]
    assert page.count("export default") == 0
    assert page.count(timelines_page.head()) == 1
    assert '<noscript><img src="1f1b/timelines.svg"' in page


def test_page_holds_the_charts_and_their_library_once(folder):
    page = (folder / "index.html").read_text()
    assert page.count('id="schedcast-plotly"') == 1
    titles = [chart["layout"]["title"]["text"] for chart in figures_of_page(page)]
    assert titles.count("turbodl is 1.42x as fast as plain PyTorch") == 1
    assert len(titles) == 1 + 2 * 3, "phases and errors of every strategy"
    assert '<noscript><img src="summary.svg"' in page


def test_a_page_has_no_script_that_it_does_not_need(tmp_path):
    assert timelines_page.head() not in write_report(tmp_path / "r", [validation(result())]).read_text()
    assert "<script" not in write_report(tmp_path / "s", [validation(skipped())]).read_text()


def test_reads_back_what_was_written(folder, runs):
    report = read_report(folder)
    assert report.validations == (Validation.load(folder / "validation.json"),)
    assert [c.strategy for c in report.comparisons[0]] == ["baseline", "turbodl", "1f1b"]
    assert report.comparisons[0][2].measured == runs[2].measured
    assert report.comparisons[0][2].result == runs[2].result
    alone = read_report(folder / "validation.json")
    assert alone.validations == report.validations
    assert alone.comparisons == ((),)


def test_a_folder_with_only_a_validation_is_opened_without_timelines(tmp_path):
    validation(result()).save(tmp_path / "validation.json")
    assert read_report(tmp_path).comparisons == ((),)


def test_a_comparison_needs_its_validation(tmp_path):
    with pytest.raises(ValueError, match="matches no row"):
        write_report(tmp_path / "r", [validation(skipped())], [Comparison(two_lanes(), two_lanes("measured"), result())])
    assert list(tmp_path.iterdir()) == []


def test_names_and_text_cannot_break_out(tmp_path):
    hostile = result("<script>../../etc", semantics={"<b>": "& more"})
    comparison = Comparison(two_lanes(), two_lanes("measured"), hostile)
    both = validation(hostile), validation(result("<script>../../etc", measured=0.05))
    second = Comparison(two_lanes(), two_lanes("measured"), both[1].results[0])
    write_report(tmp_path / "r", both, [comparison, second])
    page = written_words((tmp_path / "r/index.html").read_text())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    folders = sorted(path.name for path in (tmp_path / "r").iterdir() if path.is_dir())
    assert folders == ["script-..-..-etc-1", "script-..-..-etc-2"]
    assert len(read_report(tmp_path / "r").validations) == 2


def test_same_strategy_twice_gets_two_folders(tmp_path):
    rows = result(options={"alpha": 1}), result(options={"alpha": 2})
    write_report(tmp_path / "r", [validation(*rows)], [Comparison(two_lanes(), two_lanes("measured"), row) for row in rows])
    assert [c.result.options for c in read_report(tmp_path / "r").comparisons[0]] == [{"alpha": 1}, {"alpha": 2}]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SchedcastError("cannot write: no space left")

    monkeypatch.setattr(pictures, "write_picture", full)
    with pytest.raises(SchedcastError, match="no space"):
        write_report(tmp_path / "r", [validation(result())])
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_all_documents_are_written(tmp_path, monkeypatch):
    """The page of an earlier report goes, since it shows other documents."""
    place, row = tmp_path / "r", result()
    write_report(place, [validation(result("gpipe"))])
    monkeypatch.delitem(sys.modules, "ui.present.timeline_picture")
    monkeypatch.delattr("ui.present.timeline_picture")
    monkeypatch.setitem(sys.modules, "ui.present.timeline_picture", None)
    with pytest.raises(ModuleNotFoundError):
        write_report(place, [validation(row)], [Comparison(two_lanes(), two_lanes("measured"), row)], [{"a": 1}])
    assert not (place / "index.html").exists()
    assert read_report(place).comparisons[0][0].result == row
    assert {path.name for path in (place / row.strategy).iterdir()} >= {"predicted.json.gz", "measured.json.gz", "plan.json.gz"}


def test_an_earlier_report_and_other_files_survive_a_failure_and_are_replaced_by_success(tmp_path, monkeypatch):
    place = tmp_path / "r"
    write_report(place, [validation(result("gpipe"))])
    (place / "notes.txt").write_text("mine")
    with monkeypatch.context() as broken:
        broken.setattr(pictures, "write_picture", lambda *_, **__: (_ for _ in ()).throw(SchedcastError("no")))
        with pytest.raises(SchedcastError):
            write_report(place, [validation(result("deepa"))])
    assert read_report(place).validations[0].results[0].strategy == "gpipe"
    write_report(place, [validation(result("deepa"))])
    assert read_report(place).validations[0].results[0].strategy == "deepa"
    assert (place / "notes.txt").read_text() == "mine"


def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SchedcastError, match=r"cannot write .*; choose another place"):
        write_report(tmp_path / "file" / "r", [validation(result())])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(sections=3), "damaged"),
        (lambda d: d["sections"][0].update(file="../../secret.json"), "outside of itself"),
        (lambda d: d["sections"][0]["comparisons"][0].update(row=99), "row 99"),
        (lambda d: d["sections"][0]["comparisons"][0].update(folder="gone"), "no timeline"),
        (lambda d: d.update(schema="schedcast.report/2"), "newer"),
    ],
)
def test_damaged_reports_are_refused(tmp_path, damage, message):
    row = result()
    write_report(tmp_path / "r", [validation(row)], [Comparison(two_lanes(), two_lanes("measured"), row)])
    index = json.loads((tmp_path / "r/report.json").read_text())
    damage(index)
    (tmp_path / "r/report.json").write_text(json.dumps(index))
    with pytest.raises(UnusableFileError, match=message):
        read_report(tmp_path / "r")


def test_a_folder_without_a_report_is_refused(tmp_path):
    with pytest.raises(UnusableFileError, match="no report at"):
        read_report(tmp_path)


def test_validation_table(runs):
    rows = [run.result for run in runs]
    text = text_of(validations.validation_table([sample_validation([*rows, skipped()])]))
    assert re.search(r"plain PyTorch +- +40\.6 +- +1\.00x +- +1\.02x +-", text)
    assert re.search(r"1f1b +51\.3 +52\.4 +-2\.0 % +slower +0\.80x +0\.79x +2e-07", text)
    assert re.search(r" 49\.8 to 53\.1 +0\.77x", text)
    assert "gpipe skipped: needs 2 devices" in text
    assert "job" not in text
    assert "resnet50 fp32 eager" in text_of(validations.validation_table([sample_validation(rows)] * 2))


def test_plain_pytorch_is_the_first_row():
    cpu = {"kind": "cpu", "name": "this-cpu", "cores": 2}
    document = validation(result("baseline", 0.05, 0.05), result()).model_copy(update={"device": cpu})
    first, *others = validations.validation_cells(document)
    assert (first["strategy"], first["measured ms"], first["against PyTorch"]) == ("plain PyTorch (2 threads)", "30.0", "1.00x")
    assert first["over baseline, measured"] == "1.67x"
    assert [(row["strategy"], row["against PyTorch"]) for row in others] == [
        ("baseline (one stream, our executor)", "0.60x"),
        ("turbodl", "0.71x"),
    ]
    assert "plain PyTorch" in text_of(validations.validation_table([document]))
    (one, *_) = validations.validation_cells(document.model_copy(update={"reference_threads": 1}))
    assert one["strategy"] == "plain PyTorch (1 thread)", "what the document says counts more than the number of cores"
    alone = validations.validation_cells(document.model_copy(update={"reference_step_s": None}))
    assert [row["strategy"] for row in alone] == ["baseline (one stream, our executor)", "turbodl"]


def test_the_printed_error_is_that_of_the_times_beside_it():
    """Whatever the drift of the machine, and whatever the document says."""
    (_, row) = validations.validation_cells(validation(result(predicted=0.040, measured=0.050, drift=1.2, error=0.9)))
    assert (row["predicted ms"], row["measured ms"], row["error"]) == ("40.0", "50.0", "-20.0 %")
    assert "drift-corrected" not in row


def test_a_cell_names_the_interval_of_a_speedup_and_the_verdict():
    row = result(against_pytorch=1.16, against_pytorch_interval=(1.08, 1.22), measured_speedup=1.3, measured_speedup_interval=(0.9, 1.5))
    (_, cells) = validations.validation_cells(validation(row))
    assert (cells["against PyTorch"], cells["verdict"]) == ("1.16x (1.08 to 1.22)", "faster")
    assert cells["over baseline, measured"] == "1.30x (0.90 to 1.50)"
    narrow = text_of(validations.validation_table([validation(row)]), width=120)
    assert max(map(len, narrow.splitlines())) <= 120
    assert re.search(r" faster .*\n.* 1\.16x .*\n.* 1\.08 to 1\.22", narrow)


#: By verdict: an interval of the speed-up of 1.16x over plain PyTorch, and without intervals a step of plain PyTorch, in seconds.
INTERVALS = {"faster": (1.08, 1.22), "same": (0.99, 1.01), "slower": (0.80, 0.86), "cannot tell": (0.93, 1.30)}
PLAIN_STEPS = {"slower": 0.03, "same": 0.0421, "faster": 0.084}


def test_the_headline_says_whether_the_fastest_schedule_beats_plain_pytorch():
    """Documents without intervals, and those without plain PyTorch, have a headline, too."""
    base, judged, plain = result("baseline", 0.05, 0.05), {}, {}
    for verdict, interval in INTERVALS.items():
        judged[verdict] = validation(base, result(against_pytorch=1.16, against_pytorch_interval=interval), skipped())
        assert judged[verdict].headline_gain.verdict == verdict
    for verdict, seconds in PLAIN_STEPS.items():
        changes = {"reference_step_s": seconds, "device": {"kind": "cpu", "cores": 1}}
        plain[verdict] = validation(base, result(), skipped()).model_copy(update=changes)
    alone = validation(base, result()).model_copy(update={"reference_step_s": None})
    assert validations.headline(validation(skipped())) == ""
    check_words("headlines", {
        **{verdict: validations.headline(document) for verdict, document in judged.items()},
        "two jobs": validations.headlines([judged["faster"], judged["same"]]),
        **{f"{verdict}, without intervals": validations.short_headline(document) for verdict, document in plain.items()},
        "against the baseline": validations.headline(alone),
        "on a busy machine": validations.short_headline(validation(result(), busy_share=0.46)),
    })  # fmt: skip


def test_the_headline_is_the_first_line_of_the_page(tmp_path):
    slow = validation(result("baseline", 0.05, 0.05), result())
    page = write_report(tmp_path / "one", [slow]).read_text()
    headline, (first, *_) = validations.headline(slow), validations.validation_words(slow)
    assert page.index(headline) < page.index(first)
    both = write_report(tmp_path / "two", [slow, slow]).read_text()
    assert both.index(headline) < both.index("<h2")


def test_a_language_model_has_tokens_per_second_on_all_devices_and_on_each():
    eight = prediction(step_s=2.0, tokens=131072, devices_used=8, mfu=0.4)
    table = predictions.prediction_table([eight, prediction(step_s=16.0, tokens=131072, devices_used=1, fits=False)])
    assert [row["tokens/s"] for row in table.rows] == ["65,536\n8,192 each", "-"]
    assert (
        "A step has 131,072 tokens; at this rate, 1 billion take 4.24 hours (0.0827 to 0.0869), 34 GPU hours."
        in predictions.prediction_words(eight)
    )
    assert "tokens/s" not in predictions.prediction_table([prediction()]).rows[0]


def test_prediction_table_marks_what_does_not_fit():
    text = text_of(predictions.prediction_table([prediction(options={"config": "[red]n=2"}), prediction(fits=False)]))
    assert "config=[red]n=2" in text
    assert re.search(r" no\s", text)
    assert not text_of(predictions.prediction_table([]))


def test_costs_that_were_measured_with_the_steps_are_not_corrected_for_drift():
    rows = (row.model_copy(update={"calibration": "interleaved"}) for row in (result("baseline", 0.05, 0.05), result()))
    assert "fixed operation" not in " ".join(validations.validation_words(validation(*rows)))


def test_a_gpu_whose_kernels_add_in_any_order_is_named():
    """Then a difference from plain PyTorch is not the plan's."""
    repeated = result("baseline", reference_grad_error=3e-6, reference_param_error=1e-7)
    assert any("Plain PyTorch differs from itself by 3e-06" in line for line in validations.validation_words(validation(repeated)))
    assert not any("itself" in line for line in validations.validation_words(validation(result("baseline"))))


def test_a_job_is_named_with_its_image_size_and_devices():
    document = validation().model_copy(update={"image_size": 64, "device": {"name": "AMD EPYC", "devices": 2}})
    check_words("name of a job", {
        "with an image size, on two devices": validations.job_words(document),
        "as usual": validations.job_words(validation()),
    })  # fmt: skip


def test_results_in_words(runs):
    exact = result(max_grad_error=0.0, max_param_error=0.0)
    empty = replace(two_lanes(), spans=())
    check_words("words of a result", {
        "equal numbers": validations.result_words(validation(exact), exact),
        "no staleness": validations.result_words(validation(), result(semantics={"staleness": 0})),
        "batch norm by microbatch": validations.result_words(validation(), runs[2].result),
        "phases that differ": validations.phase_words(runs[2]),
        "no task": validations.phase_words(Comparison(empty, empty, exact)),
    })  # fmt: skip


def test_memory_is_compared_on_devices_that_were_measured():
    kept = result(predicted_peak_bytes_by_device={"gpu0": 99, "gpu1": 5}, measured_peak_bytes_by_device={"gpu0": 100})
    counted = result(predicted_peak_bytes_by_device={"cpu:0": 99}, measured_peak_bytes_by_device={"cpu:0": 100})
    assert (len(validations.memory_words(kept)), len(validations.memory_words(counted)), validations.memory_words(result())) == (1, 2, [])
    said = {
        "of two GPUs, one was measured": validations.memory_words(kept),
        "counted, one task at a time": validations.memory_words(counted),
    }
    check_words("words of memory", said)


def test_what_a_killed_process_left_is_removed_and_what_another_one_writes_is_not(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    left, writing = (tmp_path / f".rep.{number}.0123abcd" for number in (killed.pid, os.getpid()))
    others = [writing, tmp_path / f".reports.{killed.pid}.0123abcd"]
    for folder in (left, *others):
        folder.mkdir()
    write_report(tmp_path / "rep", [validation(result())], [])
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "rep"])


# The tables of a GPU report, from sample validations.


REPORT = GpuReport(
    date="2026-01-01", versions={"torch": "2.13"}, device={"name": "H100"}, identity={}, minutes=8.0, seconds=1.0, parts=(),
)  # fmt: skip


def rows_of(document):
    lines = gpu_report.readme(REPORT, {"part": document}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ") and "---" not in line]
    return [dict(zip(gpu_report.COLUMNS, row, strict=True)) for row in cells]


def test_plain_pytorch_is_the_first_row_and_every_row_is_compared_with_it():
    fast = result(against_pytorch=1.16, against_pytorch_interval=(1.08, 1.22), max_param_error=0.0)
    head, plain, row, refused = rows_of(validation(fast, skipped()))
    assert head == {name: name for name in gpu_report.COLUMNS}
    assert (plain["strategy"], plain["measured ms"], plain["against PyTorch"]) == ("plain PyTorch", "30.0", "1.00x")
    assert (row["against PyTorch"], row["verdict"], row["numbers"]) == ("1.16x (1.08 to 1.22)", "faster", "identical")
    assert (row["run-to-run noise"], refused["predicted ms (interval)"]) == ("1.0 %", "skipped: needs 2 devices")


def test_the_error_is_that_of_the_times_beside_it():
    _, _, row = rows_of(validation(result(predicted=0.040, measured=0.050, drift=1.2)))
    assert (row["predicted ms (interval)"], row["measured ms"], row["error"]) == ("40.0 (38.8 to 41.2)", "50.0", "-20.0 %")


# One page of what several commands wrote: it stands alone, and hostile or damaged input stays text or is refused.


def difference(name="before"):
    return Diff(compared="timelines", a=name, b="after", a_step_s=0.1, b_step_s=0.1, difference_s=0.0, terms=(), remainder_s=0.0, steps=1,
                aligned_share=1.0)  # fmt: skip


def write_everything(folder, name="turbodl"):
    """One result of every kind, with `name` wherever a name can be. Returns their places."""
    row = result(name)
    write_report(folder / "job", [validation(row)], [Comparison(two_lanes(), two_lanes("measured"), row)])
    diffs.write(folder / "diff", difference(name), {}, [two_lanes(), two_lanes("measured")])
    trainings.write(folder / "training", training(5, name, "autograd"))
    files = {
        "search.json": search_result(model=name).save,
        "prediction.json": prediction(options={"alpha": name}).save,
        "predictions.json.gz": lambda place: write_predictions(place, name),
        "timeline.json.gz": two_lanes().save,
        "replay.json": recorded(name).save,
    }
    for file, save in files.items():
        save(folder / file)
    return [folder / "job", folder / "diff", folder / "training", *(folder / file for file in files)]


def recorded(name):
    parts = (StepPart(part=Part.COMPUTE, seconds=0.02, share=0.5), StepPart(part=Part.LOADER, seconds=0.02, share=0.5))
    step = ReplayStep(name=name, measured_s=0.04, simulated_s=0.04, parts=parts, waits=(HostWait(label=name, seconds=0.02),))
    answer = RuleAnswer(rule=name, about=name, step_s=0.03, gain_s=0.01, speedup=4 / 3)
    return ReplayResult(
        gpu_period_measured_s=0.04, gpu_period_simulated_s=0.04, error=0.0, steps=(step,), kernels=3, streams=1, unmatched_kernels=0,
        exposed_communication_measured_s=0.0, exposed_communication_simulated_s=0.0, ladder=(answer,), timeline=two_lanes("recorded"),
    )  # fmt: skip


def test_a_replay_draws_its_median_step_and_ranks_the_changes(tmp_path):
    (section,) = sections_of(recorded("ProfilerStep#3").save(tmp_path / "replay.json"))
    assert section.summary == "The GPU waits for the data loader 50.0 % of the step, 20.0 of 40.0 ms."
    assert "schedcast-payload" in html(section)
    assert {"Where the time of the step goes", "Changes, each alone", "Steps"} == set(re.findall("<h3>(.*)</h3>", html(section)))


def write_predictions(place, name):
    placed = {"model": name, "batch": 32, "machine": "h100"}
    document = {"schema": "schedcast.predictions/1", "predictions": [prediction().model_dump(mode="json") | placed],
                "refused": [placed | {"strategy": name, "why": name}]}  # fmt: skip
    place.write_bytes(gzip.compress(json.dumps(document).encode()))


def test_one_page_of_everything_stands_alone(tmp_path):
    places = write_everything(tmp_path)
    sections = [section for place in places for section in sections_of(place)]
    assert len(sections) == len(places)
    text = page("For a colleague", sections)
    words = written_words(text)
    assert all(f'<a href="#{number}">' in words for number in range(1, len(sections) + 1))
    assert "http" not in words
    assert 'src="' not in words
    assert text.count('id="schedcast-plotly"') == 1
    titles = [figure["layout"]["title"]["text"] for figure in figures_of_page(text)]
    assert {"Step time and peak allocated memory of every plan", "Task time per phase", "From A to B"} <= set(titles)


@pytest.mark.thorough
def test_every_table_says_how_its_quantities_are_computed(tmp_path):
    for place in write_everything(tmp_path):
        (section,) = sections_of(place)
        assert "<table>" not in html(section) or "How is this computed?" in html(section)


def test_names_stay_text(tmp_path):
    text = written_words(page(NAME, [section for place in write_everything(tmp_path, NAME) for section in sections_of(place)]))
    assert f"&lt;img src=&#34;http://{HOST}/j.png&#34;&gt;" in text
    assert "<img" not in text
    assert f'"http://{HOST}' not in text


def test_a_folder_without_the_steps_of_an_earlier_difference_draws_none(tmp_path):
    diffs.write(tmp_path, difference(), {}, [two_lanes(), two_lanes()])
    diffs.write(tmp_path, difference(), {})
    (section,) = sections_of(tmp_path)
    assert "schedcast-payload" not in html(section)


def damaged_places():
    yield "empty.json", "", "no result of Schedcast"
    yield "trace.json", '{"traceEvents": []}', "no result of Schedcast"
    yield "list.json", "[]", "no result of Schedcast"
    for schema in DOCUMENTS:
        yield f"{schema}.json", f'{{"schema": "{schema}/1"}}', "damaged"
        yield f"{schema}.json", f'{{"schema": "{schema}/99"}}', "newer"


@pytest.mark.parametrize(("name", "content", "message"), list(damaged_places()))
def test_what_is_no_result_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UnusableFileError, match=message):
        sections_of(tmp_path / name)


@pytest.mark.parametrize("place", ["nothing", "a\0b", "."])
def test_a_place_without_a_result_is_refused(tmp_path, place):
    with pytest.raises(UnusableFileError, match=r"no result at|no report at"):
        sections_of(tmp_path / place)


def test_a_terminal_shows_what_was_predicted_and_measured(capsys):
    refused = skipped().model_copy(update={"status": "skipped: needs [2] devices"})
    console = Console(width=120)
    show(console, gpu_report.console_table("part", validation(result(predicted=0.040, measured=0.050, max_param_error=0.0), refused)))
    out = capsys.readouterr().out
    for head in ("job", "mode", "schedule", "predicted", "measured", "error", "numbers"):
        assert head in out
    for text in ("40.0", "38.8 to 41.2", "50.0", "-20.0 %", "identical", "needs [2] devices", "plain PyTorch"):
        assert text in out
