"""Predictions for GPUs on the command line: from a profile, for this machine's GPU, and from a preset's shipped profile."""

from pathlib import Path

import pytest

from calibrate import profiles as sources
from simulator.engine.costs.model import CostModel, measurable
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.support.jobs import planned
from tests.support.refusals import refused
from traces.documents.profile import Dispatch, Identity, KeyCost, Profile, Stats
from traces.documents.profile_files import default_path
from ui.service import jobs

JOB = ("--model", "lenet5", "--batch", 4, "--strategy", "baseline")
BUSY_S, ISSUE_S, OWN_S = 1e-5, 2e-5, 3e-6


def made_up(tf32: bool = False, gpu: str = "NVIDIA H200", **more) -> Profile:
    """The profile of an H200 on which every task of lenet5's baseline takes 10 us, and issuing it 20 us plus 3 us in the executor."""
    machine = load_machine("h200")
    keys = planned("baseline", Job("lenet5", 4), machine, CostModel(machine)).keys(machine)
    stats = Stats(BUSY_S, BUSY_S, BUSY_S, BUSY_S, 9)
    more_of_keys = {"issue_s": ISSUE_S, "model": "lenet5"}
    costs = {key: KeyCost(stats, stats, task.body.work(task).op_class, **more_of_keys) for key, task in keys.items() if measurable(task)}
    dispatch = Dispatch(dispatch_s=OWN_S, record_s=1e-6, wait_s=1e-6, graph_launch_s=1e-5, node_gap_s=0.0, cross_gap_s=1e-6)
    return Profile(identity=Identity(kind="gpu", gpu=gpu, sms=132, tf32=tf32), costs=costs, dispatch=dispatch, **more)


@pytest.fixture(scope="module")
def profile() -> Profile:
    """A profile measured without TF32."""
    return made_up()


def tasks() -> int:
    """The number of tasks in a step."""
    return len(planned("baseline", Job("lenet5", 4), load_machine("h200")).tasks)


def warnings(done) -> list[str]:
    """The lines on standard error, without the one that says what the default precision means on a GPU with TF32."""
    return [line for line in done.err.splitlines() if "convolutions in TF32" not in line]


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_gpus_profile_decides_the_step_time(schedcast, profile, tmp_path, mode):
    path = profile.save(tmp_path / "gpu.json.gz")
    done = schedcast.call("predict", *JOB, "--device", "cuda", "--profile", path, "--mode", mode, "--json")
    assert done.status == 0, done.err
    assert done.document["shares"]["measured"] == 1.0
    assert [device["name"] for device in done.document["devices"]] == ["cuda:0"]
    expected = {"eager": tasks() * (ISSUE_S + OWN_S), "graph": tasks() * BUSY_S}[mode]
    assert done.document["step_s"] == pytest.approx(expected)
    assert warnings(done) == [f"schedcast: profile {path} is of NVIDIA H200, this machine has no GPU that PyTorch can use"]


@pytest.mark.thorough
def test_this_gpu_is_the_profile_in_the_data_folder(schedcast, profile, tmp_path):
    data = {"SCHEDCAST_DATA": str(tmp_path)}
    place = tmp_path / "profiles" / f"{profile.identity.name}.json"
    this_gpu = ("predict", *JOB, "--machine", "this-gpu")
    assert "this-gpu" not in schedcast.call("machines", **data).out
    refused(
        schedcast.call(*this_gpu, **data), "no calibrated NVIDIA GPU", f"no profile of one in {place.parent}", "calibrate --device cuda"
    )
    profile.model_copy(update={"notes": ["throttled (power cap)"]}).save(place)
    listed = schedcast.call("machines", "--json", **data).document["machines"]
    assert listed[-1]["name"] == "this-gpu"
    assert listed[-1]["sources"]["dispatch_s"].startswith("measured: profile of NVIDIA H200")
    done = schedcast.call(*this_gpu, "--mode", "graph", "--json", **data)
    assert done.document["step_s"] == pytest.approx(tasks() * BUSY_S)
    assert warnings(done) == ["schedcast: profile of gpu-nvidia-h200-132: throttled (power cap)"]
    refused(schedcast.call(*this_gpu, "--precision", "tf32", **data), "no tf32 profile")
    place.write_text("{")
    shown = schedcast.call("machines", **data)
    assert shown.status == 0
    assert "this-gpu" not in shown.out
    assert "is not valid JSON" in shown.err


@pytest.mark.thorough
def test_costs_of_other_kernels_than_the_jobs_are_refused(schedcast, profile, tmp_path):
    fp32 = profile.save(tmp_path / "fp32.json")
    tf32 = profile.model_copy(update={"identity": profile.identity.model_copy(update={"tf32": True})}).save(tmp_path / "tf32.json")
    for profile_of, used in ((fp32, "fp32"), (tf32, "tf32")):
        done = schedcast.call("predict", *JOB, "--profile", profile_of, "--json")
        assert done.document["precision"] == used, "by default, what the kernels were measured in"
    done = schedcast.call("predict", *JOB, "--profile", tf32, "--precision", "fp32")
    refused(done, f"--precision fp32: profile {tf32} was measured in tf32; use --precision tf32, or another profile")
    done = schedcast.call("predict", *JOB, "--profile", fp32, "--precision", "tf32")
    refused(done, f"--precision tf32: profile {fp32} was measured in fp32; use --precision fp32")
    assert schedcast.call("predict", *JOB, "--profile", tf32, "--precision", "tf32", "--json").document["precision"] == "tf32"
    assert schedcast.call("predict", *JOB, "--profile", fp32, "--precision", "bf16", "--json").status == 0


