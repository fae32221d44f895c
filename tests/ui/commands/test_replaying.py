"""`schedcast replay` in its own process, on a synthetic trace."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.model.job import Job
from simulator.predict.rule_records import record_of
from simulator.replay.whatif.registry import rules
from tests.support.cli_process import start
from tests.support.golden import check_golden
from tests.support.nsys_exports import write_export
from tests.support.page_samples import result, validation
from tests.support.plan_traces import Recorder
from tests.support.search_samples import search_result
from tests.support.small_traces import write_trace, write_unexplained_trace
from tests.support.training_traces import TrainingJob, write_ranks
from traces.documents.comparison import PYTORCH, PYTORCH_GRAPH
from traces.documents.profile import Profile
from traces.documents.replay_result import ReplayResult
from traces.documents.timeline import Timeline
from traces.formats.reading import load_trace
from ui.app.model import start_command

#: What `replay` prints, word by word.
GOLDEN = Path(__file__).parents[1] / "golden"
REPLAY = {
    "schema", "gpu_period_measured_s", "gpu_period_simulated_s", "error", "steps", "kernels", "streams", "unmatched_kernels",
    "exposed_communication_measured_s", "exposed_communication_simulated_s", "busy", "misplaced", "notes", "what_if",
    "diagnosis", "ladder", "bounds", "ladder_left_out", "stragglers", "roofline", "memory", "median_step", "slow_steps",
    "disagreement", "doubt", "timeline",
}  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "trace.json.gz")


def test_document(schedcast, trace):
    done = schedcast.call("replay", trace, "--json")
    assert (done.status, done.err) == (0, "")
    assert set(done.document) == REPLAY
    result = ReplayResult.model_validate({key: value for key, value in done.document.items() if key != "schema"})
    assert result.gpu_period_measured_s == pytest.approx(1e-3)
    assert result.gpu_period_simulated_s == pytest.approx(1e-3, rel=0.01)
    assert result.error == result.gpu_period_simulated_s / result.gpu_period_measured_s - 1
    assert [step.name for step in result.steps] == [f"ProfilerStep#{number}" for number in range(4)]
    assert (result.kernels, result.streams, result.unmatched_kernels) == (24, 2, 0)
    assert result.exposed_communication_measured_s == pytest.approx(1e-4)
    assert result.what_if is None


def test_what_if_tells_gain_and_assumptions(schedcast, trace):
    done = schedcast.call("replay", trace, "--what-if", "kernel:gemm*=0.5", "--what-if", "remove:nccl", "--json")
    assert (done.status, done.err) == (0, "")
    what_if = done.document["what_if"]
    assert what_if["rules"] == ["kernel:gemm*=0.5", "remove:nccl"]
    assert what_if["gpu_period_before_s"] == done.document["gpu_period_simulated_s"]
    assert what_if["gpu_period_before_s"] - what_if["gpu_period_after_s"] == pytest.approx(2e-4, rel=0.01)
    assert what_if["speedup"] == what_if["gpu_period_before_s"] / what_if["gpu_period_after_s"]
    assert len(what_if["assumptions"]) == 2


def test_an_export_of_nsight_systems_is_replayed_and_compared_like_a_trace(schedcast, trace, tmp_path):
    export = write_export(tmp_path / "report.bin", [load_trace(trace)])
    replayed = [schedcast.call("replay", path, "--json").document for path in (trace, export)]
    assert replayed[1]["gpu_period_simulated_s"] == pytest.approx(replayed[0]["gpu_period_simulated_s"])
    assert replayed[1]["ladder"][0]["rule"] == replayed[0]["ladder"][0]["rule"]
    assert schedcast.call("diff", trace, export, "--json").document["difference_s"] == pytest.approx(0.0, abs=1e-12)


def test_the_parts_of_a_step_and_the_ladder_are_in_the_document(schedcast, trace):
    done = schedcast.call("replay", trace, "--json")
    parts = {part["part"]: round(part["seconds"] * 1e6) for part in done.document["diagnosis"] if part["seconds"]}
    assert parts == {"compute": 700, "communication": 100, "synchronization": 200}
    assert sum(part["share"] for part in done.document["diagnosis"]) == pytest.approx(1.0)
    assert done.document["ladder"][0]["gain_s"] == pytest.approx(1e-4)
    assert sorted(bound["rule"] for bound in done.document["bounds"]) == ["host free", "loader free", "network free", "optimizer=free"]
    assert done.document["ladder_left_out"] == []
    records = {answer["rule"]: answer["record"] for answer in done.document["ladder"]}
    assert records["host 2x faster"] is None
    assert records["cuda-graph"] == record_of("cuda-graph").model_dump(mode="json")


def test_a_replay_that_does_not_explain_the_recording_leads_and_ranks_nothing(schedcast, tmp_path):
    trace = write_unexplained_trace(tmp_path / "trace.json")
    for name, asked in {"unexplained": (), "unexplained, with a change": ("--what-if", "host 2x faster")}.items():
        check_terminal(name, schedcast.call("replay", trace, *asked, COLUMNS="200").out)


def check_terminal(name: str, out: str) -> None:
    check_golden(out, GOLDEN / f"terminal-replay-{name.replace(', ', '-').replace(' ', '-')}.txt")


def test_without_rules_it_diagnoses_and_ranks(schedcast, trace):
    done = schedcast.call("replay", trace, COLUMNS="200")
    assert (done.status, done.err) == (0, "")
    check_terminal("ranked", done.out)


def test_rules_have_one_row_each_and_details_only_on_request(schedcast, trace):
    rules = ("--what-if", "host 2x faster", "--what-if", "kernel:/gemm/ 2x faster")
    done = schedcast.call("replay", trace, *rules, COLUMNS="200")
    assert (done.status, done.err) == (0, "")
    check_terminal("with changes", done.out)
    check_terminal("with changes, details", schedcast.call("replay", trace, *rules, "--details", COLUMNS="200").out)


def test_a_bad_rule_has_its_row_and_exit_status_1(schedcast, trace):
    done = schedcast.call("replay", trace, "--what-if", "faster", "--what-if", "host 2x faster", "--json")
    assert (done.status, done.err) == (1, "")
    bad, good = done.document["what_if"]["answers"]
    assert (bad["step_s"], bad["readable"]) == (None, False)
    assert "unknown what-if rule 'faster'" in bad["reason"]
    assert good["gain_s"] == pytest.approx(1e-4, rel=0.01)
    assert done.document["what_if"]["rules"] == ["host 2x faster"]


def test_a_rule_that_changes_nothing_says_why(schedcast, trace):
    done = schedcast.call("replay", trace, "--what-if", "kernel:/attention/ 2x faster", COLUMNS="300")
    assert (done.status, done.err) == (1, "")
    check_terminal("no effect", done.out)


def test_files(schedcast, trace, tmp_path):
    timeline, perfetto = tmp_path / "new" / "t.json.gz", tmp_path / "p.json.gz"
    done = schedcast.call("replay", trace, "--what-if", "cuda-graph", "--timeline", timeline, "--perfetto", perfetto)
    assert (done.status, done.err) == (0, "")
    assert any(span.task.startswith("graph launch") for span in Timeline.load(timeline).spans)
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"{run} {device}" for run in ("recorded", "replayed", "what if") for device in ("cuda:0", "host")}


def test_help_names_every_rule(schedcast):
    shown = " ".join(schedcast.call("replay", "--help", COLUMNS="400").out.split())
    assert all(rule.name in shown for rule in rules())


def test_replay_needs_no_torch(tmp_path, trace):
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    process = start(code, "replay", trace, "--what-if", "optimizer=fused", "--json", folder=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "False\n")
    assert json.loads(out)["what_if"]["speedup"] > 1


def test_ranks_of_one_job(schedcast, trace, tmp_path):
    other = write_trace(tmp_path / "rank1.json", rank=1)
    done = schedcast.call("replay", trace, other, "--what-if", "network*=2", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["streams"] == 4
    assert done.document["what_if"]["speedup"] > 1


def test_a_straggler_among_the_ranks_is_named(schedcast, tmp_path):
    job = TrainingJob()
    slow = replace(job, backward=(("wgrad_a", 300.0), ("wgrad_b", 150.0), ("wgrad_c", 300.0)))
    ranks = write_ranks(tmp_path, [job, slow, job])
    done = schedcast.call("replay", *ranks, "--json")
    costs = {(cost["rank"], cost["kind"]): round(cost["seconds"] * 1e6) for cost in done.document["stragglers"] if cost["seconds"] > 1e-9}
    assert costs == {(1, "kernels"): 200, (1, None): 200, (None, "kernels"): 200, (None, None): 200}
    check_terminal("ranks", schedcast.call("replay", *ranks, COLUMNS="200").out)


def test_the_app_takes_traces(schedcast, tmp_path):
    done = schedcast.call("ui", "--trace", tmp_path / "gone.json")
    assert done.status == 2
    assert "no trace at" in done.err
    assert start_command(8501, ["report"], traces=["a.json"])[-2:] == ["report", "--trace=a.json"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("nowhere.json",), "no trace at nowhere.json"),
        (("TRACE", "--what-if", "faster"), "unknown what-if rule 'faster'; expected one of: backward-fusion"),
        (("TRACE", "--what-if", "kernel:x*=much"), "expected kernel:/REGEX/ 2x faster"),
        (("TRACE", "--what-if", "remove:/(/"), "'(' is not a regular expression"),
        (("TRACE", "--what-if", "remove:/(.+)+!/"), "takes too long on the kernel names"),
        (("TRACE", *("--what-if", "cuda-graph") * 17), "got 17 what-if rules; expected at most 16"),
        (("TRACE", "--perfetto", "/proc/none/p.json"), "cannot write /proc/none/p.json"),
        (("TRACE", "--timeline", "/"), "cannot write /"),
    ],
)
def test_a_mistake_is_one_line(schedcast, trace, arguments, message):
    done = schedcast.call("replay", *(trace if argument == "TRACE" else argument for argument in arguments), "--json")
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_a_file_that_is_no_trace(schedcast, tmp_path):
    for content in (b"", b"{", b"[]", b'{"traceEvents": []}', b"\x1f\x8b\x08broken", b"not json"):
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        done = schedcast.call("replay", path)
        assert (done.status, done.out) == (2, ""), content
        assert len(done.err.splitlines()) == 1, content


# `schedcast calibrate --from-trace`: a trace becomes a profile, and every strategy is predicted with it.


JOB = ("--model", "lenet5", "--batch", 4, "--optimizer", "sgd")


@pytest.fixture(scope="module")
def job_trace(tmp_path_factory):
    recorder = Recorder(Job("lenet5", 4, optimizer="sgd")).steps(3)
    return recorder.trace.save(tmp_path_factory.mktemp("traces") / "trace.json.gz")


def test_the_outcome_is_told_and_the_profile_is_written(schedcast, job_trace, tmp_path):
    done = schedcast.call("calibrate", "--from-trace", job_trace, *JOB, "-o", tmp_path / "v100.json")
    assert (done.status, done.err) == (0, "")
    assert "100.0 % of the recorded kernel time belongs to the job (3 steps)." in done.out
    assert f"costs of Tesla V100-SXM2-16GB in {tmp_path / 'v100.json'}" in done.out
    profile = Profile.load(tmp_path / "v100.json")
    assert (profile.identity.gpu, profile.identity.sms, profile.loop is not None) == ("Tesla V100-SXM2-16GB", 80, True)


def test_document_of_a_profile(schedcast, job_trace, tmp_path):
    done = schedcast.call("calibrate", "--from-trace", job_trace, *JOB, "-o", tmp_path / "v100.json", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["schema"] == "schedcast.traced/1"
    assert done.document["matched_share"] == 1.0
    assert done.document["missing"] == {}
    assert done.document["predicted_step_s"] == pytest.approx(done.document["step_s"], rel=0.05)


def test_strategies_are_predicted_with_the_profile(schedcast, job_trace, tmp_path):
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", job_trace, *JOB, "-o", place)
    done = schedcast.call("predict", *JOB, "--profile", place, "--strategy", "turbodl", "--strategy", "backward-fusion", "--json")
    assert done.status == 0
    assert [p["strategy"] for p in done.document["predictions"]] == [PYTORCH, PYTORCH_GRAPH, "turbodl", "backward-fusion"]
    loop, graph, *schedules = (prediction["shares"]["measured"] for prediction in done.document["predictions"])
    assert loop == graph == 1.0
    assert all(0.9 < share < 1.0 for share in schedules), "the trace has one update of all layers, not those of single layers"


def test_a_second_trace_adds_to_the_profile(schedcast, job_trace, tmp_path):
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", job_trace, *JOB, "-o", place)
    first = set(Profile.load(place).costs)
    other = Recorder(Job("lenet5", 8, optimizer="sgd")).steps(2).trace.save(tmp_path / "other.json")
    done = schedcast.call("calibrate", "--from-trace", other, "--model", "lenet5", "--batch", 8, "--optimizer", "sgd", "-o", place)
    assert done.status == 0
    assert first < set(Profile.load(place).costs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("model", "batch", "arguments", "words"),
    [
        ("lenet5", 4, (), "say where to write it with -o FILE"),
        ("lenet5", 4, ("-o", "p.json", "--strategy", "baseline"), "drop --strategy"),
        ("lenet5", 8, ("-o", "p.json"), "another batch or image size than --batch 8"),
        ("alexnet_cifar", 4, ("-o", "p.json"), "is not a training step of alexnet_cifar"),
    ],
)
def test_an_unusable_request_is_one_line(schedcast, job_trace, tmp_path, model, batch, arguments, words):
    job = ("--model", model, "--batch", batch, "--optimizer", "sgd")
    done = schedcast.call("calibrate", "--from-trace", job_trace, *job, *arguments, cwd=tmp_path)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err
    assert not (tmp_path / "p.json").exists()


def test_a_profile_of_another_machine_is_kept(schedcast, job_trace, tmp_path):
    other = Recorder(Job("lenet5", 4, optimizer="sgd"))
    other.trace.gpus = [{**other.trace.gpus[0], "name": "Tesla V100-DGXS-32GB"}]
    place = tmp_path / "v100.json"
    schedcast.call("calibrate", "--from-trace", other.steps(2).trace.save(tmp_path / "other.json"), *JOB, "-o", place)
    before = place.read_bytes()
    done = schedcast.call("calibrate", "--from-trace", job_trace, *JOB, "-o", place)
    assert (done.status, place.read_bytes() == before) == (2, True)
    assert "is of another machine" in done.err


# `schedcast report`.


@pytest.fixture
def written(tmp_path):
    places = tmp_path / "validation.json", tmp_path / "search.json"
    validation(result()).save(places[0])
    search_result().save(places[1])
    return places


@pytest.mark.thorough
def test_one_page_of_a_validation_and_a_search(schedcast, written, tmp_path):
    page = tmp_path / "page.html"
    done = schedcast.call("report", *written, "-o", page, "--title", "For <you>")
    assert (done.status, done.err) == (0, f"report: {page}\n")
    first, second = done.out.splitlines()
    assert first.startswith("- small-cnn, batch 64")
    assert second.startswith("- Search: resnet50, batch 32")
    assert "<h1>For &lt;you&gt;</h1>" in page.read_text()


def test_document_of_a_report(schedcast, written, tmp_path):
    page = tmp_path / "page.html"
    done = schedcast.call("report", *written, "-o", page, "--json")
    assert done.document["schema"] == "schedcast.page/1"
    assert done.document["page"] == str(page)
    assert done.document["bytes"] == page.stat().st_size
    assert [section["title"].partition(",")[0] for section in done.document["sections"]] == ["small-cnn", "Search: resnet50"]


def test_an_input_is_never_overwritten(schedcast, written):
    done = schedcast.call("report", *written, "-o", written[0])
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "would overwrite" in done.err


def test_what_is_no_result_leaves_no_page(schedcast, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = schedcast.call("report", tmp_path / "notes.txt", "-o", tmp_path / "page.html")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "no result of Schedcast; expected" in done.err
    assert not (tmp_path / "page.html").exists()
