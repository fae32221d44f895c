"""Every command, run in its own process: documents go to standard output, everything else to standard error."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.placement import Placement
from simulator.machine.scaled import scale_of
from simulator.model.job import Job
from tests.support.cli_process import environment, start
from tests.support.page_samples import PREDICTION, RESULT, VALIDATION
from tests.support.places import ROOT, SUPPORT
from traces.documents.collectives import CollectiveLaw, LawPiece
from traces.documents.comparison import Prediction, Validation
from traces.documents.profile import Profile
from traces.documents.timeline import Timeline
from traces.documents.training import TrainingRun
from traces.errors import SchedcastError
from ui.request import DECLARED, JobRequest

TINY = SUPPORT / "user_models" / "tied_cnn.py"
JOB = ("--model", "lenet5", "--batch", 4)
COMMANDS = (
    "predict", "search", "replay", "diff", "demo", "calibrate", "run", "validate", "gpu-report", "reproduce", "judge", "report", "ui",
    "mcp", "models", "strategies", "machines", "profiles",
)  # fmt: skip
STRATEGIES = ("baseline", "backward-fusion", "forward-fusion", "turbodl")

PREDICTED = PREDICTION | {"model", "batch", "machine", "plan", "predictions", "refused"}

#: Earlier names of commands, which scripts call.
ALIASES = ("gpu-first", "deepa-cost", "rules", "scoreboard")

#: Quantities that may be null in a complete document.
UNKNOWN = {"training", "largest_batch", "image_size", "mfu", "reserved_bytes"}
#: Quantities that the baseline lacks, because they compare with it.
OVER_BASELINE = {"speedup_interval", "faster_probability", "predicted_speedup_interval", "measured_speedup_interval"}


def complete(document: dict[str, object]) -> bool:
    """Whether a prediction, or a strategy's row of a validation, has everything that it must have."""
    unknown = UNKNOWN | (OVER_BASELINE if document["strategy"] == "baseline" else set()) | {"predictions"}  # the same again, in a list
    return finite({key: item for key, item in document.items() if key not in unknown})


def finite(item: object) -> bool:
    """Whether every number in a document is finite and nothing is null."""
    if isinstance(item, dict):
        return all(finite(inner) for key, inner in item.items() if key not in UNKNOWN)
    if isinstance(item, list):
        return all(map(finite, item))
    return item is not None and (not isinstance(item, float) or math.isfinite(item))


@pytest.fixture(scope="module")
def profile(schedcast) -> Path:
    """A profile of lenet5's keys, calibrated through the command line."""
    path = schedcast.folder / "profile.json"
    done = schedcast.call("calibrate", *JOB, "-o", path, "--json")
    assert (done.status, done.err) == (0, "")
    document = done.document
    assert document["schema"] == "schedcast.calibration/1"
    assert document["profile"] == str(path)
    assert document["measured_keys"] == document["keys"] == len(Profile.load(path).costs) > 10
    assert document["failures"] == {}
    return path


@pytest.mark.thorough
def test_help_of_every_command(schedcast):
    for command in (*COMMANDS, *ALIASES):
        shown = schedcast.call(command, "--help")
        assert (shown.status, shown.err) == (0, "")
        assert f"schedcast {command}" in shown.out
    assert schedcast.call().out == schedcast.call("--help").out


def test_help_lists_the_commands_in_the_order_of_use(schedcast):
    """Earlier names go on working, unlisted."""
    listed = re.findall(r"^│ ([a-z]\S*) ", schedcast.call("--help").out, re.MULTILINE)
    assert tuple(listed) == COMMANDS


@pytest.mark.parametrize("command", ["predict", "search", "validate", "run", "calibrate", "reproduce"])
def test_help_leaves_rare_options_to_help_all(schedcast, command):
    """Both name no option twice; what --help leaves out is accepted all the same."""
    shown = (schedcast.call(command, flag).out for flag in ("--help", "--help-all"))
    short, whole = (re.findall(r"^│ +(?:\* +)?(--[\w-]+)", text, re.MULTILINE) for text in shown)
    assert {"--model", "--batch", "--help-all"} <= set(short)
    assert set(short) < set(whole)
    assert {"--loss-mean", "--link", "--attention", "--set"} <= set(whole) - set(short)
    assert len(whole) == len(set(whole))


