"""`schedcast predict` with several batches, machines and strategies; on partitions of a GPU; and what it says about precisions."""

import re

import pytest

from tests.support.refusals import refused
from traces.documents.comparison import Prediction
from ui.request import JobRequest
from ui.service.jobs import Forecast, predict_many

GRID = ("predict", "--model", "lenet5", "--batch", "8,16", "--batch", 8, "--machine", "v100,p100")
STRATEGIES = ("--strategy", "turbodl", "--strategy", "backward-fusion")


def test_every_combination_is_a_row(schedcast):
    done = schedcast.call(*GRID, *STRATEGIES, "--json")
    assert (done.status, done.err) == (0, "")
    document = done.document
    assert document["schema"] == "schedcast.predictions/1"
    combinations = [(row["machine"], row["batch"], row["strategy"]) for row in document["predictions"]]
    assert combinations == [
        (m, b, s) for m in ("v100", "p100") for b in (8, 16) for s in ("pytorch", "pytorch-graph", "turbodl", "backward-fusion")
    ]
    one = schedcast.call("predict", "--model", "lenet5", "--batch", 16, "--machine", "p100", *STRATEGIES[2:], "--json").document
    assert one["schema"] == "schedcast.prediction/1"
    assert Prediction.model_validate(document["predictions"][-1]).step_s == one["step_s"]
    assert {row["model"] for row in document["predictions"]} == {"lenet5"}
    shown = schedcast.call(*GRID, *STRATEGIES)
    assert (shown.status, shown.err) == (0, "")
    rows = [line.split() for line in shown.out.splitlines() if re.match(r" *[vp]100 +\d", line)]
    assert [row[:2] for row in rows] == [[m, str(b)] for m, b, _ in combinations]
    assert [row[2].split("-")[0] for row in rows[:4]] == ["plain", "plain", "turbodl", "backward"]


def test_without_a_strategy_all_that_apply_are_predicted(schedcast):
    done = schedcast.call("predict", "--model", "lenet5", "--batch", 4, "--machine", "p100x4", "--devices", 2, "--json")
    assert done.status == 0
    names = {row["strategy"] for row in done.document["predictions"]}
    assert names >= {"baseline", "backward-fusion", "forward-fusion", "turbodl", "data-parallel"}
    done = schedcast.call("predict", "--model", "lenet5", "--batch", 4, "--machine", "p100", "--clip-norm", 1, "--json")
    refusals = {row["strategy"]: row["why"] for row in done.document["refused"]}
    assert (done.status, "cannot clip by the global norm" in refusals["backward-fusion"]) == (0, True)
    assert "data-parallel" not in refusals, "it does not apply to one device"


def test_a_strategy_that_was_asked_for_and_cannot_run(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 4, "--machine", "p100", "--clip-norm", 1)
    refused(schedcast.call(*job, "--strategy", "backward-fusion"), "cannot clip by the global norm")
    done = schedcast.call(*job, "--strategy", "backward-fusion", "--strategy", "forward-fusion")
    assert done.status == 2
    assert "backward-fusion, batch 4 on p100: backward-fusion cannot clip" in done.out


def test_this_machine_and_a_usual_batch_are_the_defaults(schedcast):
    done = schedcast.call("predict", "--model", "lenet5", "--strategy", "baseline", "--json", SCHEDCAST_DATA="nowhere")
    assert done.document["devices"][0]["name"] == "cpu:0"
    assert done.err.splitlines() == [
        "schedcast: this machine is not calibrated: costs are from specifications; schedcast calibrate measures them",
        "schedcast: the batch was 64, a usual one of lenet5; choose another with --batch",
    ]
    refused(schedcast.call("predict", "--model", "lenet5", "--strategy", "none"), "unknown strategy 'none'")


def test_the_baseline_of_partitions_is_the_whole_gpu(schedcast):
    """Two halves of a GPU do not train much faster than the whole, because they compute no more."""

    def predicted(*more):
        return schedcast.call(
            "predict", "--model", "resnet18", "--batch", 32, "--machine", "h100", "--precision", "fp32", *more, "--json"
        ).document

    whole = predicted("--strategy", "baseline")
    halves = predicted("--strategy", "data-parallel", "--partition", 2)
    fused = predicted("--strategy", "backward-fusion")
    assert halves["baseline_step_s"] == whole["step_s"]
    assert 0.8 < halves["speedup"] < 1.1
    assert [device["name"] for device in halves["devices"]] == ["cuda:0/0", "cuda:0/1"]
    assert predicted("--strategy", "baseline", "--partition", 2)["step_s"] == whole["step_s"]
    assert predicted("--strategy", "backward-fusion", "--partition", 2)["step_s"] == fused["step_s"]
    shown = schedcast.call(
        "predict", "--model", "resnet18", "--batch", 32, "--machine", "h100", "--partition", 2, "--strategy", "data-parallel"
    )
    words = " ".join(shown.out.split())
    assert "One GPU of h100 is split into 2 parts of 64 SMs (4 of its 132 SMs stay unused)." in words
    assert "every schedule of one device, uses the whole GPU" in words


