"""`schedcast predict` with several batches, machines and strategies; on partitions of a GPU; and what it says about precisions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.support.refusals import refused, refuses
from traces.documents.comparison import Prediction
from traces.errors import Code
from ui.cli import app
from ui.commands import job_options
from ui.commands.job_options import takes_job
from ui.request import PROFILE, JobRequest, machine_named
from ui.service.jobs import Answer, predict_many

GRID = ("predict", "--model", "lenet5", "--batch", "8,16", "--batch", 8, "--machine", "v100,p100")
STRATEGIES = ("--strategy", "turbodl", "--strategy", "backward-fusion")


@pytest.mark.thorough
def test_every_combination_is_a_row(schedcast):
    done = schedcast.call(*GRID, *STRATEGIES, "--json")
    assert (done.status, done.err) == (0, "")
    document = done.document
    assert document["schema"] == "schedcast.predictions/2"
    combinations = [(row["machine"], row["batch"], row["strategy"]) for row in document["predictions"]]
    assert combinations == [
        (m, b, s) for m in ("v100", "p100") for b in (8, 16) for s in ("pytorch", "pytorch-graph", "turbodl", "backward-fusion")
    ]
    one = schedcast.call("predict", "--model", "lenet5", "--batch", 16, "--machine", "p100", *STRATEGIES[2:], "--json").document
    assert one["schema"] == "schedcast.predictions/2"
    assert Prediction.model_validate(document["predictions"][-1]).step_s == one["step_s"] == one["predictions"][0]["step_s"]
    assert {row["model"] for row in document["predictions"]} == {"lenet5"}
    shown = schedcast.call(*GRID, *STRATEGIES)
    assert (shown.status, shown.err) == (0, "")
    rows = [line.split() for line in shown.out.splitlines() if re.match(r" *[vp]100 +\d", line)]
    assert [row[:2] for row in rows] == [[m, str(b)] for m, b, _ in combinations]
    assert [row[2].split("-")[0] for row in rows[:4]] == ["plain", "plain", "turbodl", "backward"]


def test_without_a_strategy_plain_pytorch_is_predicted_and_what_several_devices_need(schedcast):
    def predicted(machine, *more):
        done = schedcast.call("predict", "--model", "lenet5", "--batch", 4, "--machine", machine, *more, "--json")
        return done.status, [row["strategy"] for row in done.document["predictions"]]

    assert predicted("p100") == (0, ["pytorch"])
    assert predicted("2xp100") == (0, ["pytorch", "pytorch-ddp", "pytorch-fsdp"])
    assert predicted("p100", "--partition", 2) == (0, ["pytorch", "data-parallel"])
    assert predicted("p100", "--memory-limit", 0.001) == (1, ["pytorch"])


def test_details_say_where_the_time_of_plain_pytorch_goes(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 4, "--machine", "p100")
    short, detailed = (schedcast.call(*job, *more).out for more in ((), ("--details",)))
    assert "--details says where the time goes" in " ".join(short.split())
    assert ("critical path" in detailed.lower(), "critical path" in short.lower()) == (True, False)


def test_a_strategy_that_was_asked_for_and_cannot_run(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 4, "--machine", "p100", "--clip-norm", 1)
    refused(schedcast.call(*job, "--strategy", "backward-fusion"), "cannot clip by the global norm")
    done = schedcast.call(*job, "--strategy", "backward-fusion", "--strategy", "forward-fusion")
    assert done.status == 2
    assert "backward-fusion, batch 4 on p100: backward-fusion cannot clip" in done.out


@pytest.mark.thorough
def test_a_job_that_one_device_cannot_run_is_predicted_without_a_baseline(schedcast):
    """Half of the batch keeps its activations within the budget, the whole one on one device does not."""
    asked = JobRequest("gpt2", image_size=64, batch=64, machine="2xh100", checkpoint="budget:900MiB", strategies=("fsdp",))
    job = ("predict", "--model", "gpt2", "--seq", 64, "--batch", 64, "--machine", "2xh100", "--checkpoint", "budget:900MiB")
    done = schedcast.call(*job, "--strategy", "fsdp", "--json")
    assert (done.status, done.document["baseline_step_s"], done.document["speedup"]) == (0, None, None)
    shown = " ".join(schedcast.call(*job, "--strategy", "fsdp").out.split())
    assert "There is no baseline to compare with: --checkpoint budget of 900 MiB: a microbatch of 64 needs 1.70 GiB" in shown
    refused(schedcast.call(*job, "--strategy", "baseline"), "a microbatch of 64 needs 1.70 GiB")
    assert predict_many(asked)["fsdp"].prediction.baseline_step_s is None


def test_this_machine_and_a_usual_batch_are_the_defaults(schedcast):
    done = schedcast.call("predict", "--model", "lenet5", "--strategy", "baseline", "--json", SCHEDCAST_DATA="nowhere")
    assert done.document["devices"][0]["name"] == "cpu:0"
    assert done.err.splitlines() == [
        "schedcast: this machine is not calibrated: costs are from specifications; schedcast calibrate measures them",
        "schedcast: the batch was 64, a usual one of lenet5; choose another with --batch",
    ]
    several = schedcast.call("predict", "--model", "lenet5", "--machine", "3xp100", "--strategy", "data-parallel", "--json")
    assert (several.status, several.document["batch"]) == (0, 66), "the next one that divides among three devices"
    refused(schedcast.call("predict", "--model", "lenet5", "--strategy", "none"), "unknown strategy 'none'")


@pytest.mark.thorough
def test_the_baseline_of_partitions_is_the_whole_gpu(schedcast):
    """Two halves of a GPU do not train much faster than the whole, because they compute no more."""

    def predicted(*more):
        return schedcast.call(
            "predict", "--model", "resnet18", "--batch", 32, "--machine", "h200", "--precision", "fp32", *more, "--json"
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


@pytest.mark.sampled(4)
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


@pytest.mark.thorough
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
    assert isinstance(parallel, Answer)
    assert plain.prediction.strategy == "pytorch"
    assert parallel.prediction.pytorch_step_s == plain.prediction.step_s
    assert len(baseline.prediction.devices) == 1
    assert [device.name for device in parallel.prediction.devices] == ["cuda:0/0", "cuda:0/1"]


def test_plain_pytorch_is_predicted_on_a_preset_and_beside_every_strategy(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 4, "--machine", "h200", "--json")
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


# `schedcast reproduce deepa --layer`: the paper's table 2, exact bytes, and what it refuses.


FC6 = ("reproduce", "deepa", "--layer", "fc6")


def rows_of(schedcast, *options):
    done = schedcast.call(*FC6, *options, "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["schema"] == "schedcast.deepa-cost/1"
    return done.document["rows"]


def test_table_2(schedcast):
    images, channels, two, four = rows_of(schedcast, "--config", "n=16", "--config", "c=16", "--config", "c=2", "--config", "c=4")
    assert images["config"] == {"n": 16, "c": 1, "h": 1, "w": 1}
    assert (images["workers"], images["transfer_s"]) == (16, 0)
    assert images["update_s"] == pytest.approx(1.075, rel=0.02)
    assert channels["transfer_s"] == pytest.approx(0.1344, rel=0.02)
    assert channels["update_s"] == 0
    assert min((images, channels, two, four), key=lambda row: row["total_s"]) == two, "the paper chose two workers"
    assert all(row["total_s"] == pytest.approx(row["transfer_s"] + row["compute_s"] + row["update_s"]) for row in (images, channels, two))


def test_a_layer_needs_its_paper_and_no_whole_answer(schedcast):
    refused(schedcast.call("reproduce", "fusion", "--layer", "fc6"), "those of the deepa paper: schedcast reproduce deepa --layer fc6")
    refused(schedcast.call("reproduce", "deepa", "--config", "n=2"), "no layer, as in schedcast reproduce deepa --layer fc6")
    refused(schedcast.call(*FC6, "--out", "somewhere"), "--out is of the whole paper")
    refused(schedcast.call(*FC6, "--batch", 8), "--batch is given without a model; add --model")


def test_the_command_of_a_layer_has_an_earlier_name(schedcast):
    job = ("--model", "alexnet", "--batch", 512, "--machine", "k80x16", "--config", "c=2", "--json")
    assert schedcast.call("deepa-cost", "--layer", "fc6", *job).document == schedcast.call(*FC6, *job).document


def test_exact_bytes_are_those_that_leave_a_device(schedcast):
    channels, one = rows_of(schedcast, "--config", "c=2", "--config", "n=1", "--input-config", "n=2")
    inputs = 4 * 512 * 9216
    assert channels["exact_bytes"] == 2 * inputs, "each worker has half of the images and needs the other half; gradients go back"
    assert one["exact_bytes"] == inputs, "half of the images and their gradients"
    assert channels["transfer_s"] == pytest.approx(2 * 2 * inputs / 4.494e9), "the paper counts whole inputs"


def test_the_table_for_people(schedcast):
    done = schedcast.call(*FC6, "--config", "n=16", "--config", "c=2")
    assert done.status == 0
    assert "classifier.1 (512 x 4096) on k80x16" in done.out
    assert "1075" in done.out


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (
            ("--config", "n=3"),
            ("layer classifier.1 (512 x 4096) cannot be divided into n=3: its degrees are n: 1, 2, 4, 8, 16; c: 1, 2, 4, 8, 16",),
        ),
        (("--config", "h=2"), ("cannot be divided into h=2",)),
        (("--config", "n=32"), ("cannot be divided into n=32", "for at most 16 workers")),
        (("--config", "images=2"), ("'images=2' in 'images=2' is no degree of parallelism; give them as in n=4,h=2",)),
        (("--config", "n=2", "--input-config", "n=5"), ("layer classifier.0 (512 x 9216) cannot be divided into n=5",)),
        (("--config", "n=2", "--model", "alexnet", "--set", "overlap=on"), ("--set overlap=on", "drop it")),
        (("--config", "n=2", "--layer", "fc9"), ("--layer is given 2 times",)),
    ],
)
def test_refusals(schedcast, options, fragments):
    refused(schedcast.call(*FC6, *options), *fragments)


def test_an_unknown_layer_is_refused_with_all_names(schedcast):
    refused(
        schedcast.call(*FC6[:-1], "fc66", "--config", "n=2"),
        "unknown layer 'fc66' (did you mean 'fc6'?)",
        "features.0, ",
        "conv1 to conv5, fc6 to fc8",
    )


# The options that commands with a job share.


def test_a_command_receives_a_request():
    received = []
    command = typer.Typer()

    @command.command()
    @takes_job()
    def name(request, strategy: str = "baseline", profile: Path | None = None, steps: int = 3):
        received.append((request, steps))

    options = [
        "--model", "lenet5", "--batch", "8", "--optimizer", "adam:fused", "--accumulate", "2", "--devices", "2", "--memory-limit",
        "4",
    ]  # fmt: skip
    own = ["--strategy", "turbodl", "--set", "alpha=1", "--set", "beta=2", "--profile", "mine.gz", "--steps", "5"]
    done = CliRunner().invoke(command, [*options, *own])
    assert done.exit_code == 0, done.output
    ((request, steps),) = received
    assert steps == 5
    assert request == JobRequest(
        "lenet5", 8, optimizer="adam", form="fused", accumulate=2, devices=2, memory_limit=4.0, settings=("alpha=1", "beta=2"),
        strategies=("turbodl",), machine=machine_named(None, Path("mine.gz")),
    )  # fmt: skip
    assert request.profile == Path("mine.gz")
    assert "--memory-limit" in CliRunner().invoke(command, ["--help"]).output


def test_a_profile_of_the_data_folder_is_not_taken_for_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    stored = tmp_path / "profiles" / "cpu-mine.json"
    stored.parent.mkdir()
    stored.write_text("{}")
    assert JobRequest("lenet5", machine=f"{PROFILE}cpu-mine.json").profile == stored
    assert JobRequest("lenet5", machine=machine_named(None, Path("cpu-mine.json"))).profile == Path("cpu-mine.json")
    with refuses(Code.REQUEST, "--profile a.json and --machine h100 both name a machine"):
        machine_named("h100", Path("a.json"))


def test_calibration_has_no_memory_limit():
    commands = typer.main.get_command(app).commands
    assert {"request", "requests"}.isdisjoint(option.name for option in commands["calibrate"].params)
    assert [any(o.name == "memory_limit" for o in commands[name].params) for name in ("calibrate", "predict", "run", "validate")] == [
        False, True, True, True,
    ]  # fmt: skip


def test_version():
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith("schedcast 0.")


# What the shell offers for models, strategies and machines.


def offered(words: str) -> list[str]:
    """What bash offers for the last word of a command line, as completion's script asks for it; in a process without PyTorch."""
    without_torch = "import sys; sys.modules['torch'] = None; from ui.cli import main; sys.argv = ['schedcast']; main()"
    asks = {"_SCHEDCAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    answer = subprocess.run([sys.executable, "-c", without_torch], env=os.environ | asks, capture_output=True, text=True, check=False)
    assert not answer.stderr
    return answer.stdout.split()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("schedcast pred", {"predict"}),
        ("schedcast predict --model alexnet_c", {"alexnet_cifar"}),
        ("schedcast validate --strategy backward", {"backward-fusion"}),
    ],
)
def test_names_are_completed_without_pytorch(words, names):
    assert set(offered(words)) == names