@pytest.mark.parametrize("name", ["models", "strategies", "machines", "profiles"])
def test_lists(schedcast, name):
    shown = schedcast.call(name)
    assert (shown.status, shown.err) == (0, "")
    document = schedcast.call(name, "--json").document
    assert document["schema"] == f"schedcast.{name}/1"
    for row in document[name]:
        assert row.get("name", "").split("-")[0] in shown.out
    if name == "strategies":
        assert {row["name"] for row in document[name]} >= set(STRATEGIES)
        assert document[name][0] == {"name": "baseline", "about": document[name][0]["about"], "options": [], "also": {}}


def test_a_strategy_says_what_its_options_do(schedcast):
    """The list names options only: a newcomer reads 20 strategies on one page."""
    (gpipe,) = schedcast.call("strategies", "gpipe", "--json").document["strategies"]
    shown, listed = schedcast.call("strategies", "gpipe").out, schedcast.call("strategies").out
    assert [option["name"] in shown and option["name"] in listed for option in gpipe["options"]] == [True] * len(gpipe["options"])
    assert "Layers before each cut" in shown
    assert "Layers before each cut" not in listed
    assert schedcast.call("strategies", "baseline").out.endswith("\nIt has no options.\n")
    refused = schedcast.call("strategies", "gpip")
    assert (refused.status, refused.err.split(";")[0]) == (2, "schedcast: unknown strategy 'gpip' (did you mean 'gpipe'?)")


def test_a_machine_says_where_each_figure_is_from(schedcast):
    (h100,) = schedcast.call("machines", "h100", "--json").document["machines"]
    figures = {row["figure"]: row for row in h100["figures"]}
    assert figures["bandwidth_bytes_per_s"] == {
        "figure": "bandwidth_bytes_per_s", "value": 3.35e12, "source": "NVIDIA, H100 data sheet (SXM): 3.35 TB/s",
    }  # fmt: skip
    assert figures["host link latency_s"]["value"] == 1e-5
    assert {figure: row["source"] for figure, row in figures.items()}.items() <= h100["sources"].items()
    shown = schedcast.call("machines", "h100").out
    assert "bandwidth                                           3350 GB/s       2" in shown
    assert "\n2. NVIDIA, H100 data sheet (SXM): 3.35 TB/s\n" in shown
    refused = schedcast.call("machines", "h1000")
    assert (refused.status, refused.err.split(";")[0]) == (2, "schedcast: unknown machine 'h1000' (did you mean 'h100'?)")


def test_a_model_says_what_is_known_of_it(schedcast):
    (model,) = schedcast.call("models", "llama3:8b", "--json").document["models"]
    assert (model["image_size"], model["batch"], model["sizes"]["layers"], model["sizes"]["vocab"]) == (8192, 1, 32, 128256)
    shown = schedcast.call("models", "lenet5").out
    assert "61,706" in shown
    assert "at least 16" in shown


def test_a_profile_shows_its_ops_transfers_and_updates(schedcast):
    """By its file; or by its name among those that the list shows."""
    path = ROOT / "traces" / "data" / "nvidia-h100-80gb-hbm3" / "profile.json.gz"
    shown = schedcast.call("profiles", path)
    assert (shown.status, shown.err) == (0, "")
    for text in ("Ops: the 15 of 328 that take the longest", "host>cuda:0", "Optimizer updates, warm and cold", "adamw:fused"):
        assert text in shown.out
    (profile,) = schedcast.call("profiles", path, "--json").document["profiles"]
    assert (profile["keys"], len(profile["costs"])) == (328, 328)
    assert profile["transfers"]["host>cuda:0"]["bytes_per_s"] > 5e10
    refused = schedcast.call("profiles", "nobody")
    assert (refused.status, refused.err.split(";")[0]) == (2, "schedcast: unknown profile 'nobody'")


