"""`schedcast diff` in its own process."""

import gzip
import json
from dataclasses import replace

import pytest

from tests.support.canvas_payload import payloads_of_page
from tests.support.cli_process import start
from tests.support.page_samples import result
from tests.support.sample_runs import comparisons, sample_validation
from tests.support.training_traces import TrainingJob
from traces.documents.comparison import Change
from traces.documents.replay_result import Diff
from ui.commands.output import DIFF
from ui.present.report import write_report

JOB = TrainingJob()


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    slow = replace(JOB, loader=500.0, backward=(("wgrad_a", 100.0), ("wgrad_b", 350.0), ("wgrad_c", 300.0)))
    return {"A": JOB.save(folder / "before.json.gz"), "B": slow.save(folder / "after.json.gz")}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports") / "report"
    runs = comparisons()
    write_report(folder, [sample_validation([run.result for run in runs])], runs)
    return folder, [run.strategy for run in runs]


def test_the_sentence_and_the_table(schedcast, traces):
    done = schedcast.call("diff", traces["A"], traces["B"], COLUMNS="200")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == (
        "B is 0.60 ms slower than A (1.34 to 1.94 ms): Python between launches +0.40 (before gemm_a +0.40), kernels +0.20 (wgrad_b +0.20)."
    )
    assert "A: before.json.gz. B: after.json.gz." in done.out
    assert "100.0 % of the device time is work that both have." in done.out


def test_document(schedcast, traces):
    done = schedcast.call("diff", traces["A"], traces["B"], "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["schema"] == "schedcast.diff/1"
    diff = Diff.model_validate({key: value for key, value in done.document.items() if key != "schema"})
    assert sum(term.seconds for term in diff.terms) == pytest.approx(diff.difference_s, abs=1e-15)
    assert [term.part for term in diff.terms[:2]] == ["Python between launches", "kernels"]
    assert (diff.compared, diff.steps, diff.aligned_share) == ("traces", 4, pytest.approx(1.0))


@pytest.mark.thorough
def test_both_runs_on_one_axis_and_a_folder(schedcast, traces, tmp_path):
    perfetto, out = tmp_path / "both.json.gz", tmp_path / "out"
    for _ in range(2):  # a folder of an earlier difference is written again
        done = schedcast.call("diff", traces["A"], traces["B"], "--perfetto", perfetto, "--out", out)
        assert done.status == 0
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"A cuda:0", "A host", "B cuda:0", "B host"}
    assert {path.name for path in out.iterdir()} == {*DIFF.files}
    page = (out / "index.html").read_text()
    assert "B is 0.60 ms slower than A" in page
    (drawn,) = payloads_of_page(page)
    assert [len(drawn.bars(panel=panel)) > 0 for panel in (0, 1)] == [True, True]
    assert Diff.load(out / "diff.json").a == "before.json.gz"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("")
    done = schedcast.call("diff", traces["A"], traces["B"], "--out", tmp_path / "other")
    assert (done.status, len(done.err.splitlines())) == (2, 1)


def test_two_timelines(schedcast, traces, tmp_path):
    for name in "AB":
        assert schedcast.call("replay", traces[name], "--timeline", tmp_path / f"{name}.json").status == 0
    done = schedcast.call("diff", tmp_path / "A.json", tmp_path / "B.json", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["compared"] == "timelines"
    assert sum(term["seconds"] for term in done.document["terms"]) == pytest.approx(done.document["difference_s"], abs=1e-12)
    mixed = schedcast.call("diff", tmp_path / "A.json", traces["B"])
    assert (mixed.status, len(mixed.err.splitlines())) == (2, 1)
    assert "is a timeline and" in mixed.err


def test_predicted_against_measured(schedcast, report, tmp_path):
    folder, strategies = report
    done = schedcast.call("diff", f"{folder}:{strategies[-1]}", "--json", "--perfetto", tmp_path / "p.json")
    assert (done.status, done.err) == (0, "")
    assert done.document["compared"] == "validation"
    assert sum(term["seconds"] for term in done.document["terms"]) == pytest.approx(done.document["difference_s"], abs=1e-12)
    for name, message in (
        (str(folder), f"strategies; name one: {folder}:{strategies[0]}"),
        (f"{folder}:nothing", "unknown strategy 'nothing'; expected one of: "),
    ):
        done = schedcast.call("diff", name)
        assert (done.status, len(done.err.splitlines())) == (2, 1)
        assert message in done.err


def test_a_validation_alone_has_no_timelines(schedcast, tmp_path):
    row = result("turbodl", 0.010, 0.012).model_copy(update={"waterfall": (Change(part="forward", seconds=0.002),)})
    sample_validation([row]).save(tmp_path / "validation.json")
    done = schedcast.call("diff", tmp_path / "validation.json")
    assert done.status == 0
    assert done.out.splitlines()[0] == "measured is 2.0 ms slower than predicted (10.0 to 12.0 ms): forward +2.0."
    done = schedcast.call("diff", tmp_path / "validation.json", "--perfetto", tmp_path / "p.json")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "--perfetto needs timelines" in done.err


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("A",), "diff compares two"),
        (("A", "nowhere.json"), "no trace at nowhere.json"),
        (("nowhere",), "no report at nowhere"),
        (("A", "."), ". is a folder; expected two traces or two timelines"),
        (("A", "B", "--perfetto", "/proc/none/p.json"), "cannot write /proc/none/p.json"),
    ],
)
def test_a_mistake_is_one_line(schedcast, traces, arguments, message):
    done = schedcast.call("diff", *(traces.get(argument, argument) for argument in arguments), "--json")
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert message in done.err


@pytest.mark.sampled(5)
@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8b\x08broken", b'{"traceEvents": []}', b'{"schema": "schedcast.timeline/1"}'])
def test_a_file_that_is_no_trace(schedcast, traces, tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    for pair in ((tmp_path / "bad.json", traces["B"]), (traces["A"], tmp_path / "bad.json"), (tmp_path / "bad.json",) * 2):
        done = schedcast.call("diff", *pair)
        assert (done.status, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert "bad.json" in done.err


@pytest.mark.thorough
def test_diff_of_traces_needs_no_torch(tmp_path, traces):
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    process = start(code, "diff", traces["A"], traces["B"], "--json", folder=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "False\n")
    assert json.loads(out)["b"] == "after.json.gz"
