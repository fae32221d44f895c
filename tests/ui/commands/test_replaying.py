"""`stepcast replay` in its own process, on a synthetic trace."""

import gzip
import json

import pytest

from simulator.whatif.registry import rules
from tests.support.cli_process import start
from tests.support.small_traces import write_trace
from traces.replay_result import ReplayResult
from traces.timeline import Timeline
from ui.app.model import start_command

REPLAY = {
    "schema", "gpu_period_measured_s", "gpu_period_simulated_s", "error", "steps", "kernels", "streams", "unmatched_kernels",
    "exposed_communication_measured_s", "exposed_communication_simulated_s", "busy", "misplaced", "notes", "what_if",
}  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "trace.json.gz")


def test_document(stepcast, trace):
    done = stepcast.call("replay", trace, "--json")
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


def test_what_if_tells_gain_and_assumptions(stepcast, trace):
    done = stepcast.call("replay", trace, "--what-if", "kernel:gemm*=0.5", "--what-if", "remove:nccl", "--json")
    assert (done.status, done.err) == (0, "")
    what_if = done.document["what_if"]
    assert what_if["rules"] == ["kernel:gemm*=0.5", "remove:nccl"]
    assert what_if["gpu_period_before_s"] == done.document["gpu_period_simulated_s"]
    assert what_if["gpu_period_before_s"] - what_if["gpu_period_after_s"] == pytest.approx(2e-4, rel=0.01)
    assert what_if["speedup"] == what_if["gpu_period_before_s"] / what_if["gpu_period_after_s"]
    assert len(what_if["assumptions"]) == 2


def test_words_and_tables(stepcast, trace):
    done = stepcast.call("replay", trace, "--what-if", "host*=0.5")
    assert (done.status, done.err) == (0, "")
    for message in (
        "24 kernels on 2 streams over 4 steps.",
        "The GPU's period is 1.00 ms recorded",
        "Exposed communication, which no kernel hides, takes 0.100 ms recorded",
        "Busiest streams",
        "cuda:0 stream 20",
        "ProfilerStep#3",
        "With host*=0.5 the period goes from",
        "waiting for the device does not scale",
    ):
        assert message in done.out


def test_files(stepcast, trace, tmp_path):
    timeline, perfetto = tmp_path / "new" / "t.json.gz", tmp_path / "p.json.gz"
    done = stepcast.call("replay", trace, "--what-if", "cuda-graph", "--timeline", timeline, "--perfetto", perfetto)
    assert (done.status, done.err) == (0, "")
    assert any(span.task.startswith("graph launch") for span in Timeline.load(timeline).spans)
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"recorded cuda:0", "replayed cuda:0", "replayed host", "what if cuda:0", "what if host"}


def test_help_names_every_rule(stepcast):
    shown = " ".join(stepcast.call("replay", "--help", COLUMNS="400").out.split())
    assert all(rule.name in shown for rule in rules())


def test_replay_needs_no_torch(tmp_path, trace):
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    process = start(code, "replay", trace, "--what-if", "optimizer=fused", "--json", folder=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "False\n")
    assert json.loads(out)["what_if"]["speedup"] > 1


def test_ranks_of_one_job(stepcast, trace, tmp_path):
    other = write_trace(tmp_path / "rank1.json", rank=1)
    done = stepcast.call("replay", trace, other, "--what-if", "network*=2", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["streams"] == 4
    assert done.document["what_if"]["speedup"] > 1


def test_the_app_takes_traces(stepcast, tmp_path):
    done = stepcast.call("ui", "--trace", tmp_path / "gone.json")
    assert done.status == 2
    assert "no trace at" in done.err
    assert start_command(8501, ["report"], traces=["a.json"])[-2:] == ["report", "--trace=a.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument"),
        (("nowhere.json",), "no trace at nowhere.json"),
        (("TRACE", "--what-if", "faster"), "unknown what-if rule 'faster'; expected one of: backward-fusion"),
        (("TRACE", "--what-if", "kernel:nothing*=2"), "'nothing' matches none of the"),
        (("TRACE", "--what-if", "kernel:x*=much"), "expected kernel:REGEX*=FACTOR"),
        (("TRACE", "--perfetto", "/proc/none/p.json"), "cannot write /proc/none/p.json"),
        (("TRACE", "--timeline", "/"), "cannot write /"),
    ],
)
def test_a_mistake_is_one_line(stepcast, trace, arguments, message):
    done = stepcast.call("replay", *(trace if argument == "TRACE" else argument for argument in arguments), "--json")
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_a_file_that_is_no_trace(stepcast, tmp_path):
    for content in (b"", b"{", b"[]", b'{"traceEvents": []}', b"\x1f\x8b\x08broken", b"not json"):
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        done = stepcast.call("replay", path)
        assert (done.status, done.out) == (2, ""), content
        assert len(done.err.splitlines()) == 1, content