@pytest.mark.thorough
def test_what_is_calibrated_is_not_measured_again(schedcast, profile, tmp_path):
    before = Profile.load(profile)
    before.collectives["all-reduce|gloo|2"] = CollectiveLaw(pieces=[LawPiece(1.0, 1.0, 0.0)])
    place = before.save(tmp_path / "profile.json")
    document = schedcast.call("calibrate", *JOB, "-o", place, "--json").document
    assert (document["measured_keys"], document["keys"]) == (0, len(before.costs) + 1)
    assert Profile.load(place).costs == before.costs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predict(schedcast, profile, strategy, tmp_path):
    timeline = tmp_path / "new" / "t.json.gz"
    done = schedcast.call("predict", *JOB, "--strategy", strategy, "--profile", profile, "--timeline", timeline, "--json")
    assert (done.status, done.err) == (0, "")
    assert set(done.document) == PREDICTED
    prediction = Prediction.model_validate(done.document)
    assert prediction.fits
    assert complete(done.document)
    assert prediction.shares.measured == pytest.approx(1.0)
    assert Timeline.load(timeline).step_s == prediction.step_s
    shown = schedcast.call("predict", *JOB, "--strategy", strategy, "--profile", profile)
    assert (shown.status, shown.err) == (0, "")
    assert strategy in shown.out
    explained_s = sum(part["seconds"] for part in done.document["waterfall"])
    assert explained_s == pytest.approx(prediction.step_s - prediction.baseline_step_s, abs=1e-12)
    assert ("than the baseline's" in shown.out or "as the baseline's" in shown.out) == (strategy != "baseline")
    assert shown.out.count("on the critical path:") == 0, "no phase by phase list beside the sentence"


def test_predict_says_where_it_guesses(schedcast):
    done = schedcast.call("predict", *JOB, "--strategy", "baseline", "--machine", "this-cpu", "--json", SCHEDCAST_DATA="nowhere")
    assert done.status == 0
    assert done.document["shares"]["guessed"] == 1.0
    assert "not calibrated: costs are from specifications" in done.err
    assert len(done.err.splitlines()) == 1


def test_predict_shows_the_plan(schedcast):
    job = ("predict", *JOB, "--strategy", "forward-fusion", "--machine", "this-cpu")
    text = schedcast.call(*job, "--show-plan").out
    assert "\nplan forward-fusion\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  features.0/update "))
    assert line.split()[:5] == ["features.0/update", "cpu:0/0", "update", "features.0", "lag=1"]
    document = schedcast.call(*job, "--show-plan", "--json").document
    assert "strategy   forward-fusion" in document["plan"]
    assert set(document) == PREDICTED
    assert document["predictions"][0]["plan"] == document["plan"]


def test_predict_in_graph_mode_on_a_preset(schedcast):
    done = schedcast.call(
        "predict", *JOB, "--strategy", "baseline", "--machine", "h200", "--mode", "graph", "--precision", "tf32", "--json"
    )
    assert (done.document["mode"], done.document["precision"]) == ("graph", "tf32")


def test_set_reaches_the_strategies_that_have_the_option(schedcast, profile):
    job = ("--profile", profile, "--set", "update_stream=on", "--json")
    assert schedcast.call("predict", *JOB, "--strategy", "backward-fusion", *job).document["options"] == {"update_stream": True}


def test_run(schedcast, profile, tmp_path):
    metrics, timeline = tmp_path / "m.json", tmp_path / "t.json"
    places = ("--metrics", metrics, "--timeline", timeline)
    done = schedcast.call("run", *JOB, "--strategy", "forward-fusion", "--steps", 6, "--profile", profile, *places, "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document == json.loads(metrics.read_text())
    assert done.document["schema"] == "schedcast.run/1"
    assert len(done.document["losses"]) == 6
    assert finite({key: item for key, item in done.document.items() if key not in ("job", "max_loss_difference", "target")})
    assert Timeline.load(timeline).kind == "measured"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "t.json"]
    shown = schedcast.call("run", *JOB, "--strategy", "baseline", "--steps", 4)
    assert shown.err == ""
    assert "per step" in shown.out


def test_a_run_goes_on_with_another_strategy(schedcast):
    done = schedcast.call("run", *JOB, "--strategy", "forward-fusion", "--then", "turbodl:beta=2,fuse=off@3", "--steps", 6, "--json")
    assert done.status == 0, done.err
    assert done.document["options"]["then"] == "turbodl:beta=2+fuse=off@3/6"
    assert len(done.document["losses"]) == 6
    assert done.document["max_param_error"] < 1e-5


BESIDE = ("--strategy", "forward-fusion", "--steps", 6, "--beside", "pytorch", "--beside", "turbodl")


