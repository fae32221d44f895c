"""`schedcast replay` in its own process, on a synthetic trace."""

import gzip
import json
from dataclasses import replace

import pytest

from simulator.replay.whatif.registry import rules
from tests.support.cli_process import start
from tests.support.small_traces import write_trace
from tests.support.training_traces import TrainingJob, write_ranks
from traces.documents.replay_result import ReplayResult
from traces.documents.timeline import Timeline
from ui.app.model import start_command

REPLAY = {
    "schema", "gpu_period_measured_s", "gpu_period_simulated_s", "error", "steps", "kernels", "streams", "unmatched_kernels",
    "exposed_communication_measured_s", "exposed_communication_simulated_s", "busy", "misplaced", "notes", "what_if",
    "diagnosis", "ladder", "bounds", "ladder_left_out", "stragglers", "median_step", "slow_steps",
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


def test_the_parts_of_a_step_and_the_ladder_are_in_the_document(schedcast, trace):
    done = schedcast.call("replay", trace, "--json")
    parts = {part["part"]: round(part["seconds"] * 1e6) for part in done.document["diagnosis"] if part["seconds"]}
    assert parts == {"compute": 700, "communication": 100, "synchronization": 200}
    assert sum(part["share"] for part in done.document["diagnosis"]) == pytest.approx(1.0)
    assert done.document["ladder"][0]["gain_s"] == pytest.approx(1e-4)
    assert sorted(bound["rule"] for bound in done.document["bounds"]) == ["host free", "network free", "optimizer=free"]
    assert done.document["ladder_left_out"] == []


def test_without_rules_it_diagnoses_and_ranks(schedcast, trace):
    done = schedcast.call("replay", trace, COLUMNS="200")
    assert (done.status, done.err) == (0, "")
    assert (
        done.out.splitlines()[0]
        == "Synchronizations cost 20.0 % of the median step: the host waits for the GPU, then the GPU for the host."
    )
    for message in (
        "Step time (GPU), median of 3 steps: 1.00 ms recorded, 1.00 ms replayed.",
        "Mean: 1.00 ms recorded, 1.00 ms replayed: 0.0 %.",
        "Where the time of the median step goes",
        "24 kernels on 2 streams over 4 steps.",
        "Communication not hidden takes 0.1",
        "idle after a synchronization or blocking copy",
        "host 2x faster",
        "no gain: host time between steps and",
        "the optimizer is already in its foreach form",
        "Bounds: what a host, a network or an optimizer that takes no time would gain",
        "The largest gain: ",
        " 2x faster (",
    ):
        assert message in done.out
    for old in ("period", "Exposed", "exposed", "Busiest", "stays on every"):
        assert old not in done.out


def test_rules_have_one_row_each_and_details_only_on_request(schedcast, trace):
    rules = ("--what-if", "host 2x faster", "--what-if", "kernel:/gemm/ 2x faster")
    done = schedcast.call("replay", trace, *rules, COLUMNS="200")
    assert (done.status, done.err) == (0, "")
    assert "With host 2x faster, kernel:/gemm/ 2x faster the mean step goes from 1.00 ms to 0.800 ms (a speed-up of 1.25x)." in done.out
    assert "ms after" in done.out
    details = ("waiting for the device does not scale", "Busiest streams", "cuda:0 stream 20", "ProfilerStep#3")
    assert not any(message in done.out for message in (*details, "Bounds"))
    detailed = schedcast.call("replay", trace, *rules, "--details", COLUMNS="200").out
    assert all(message in detailed for message in details)


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
    assert "no kernel matches 'attention', of 6 names in the recording; the largest are: ncclDevKernel_AllReduce_Sum_f32" in done.out
    assert "No change has an effect." in done.out


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
    assert "Rank 1 costs the others 0.200 ms of a step" in schedcast.call("replay", *ranks, COLUMNS="200").out


def test_the_app_takes_traces(schedcast, tmp_path):
    done = schedcast.call("ui", "--trace", tmp_path / "gone.json")
    assert done.status == 2
    assert "no trace at" in done.err
    assert start_command(8501, ["report"], traces=["a.json"])[-2:] == ["report", "--trace=a.json"]


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