def test_options_of_a_strategy_are_completed_after_its_colon():
    assert job_options.complete_strategies("turbodl:al") == ["turbodl:alpha="]
    assert "turbodl:alpha=2,beta=" in job_options.complete_strategies("turbodl:alpha=2,")
    assert "turbodl:alpha=2,alpha=" not in job_options.complete_strategies("turbodl:alpha=2,")
    assert job_options.complete_strategies("nothing:") == []


def test_machines_are_completed_one_after_another():
    assert "h100" in job_options.complete_machines("h")
    assert "a100,h100" in job_options.complete_machines("a100,h")
    assert "h100,h100" not in job_options.complete_machines("h100,h")


@pytest.mark.thorough
def test_a_measured_step_is_compared_with_the_prediction(schedcast):
    job = ("predict", "--model", "lenet5", "--batch", 16, "--machine", "2xdgx-a100", "--devices", 1)
    document = schedcast.call(*job, "--strategy", "turbodl", "--measured", 5, "--json").document
    assert document["normal"]["verdict"] == "slower"
    assert document["normal"]["step_s"] == document["step_s"]
    assert [row["model"] for row in document["normal"]["near"]] == ["resnet50"] * 3
    shown = schedcast.call(*job, "--measured", 5)
    assert "slower than expected" in shown.out
    assert "resnet50, 8 x a100" in shown.out
    refused(schedcast.call(*job, "--measured", -1), "--measured -1 is compared with one prediction; expected seconds above 0")
    refused(schedcast.call(*job, "--measured", 1, "--strategy", "turbodl", "--strategy", "baseline"), "at most one --strategy")