@pytest.mark.thorough
def test_run_beside_others(schedcast, tmp_path):
    out, metrics = tmp_path / "page", tmp_path / "m.json"
    job = ("--model", "rnn_bitstream", "--batch", 4, "--image-size", 8, "--precision", "fp64")
    done = schedcast.call("run", *job, *BESIDE, "--metrics", metrics, "--out", out, "--json")
    assert (done.status, done.err) == (0, f"report: {out / 'index.html'}\n")
    assert json.loads(metrics.read_text()) == json.loads((out / "run.json").read_text()) == done.document
    document = TrainingRun.load(metrics)
    assert [curve.name for curve in document.curves] == ["forward-fusion", "turbodl", "autograd"]
    assert {len(part) for curve in document.curves for part in (curve.losses, curve.seconds)} == {6}
    assert document.losses == document.curves[0].losses
    assert document.max_loss_difference < 1e-12
    assert (document.data, document.complete) == ("bit streams of 8 bits, 32,000 samples of 10 classes", True)
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "loss.svg", "run.json"]
    shown = schedcast.call("run", *job, *BESIDE)
    assert shown.status == 0
    assert "data: bit streams" in shown.out
    assert " with plain PyTorch (" in shown.out


@pytest.mark.thorough
def test_run_until_a_target_with_two_seeds(schedcast, tmp_path):
    job = ("--model", "lenet5", "--batch", 8, "--image-size", 16, "--lr-schedule", "0:0.05,20:0.01", "--optimizer", "nesterov")
    goals = ("--steps", 22, "--seeds", 2, "--target", 0.3, "--eval-every", 12, "--predict-on", "2xgtx1060")
    asked = ("run", *job, "--strategy", "stale-pipeline:on=simulated", "--beside", "autograd", *goals)
    done = schedcast.call(*asked, "--metrics", tmp_path / "m.json", "--out", tmp_path / "page")
    assert done.status == 0
    document = TrainingRun.load(tmp_path / "m.json")
    assert [(curve.name.partition(":")[0], curve.seed) for curve in document.curves] == [
        (name, seed) for seed in (0, 1) for name in ("stale-pipeline", "autograd")
    ]
    assert {tuple(each.iteration for each in curve.evaluations) for curve in document.curves} == {(0, 12, 22)}
    assert document.predicted_on == "2xgtx1060"
    assert all(curve.predicted_step_s > 0 for curve in document.curves)
    assert (len(document.reached), len(document.wins), document.target) == (4, 1, 0.3)
    assert "a test accuracy of 30 %" in done.out
    assert "test accuracy" in (tmp_path / "page" / "index.html").read_text()


def test_run_without_a_data_set_says_so(schedcast):
    done = schedcast.call("run", "--model", f"{TINY}:make", "--batch", 8, "--strategy", "baseline", "--steps", 4, "--json")
    assert done.document["data"] == "one batch, repeated"
    assert (done.document["max_loss_difference"], len(done.document["curves"])) == (None, 1)


def test_help_of_run_lists_what_to_compare_with(schedcast):
    done = schedcast.call("run", "--help")
    assert "--beside" in done.out
    assert "pytorch|STRATEGY" in done.out
    assert "--out" in done.out


def test_a_loss_that_is_not_finite_is_null(schedcast):
    done = schedcast.call("run", *JOB, "--strategy", "baseline", "--steps", 6, "--lr", "1e30", "--json")
    assert done.status == 0
    assert done.document["losses"][-1] is None
    assert done.document["max_grad_error"] is None, "plain PyTorch's numbers are not finite either"