@pytest.mark.thorough
def test_a_shipped_profile_wins_over_the_table(schedcast, profile, tmp_path):
    def predicted(*more, precision="fp32"):
        job = (*JOB, "--machine", "h200", "--precision", precision)
        done = schedcast.call("predict", *job, *more, "--json", SCHEDCAST_SHIPPED=str(tmp_path))
        assert (done.status, warnings(done)) == (0, [])
        return done.document

    assert predicted()["shares"]["guessed"] == 1.0
    profile.save(tmp_path / "nvidia-h200" / "profile.json.gz")
    assert predicted()["shares"]["measured"] == 1.0
    assert predicted("--mode", "graph")["step_s"] == pytest.approx(tasks() * BUSY_S)
    assert predicted()["step_s"] == pytest.approx(tasks() * (ISSUE_S + OWN_S))
    measured = {name: predicted(precision=name)["shares"]["measured"] for name in ("default", "tf32", "bf16")}
    assert 0 < measured["tf32"] < measured["default"] < 1, "kernels without products are the same, and by default products, too"
    assert measured["bf16"] < measured["tf32"], "its operands have another type"
    other = ("--model", "resnet20", *JOB[2:], "--machine", "h200", "--json")
    of_other = schedcast.call("predict", *other, SCHEDCAST_SHIPPED=str(tmp_path)).document
    assert 0 < of_other["shares"]["measured"] < 1, "the loss is the same, whatever the model"
    listed = schedcast.call("machines", "--json", SCHEDCAST_SHIPPED=str(tmp_path)).document["machines"]
    assert [m["name"] for m in listed if "costs" in m["sources"]] == ["h200"]
    assert {m["name"]: m["calibrated"] for m in listed if m["calibrated"] and m["name"] != "this-cpu"} == {"h200": profile.updated[:10]}
    (tmp_path / "nvidia-h200" / "profile.json.gz").write_bytes(b"\x1f\x8b")
    refused(schedcast.call("predict", *JOB, "--machine", "h200", SCHEDCAST_SHIPPED=str(tmp_path)), "damaged gzip")


def test_a_machine_has_one_set_of_figures_in_every_door(schedcast, tmp_path, monkeypatch):
    """The list showed what the shipped profile measured, and the app that or the data sheet's, by the model."""
    monkeypatch.setenv("SCHEDCAST_SHIPPED", str(tmp_path))
    made_up(peak_flops={"fp32": 5e13}, bandwidth_bytes_per_s=2.4e12).save(tmp_path / "nvidia-h200" / "profile.json.gz")
    (listed,) = (
        m for m in schedcast.call("machines", "--json", SCHEDCAST_SHIPPED=str(tmp_path)).document["machines"] if m["name"] == "h200"
    )
    assert listed["devices"][0]["peak_flops"]["fp32"] == 66.9e12
    assert "costs" in listed["sources"], "of what was measured, the costs are used"
    for model in ("lenet5", "resnet18"):  # the profile has costs of lenet5 only
        figures = jobs.facts(jobs.JobRequest(model=model, machine="h200")).figures
        assert (figures["flops"].value, figures["memory"].value) == (66.9, 4800)


def test_the_profile_of_this_machines_gpu_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    assert sources.own_gpu_profile() is None
    for gpu, tf32 in (("NVIDIA H200", False), ("NVIDIA H200", True), ("NVIDIA A100", False)):
        saved = Profile(identity=Identity(kind="gpu", gpu=gpu, sms=132, tf32=tf32))
        saved.save(default_path(saved.identity.name))

    def chosen(gpu: str | None, tf32: bool | None) -> str | None:
        monkeypatch.setattr(sources, "gpu_here", lambda: gpu)
        profile = sources.own_gpu_profile(tf32)
        return profile and profile.identity.name

    assert chosen("NVIDIA H200", False) == chosen("NVIDIA H200", None) == "gpu-nvidia-h200-132"
    assert chosen("NVIDIA H200", True) == "gpu-nvidia-h200-132-tf32"
    assert chosen("NVIDIA A100", False) == "gpu-nvidia-a100-132"
    assert chosen("NVIDIA A100", True) is None
    assert chosen("NVIDIA H100 PCIe", None) is None
    assert chosen(None, True) == "gpu-nvidia-h200-132-tf32"


def test_the_app_offers_this_gpu_if_it_is_calibrated(tmp_path, monkeypatch, profile):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    assert "this-gpu" not in jobs.choices()["machine"]
    profile.save(Path(tmp_path) / "profiles" / "gpu-x.json")
    assert jobs.choices()["machine"][1] == "this-gpu"