@pytest.mark.parametrize(
    ("machine", "precision", "meant"),
    [("h100", "default", "default"), ("v100", "default", "fp32"), ("this-cpu", "default", "fp32"), ("h100", "fp32", "fp32")],
)
def test_the_default_precision_is_pytorchs(schedcast, machine, precision, meant):
    """What it means is said once, where it is not fp32 everywhere."""
    job = ("predict", "--model", "lenet5", "--batch", 4, "--strategy", "baseline", "--machine", machine, "--json")
    done = schedcast.call(*job, *(("--precision", precision) if precision != "default" else ()), SCHEDCAST_DATA="nowhere")
    assert done.document["precision"] == meant
    assert done.err.count("h100: convolutions in TF32, products in fp32, as is PyTorch's default") == (meant == "default")


def test_outputs_do_not_overwrite_inputs(schedcast, tmp_path):
    model = tmp_path / "m.py"
    model.write_text("def make(batch_size): ...\n")
    job = ("--model", "m.py:make", "--batch", 4, "--strategy", "baseline")
    overwritten = "would overwrite m.py, the file of --model"
    refused(schedcast.call("predict", *job, "--timeline", "m.py", cwd=tmp_path), f"--timeline {overwritten}")
    refused(schedcast.call("run", *job, "--metrics", "m.py", cwd=tmp_path), f"--metrics {overwritten}")
    refused(schedcast.call("calibrate", *job[:4], "-o", "m.py", cwd=tmp_path), "m.py")
    assert model.read_text() == "def make(batch_size): ...\n"
    (tmp_path / "t.json").write_text("{}")
    refused(
        schedcast.call("replay", "t.json", "--perfetto", "t.json", cwd=tmp_path), "--perfetto would overwrite t.json, the file of the trace"
    )
    profile = tmp_path / "profiles" / "cpu-mine.json"
    profile.parent.mkdir()
    profile.write_text("mine")
    refused(
        schedcast.call(
            "predict", "--model", "lenet5", "--batch", 4, "--strategy", "baseline", "--timeline", profile, SCHEDCAST_DATA=str(tmp_path)
        ),
        "cpu-mine.json, the file of a profile of this machine",
    )
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("mine")
    built_in = ("--model", "lenet5", "--batch", 4)
    for command in (["run", *built_in], ["validate", *built_in], ["demo"], ["reproduce", "fusion"]):
        refused(schedcast.call(*command, "--out", site), "site has files (index.html) but no report of this command")
    assert [path.name for path in site.iterdir()] == ["index.html"]


def test_the_app_counts_real_devices_too():
    request = JobRequest("lenet5", 4, precision="fp32", machine="h100", strategies=("baseline", "data-parallel"), partition=2)
    plain, _, baseline, parallel = predict_many(request).values()
    assert isinstance(parallel, Forecast)
    assert plain.prediction.strategy == "pytorch"
    assert parallel.prediction.pytorch_step_s == plain.prediction.step_s
    assert len(baseline.prediction.devices) == 1
    assert [device.name for device in parallel.prediction.devices] == ["cuda:0/0", "cuda:0/1"]


def test_plain_pytorch_is_predicted_on_a_preset_and_beside_every_strategy(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 4, "--machine", "h100", "--json")
    plain = schedcast.call(*job, "--strategy", "pytorch").document
    assert (plain["strategy"], plain["fits"], plain["against_pytorch"]) == ("pytorch", True, 1.0)
    assert plain["shares"] == {"measured": 0.0, "fitted": 0.0, "guessed": 1.0}
    other = schedcast.call(*job, "--strategy", "turbodl").document
    assert other["pytorch_step_s"] == plain["step_s"]
    assert other["against_pytorch"] == pytest.approx(plain["step_s"] / other["step_s"])
    low, high = other["against_pytorch_interval"]
    assert low < other["against_pytorch"] < high


def test_plain_pytorch_is_the_first_row(schedcast):
    shown = schedcast.call("predict", "--model", "lenet5", "--batch", 4, "--machine", "h100", "--strategy", "turbodl").out
    table = shown[: shown.index("\n- ")]
    places = [table.index(f"\n {name}") for name in ("plain PyTorch ", "plain PyTorch,", "baseline", "turbodl")]
    assert places == sorted(places)


def test_no_executor_runs_plain_pytorch(schedcast):
    refused(schedcast.call("run", "--model", "lenet5", "--batch", 4, "--strategy", "pytorch"), "no executor runs; run baseline")