@pytest.mark.thorough
def test_validate_with_a_report(schedcast, tmp_path):
    out = tmp_path / "report"
    done = schedcast.call("validate", "--model", f"{TINY}:make", "--batch", 8, "--out", out, "--json")
    assert done.status == 0
    estimate, report = done.err.splitlines()
    assert estimate.startswith("schedcast: validating tied_cnn-make-b8 takes about ")
    assert report == f"report: {out / 'index.html'}"
    assert set(done.document) == VALIDATION
    Validation.model_validate(done.document)
    *ran, refused = done.document["results"]
    assert [row["strategy"] for row in ran] == list(STRATEGIES)
    assert refused["strategy"] == "bppsa"
    assert refused["status"].startswith("skipped: bppsa: the gradient is rearranged before classifier/div.dX")
    for row in ran:
        assert set(row) == RESULT
        assert complete(row)
        assert (row["status"], row["calibration"]) == ("ok", "interleaved")
        explained_s = sum(part["seconds"] for part in row["waterfall"])
        assert explained_s == pytest.approx(row["measured_step_s"] - row["predicted_step_s"], abs=1e-9)
    assert all((out / row["strategy"] / "waterfall.svg").exists() for row in ran)
    plain = done.document["pytorch"]
    assert (plain["strategy"], plain["status"], plain["shares"]["measured"]) == ("pytorch", "ok", pytest.approx(1.0))
    assert plain["measured_step_s"] == done.document["reference_step_s"]
    assert plain["error"] == pytest.approx(plain["predicted_step_s"] / plain["measured_step_s"] - 1)
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.mark.thorough
def test_validate_with_a_profile_alone(schedcast, profile):
    done = schedcast.call("validate", *JOB, "--strategy", "baseline", "--profile", profile, "--no-calibrate", "--json")
    assert done.status == 0
    (row,) = done.document["results"]
    assert row["calibration"] == "profile"
    assert row["shares"]["measured"] == pytest.approx(1.0)


@pytest.mark.thorough
def test_a_strategy_that_cannot_run_is_a_row_and_not_a_failure(schedcast):
    done = schedcast.call("validate", *JOB, "--clip-norm", 1, "--strategy", "backward-fusion", "--json")
    assert done.status == 0
    ok, skipped = done.document["results"]
    assert (ok["strategy"], ok["status"]) == ("baseline", "ok")
    assert skipped["status"].startswith("skipped: backward-fusion cannot clip by the global norm")
    assert all(skipped[key] is None for key in RESULT - {"strategy", "options", "measured_runs_s", "semantics", "status", "waterfall"})


def test_what_the_model_prints_stays_off_standard_output(schedcast, tmp_path):
    (tmp_path / "loud.py").write_text(f"import sys\nsys.path.append({str(TINY.parent)!r})\nfrom tied_cnn import make as quiet\n"
                                      "def make(batch):\n    print('hello from the factory')\n    return quiet(batch)\n")  # fmt: skip
    done = schedcast.call(
        "predict", "--model", "loud.py:make", "--batch", 4, "--strategy", "baseline", "--machine", "p100", "--json", cwd=tmp_path
    )
    assert done.document["fits"]
    assert "hello from the factory" in done.err


def test_a_reader_that_left_is_no_error(tmp_path):
    command = f"{sys.executable} -c 'from ui.cli import main; main()' machines --json | true"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


# A prediction does not depend on the order in which Python iterates over sets of strings.


CALL = ["predict", "--model", "lenet5", "--batch", 8, "--machine", "h100", "--strategy", "backward-fusion", "--json", "--show-plan"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "closed", "status", "said"),
    [
        ("machines", ">&-", 2, "cannot write the answer to standard output: Bad file descriptor"),
        ("machines --json", ">&-", 2, "cannot write the answer to standard output: Bad file descriptor"),
        ("machines", "2>&-", 0, ""),
        ("strategies nobody", "2>&-", 2, ""),
        ("models", "<&- >&- 2>&-", 2, ""),
    ],
)
def test_standard_streams_may_be_closed(tmp_path, command, closed, status, said):
    line = f"exec {sys.executable} -m ui.cli {command} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path))
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert said in done.stderr


def test_a_terminal_without_unicode_gets_what_it_can_show(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "ui.cli", "predict", "--model", "lenet5", "--batch", "8", "--machine", "h100", "--strategy", "baseline"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path, **ascii_only))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "plain PyTorch" in done.stdout


def test_predictions_under_different_hash_seeds_are_the_same_bytes(tmp_path):
    clock = "import simulator.engine.simulation as s\ns.time.perf_counter = lambda: 0.0"  # the one field that is a measured time
    processes = [start(clock, *CALL, folder=tmp_path, PYTHONHASHSEED=seed) for seed in "027"]
    documents = [process.communicate(timeout=300)[0] for process in processes]
    assert documents[0].startswith("{")
    assert documents[1:] == documents[:1] * 2


# A command loads only what it needs: torch for capturing and running, plotly for pictures, Streamlit for the app.


HEAVY = ("torch", "streamlit", "plotly", "scipy", "networkx")
#: Prints which of the heavy libraries are loaded when the process ends.
REPORT = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr))
"""
#: A job whose graph the fixture `captured` puts into the cache.
CACHED = ("--model", "lenet5", "--batch", "1")

DONE = {
    "models": ["models"],
    "strategies": ["strategies"],
    "machines": ["machines"],
    "rules": ["judge"],
    "profiles": ["profiles"],
    "papers": ["reproduce"],
    "help": ["validate", "--help"],
    "cached graph": ["predict", *CACHED, "--strategy", "backward-fusion", "--machine", "h100"],
    "cached graph on this CPU": ["predict", *CACHED, "--strategy", "turbodl", "--machine", "this-cpu", "--no-calibrate"],
}
PREDICT = ["predict", "--machine", "h100", "--strategy"]
REFUSED = {
    "model": ["run", "--model", "lenet", "--batch", "1", "--strategy", "baseline"],
    "image size": ["validate", *CACHED, "--image-size", "4"],
    "strategy": ["calibrate", *CACHED, "--strategy", "basline"],
    "option": [*PREDICT, "backward-fusion:speed=9", *CACHED],
    "option for all": [*PREDICT, "baseline", *CACHED, "--set", "speed=9"],
    "machine": ["predict", *CACHED, "--strategy", "baseline", "--machine", "h2000"],
    "trace": ["replay", "nosuch.json"],
    "paper": ["reproduce", "nosuch"],
}


@pytest.fixture(scope="module")
def captured(schedcast):
    """The command line with the graph of CACHED in its cache."""
    assert schedcast.call("predict", *CACHED, "--strategy", "baseline", "--machine", "h100").status == 0
    return schedcast


def heavy_libraries(schedcast, arguments: list[str], status: int) -> list[str]:
    """Run one command in a fresh process and return the heavy libraries that it loaded."""
    process = start(REPORT, *arguments, folder=schedcast.folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return json.loads(err.splitlines()[-1])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("command", DONE)
def test_a_command_that_needs_no_torch_does_not_load_it(captured, command):
    assert heavy_libraries(captured, DONE[command], 0) == []


def test_help_waits_for_nothing_of_the_simulator():
    code = "import sys, ui.cli; print({'numpy', 'simulator.strategies.registry'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("command", REFUSED)
def test_a_request_is_refused_before_heavy_libraries_load(schedcast, command):
    assert heavy_libraries(schedcast, REFUSED[command], 2) == []


# A request: its words, and the job and the placement that it asks for.


WHOLE = JobRequest(
    "lenet5", 24, 32, "adam", "fused", lr=0.1, clip_norm=1.5, accumulate=2, precision="amp", layout="nhwc", mode="graph",
    machine="dgx-h100", devices=1, link="copy:0.5", memory_limit=16.0, host="caffe", scale="memory=2", settings=("overlap=off",),
)  # fmt: skip


def test_a_request_says_what_is_not_as_usual():
    assert JobRequest("lenet5", 8).words == ["batch 8", "momentum:foreach", "default precision", "on this-cpu"]
    assert WHOLE.words == [
        "batch 24", "input size 32", "adam:fused", "norm at most 1.5", "2 microbatches", "amp", "nhwc", "graph", "on dgx-h100", "1 device",
        "link copy:0.5", "16 GB at most", "issued by caffe", "with memory=2", "overlap=off",
    ]  # fmt: skip


def test_the_job_and_the_placement_of_a_request():
    assert WHOLE.job() == Job("lenet5", 24, 32, "adam", "fused", 0.1, clip_norm=1.5, accumulate=2, precision="amp", layout="nhwc")
    placed = Placement(devices=1, mode="graph", link="copy:0.5", memory_limit_gb=16.0, scale=scale_of("memory=2"), host="caffe")
    assert WHOLE.placement() == placed
    assert JobRequest("lenet5").job() == Job("lenet5", 64, precision="default"), "a usual batch"
    assert JobRequest("lenet5").placement() == Placement()


def test_job_and_placement_check_what_a_request_asks_for():
    with pytest.raises(SchedcastError, match="--batch 3 is not divisible by --accumulate 2"):
        JobRequest("lenet5", 3, accumulate=2).job()
    with pytest.raises(SchedcastError, match="--partition 2 splits one GPU, and --devices 2 are several"):
        JobRequest("lenet5", partition=2, devices=2).placement()


def test_no_two_options_share_a_name():
    keys = [option.key for option in DECLARED]
    assert len(set(keys)) == len(keys)
