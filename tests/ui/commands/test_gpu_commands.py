"""The commands that measure, run on a simulated GPU instead of `--device cuda`."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from calibrate.cuda.testbed import GpuTestbed
from tests.fake_gpu import FakeGpus
from tests.support.gpu_testbeds import QUICK, SMALL, TIMES, hard_gpu, measured_profile
from tests.support.jobs import MLP
from traces.documents.comparison import Validation
from traces.documents.profile import Profile
from traces.documents.profile_files import default_path
from traces.errors import SchedcastError
from ui.commands import measuring, predicting, training
from ui.request import JobRequest

CUDA = JobRequest(MLP, 4, device="cuda", precision="fp32", machine="")
GRAPH = replace(CUDA, mode="graph")
HALVES = replace(GRAPH, partition=2)


measured = pytest.fixture(scope="module")(measured_profile)


@pytest.fixture
def gpu(monkeypatch, tmp_path, measured):
    """A simulated GPU behind `--device cuda`, with a data folder whose profile has the machine's figures but no costs."""
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path / "data"))
    measured.model_copy(update={"costs": {}}).save(default_path(measured.identity.name))
    quick = partial(GpuTestbed, effort=QUICK, reference_edge=32, transfer_sizes=(4096, 65536, 1 << 20))
    monkeypatch.setattr("calibrate.cuda.testbed.GpuTestbed", quick)
    with hard_gpu() as simulated:
        monkeypatch.setattr("executors.cuda.torch_driver.gpu", lambda index: simulated)
        yield simulated


def asked(request: JobRequest, *strategies: str) -> JobRequest:
    return replace(request, strategies=strategies)


def trained(request: JobRequest, steps: int, beside=(), places=(None, None, None)):
    training.run(request, steps=steps, beside=[*beside], places=places, as_json=True)


def validated(request: JobRequest, out=None):
    measuring.validate(request, calibration=True, out=out, as_json=True)


def predicted(request: JobRequest):
    predicting.predict([request], timeline=None, show_plan=False, as_json=True)


def printed(capfd) -> dict:
    return json.loads(capfd.readouterr().out)


def test_calibrate_then_predict_for_this_gpu(gpu, capfd):
    measuring.calibrate(asked(CUDA, "baseline"), None, True)
    document = printed(capfd)
    profile = Profile.load(document["profile"])
    assert document["measured_keys"] == len(profile.costs) > 10
    assert (profile.identity.kind, profile.identity.gpu, Path(document["profile"]).name) == ("gpu", "Fake GPU", "gpu-fake-gpu-132.json")
    assert profile.partition_sms == {}  # partitions are made only where a schedule uses them
    predicted(asked(CUDA, "baseline"))
    eager = printed(capfd)
    predicted(asked(GRAPH, "baseline"))
    graph = printed(capfd)
    assert eager["shares"] == {"measured": 1.0, "fitted": 0.0, "guessed": 0.0}
    assert (eager["mode"], graph["mode"]) == ("eager", "graph")
    assert graph["step_s"] < eager["step_s"] / 2, "15 ops that the host takes 8 us each to issue"
    measuring.calibrate(asked(CUDA, "baseline"), None, True)
    assert printed(capfd)["measured_keys"] == 0


@pytest.mark.thorough
def test_run_in_graphs(gpu, capfd, tmp_path):
    trained(asked(GRAPH, "forward-fusion"), 3 + 12, places=(tmp_path / "m.json", tmp_path / "t.json", None))
    document = printed(capfd)
    assert (document["mode"], document["steps"], len(document["losses"])) == ("graph", 15, 15)
    assert json.loads((tmp_path / "t.json").read_text())["mode"] == "graph"
    with pytest.raises(SchedcastError, match="graphs of 4 iterations need at least 11"):
        trained(asked(GRAPH, "baseline"), 10)


@pytest.mark.thorough
@pytest.mark.parametrize("request_", [CUDA, GRAPH], ids=lambda request: request.mode)
def test_run_on_data_beside_autograd(gpu, capfd, request_):
    on_data = replace(request_, model="rnn_bitstream", image_size=4, precision="fp64")
    trained(asked(on_data, "forward-fusion"), 24, ["autograd", "baseline"])
    document = printed(capfd)
    assert [curve["name"] for curve in document["curves"]] == ["forward-fusion", "baseline", "autograd"]
    assert len(set(document["losses"])) == 24
    assert document["max_loss_difference"] < 1e-10
    assert all(after > before for curve in document["curves"] for before, after in pairwise(curve["seconds"]))


@pytest.mark.thorough
def test_two_devices_are_two_partitions_of_the_gpu(gpu, capfd, tmp_path):
    """The job runs before any calibration, as on a GPU without a preset; then its partitions are calibrated, and the job is predicted."""
    trained(asked(HALVES, "data-parallel"), 3 + 8, places=(None, tmp_path / "t.json", None))
    document = printed(capfd)
    assert (document["strategy"], len(document["losses"])) == ("data-parallel", 11)
    assert {span["device"] for span in json.loads((tmp_path / "t.json").read_text())["spans"]} == {"cuda:0/0", "cuda:0/1"}
    measuring.calibrate(asked(HALVES, "data-parallel"), None, True)
    profile = Profile.load(printed(capfd)["profile"])
    assert {key.rpartition("@")[2] for key in profile.costs} == {"64", "132"}, "plain PyTorch uses the whole GPU"
    assert any(key.startswith("copy|add|float32|") for key in profile.costs)
    predicted(asked(HALVES, "data-parallel"))
    document = printed(capfd)
    assert [device["name"] for device in document["devices"]] == ["cuda:0/0", "cuda:0/1"]
    assert document["shares"]["measured"] == 1.0


@pytest.mark.thorough
def test_on_partitions_the_baseline_uses_the_whole_gpu(gpu, capfd):
    """Both sizes are calibrated, and the baseline is measured beside the partitions."""
    validated(asked(HALVES, "data-parallel"))
    document = Validation.model_validate({name: item for name, item in printed(capfd).items() if name != "schema"})
    baseline, parallel = document.results
    assert (baseline.status, parallel.status) == ("ok", "ok")
    assert list(baseline.measured_peak_bytes_by_device) == ["cuda:0"]
    profile = Profile.load(default_path(document_name(document)))
    assert {key.rpartition("@")[2] for key in profile.costs} == {"64", "132"}
    predicted(asked(GRAPH, "baseline"))
    assert printed(capfd)["step_s"] == pytest.approx(baseline.predicted_step_s)


def document_name(document: Validation) -> str:
    """The name of the profile of a validation's GPU."""
    return f"gpu-{document.device['name'].lower().replace(' ', '-')}-{document.device['sms']}"


@pytest.fixture
def two_gpus(gpu, monkeypatch):
    """Two simulated GPUs behind `--device cuda`, of which PyTorch says that there are two."""
    gpu.deactivate()
    with FakeGpus(2, TIMES, SMALL) as gpus:
        monkeypatch.setattr("executors.cuda.torch_driver.gpu", lambda index=0: gpus[index])
        monkeypatch.setattr("executors.cuda.torch_driver.visible_gpus", lambda: 2)
        monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
        yield gpus
    gpu.activate()


@pytest.mark.thorough
def test_one_process_uses_two_gpus(two_gpus, capfd, tmp_path):
    """They train before any calibration; then costs and copies between them are measured, and what this process takes is predicted."""
    both = replace(CUDA, devices=2, batch=8)
    trained(asked(both, "1f1b"), 12, places=(None, tmp_path / "t.json", None))
    document = printed(capfd)
    assert (document["strategy"], len(document["losses"])) == ("1f1b", 12)
    assert {span["device"] for span in json.loads((tmp_path / "t.json").read_text())["spans"]} == {"cuda:0", "cuda:1"}
    default_path("gpu-fake-gpu-132").unlink()
    measuring.calibrate(asked(both, "data-parallel"), None, True)
    profile = Profile.load(printed(capfd)["profile"])
    assert {"cuda:0>cuda:1", "cuda:1>cuda:0"} <= profile.transfers.keys()
    predicted(asked(both, "data-parallel"))
    document = printed(capfd)
    assert [device["name"] for device in document["devices"]] == ["cuda:0", "cuda:1"]
    assert document["shares"]["measured"] == 1.0
    validated(asked(both, "data-parallel"))
    validation = printed(capfd)
    assert validation["device"]["devices"] == 2
    assert [row["status"] for row in validation["results"]] == ["ok", "ok"]
    assert validation["results"][1]["predicted_step_s"] == pytest.approx(document["step_s"])


def test_more_gpus_than_there_are_and_unlike_ones_are_refused(two_gpus):
    with pytest.raises(SchedcastError, match=r"^--devices 4: this process sees 2 GPUs .*; choose at most 2, split one with --partition 4"):
        validated(asked(replace(CUDA, devices=4), "data-parallel"))
    two_gpus[1].facts = replace(two_gpus[1].facts, name="Another GPU")
    with pytest.raises(SchedcastError, match="the first 2 GPUs are Fake GPU and Another GPU, and plans expect equal ones"):
        validated(asked(replace(CUDA, devices=2), "data-parallel"))


def test_a_gpu_that_cannot_be_split_is_refused(gpu):
    gpu.partitionable = False
    with pytest.raises(SchedcastError, match="Fake GPU cannot be partitioned"):
        trained(asked(HALVES, "data-parallel"), 11)


@pytest.mark.thorough
def test_validate_with_a_report(gpu, capfd, tmp_path):
    validated(asked(GRAPH, "backward-fusion"), tmp_path / "report")
    document = Validation.model_validate({k: v for k, v in printed(capfd).items() if k != "schema"})
    assert (document.mode, document.device["kind"], document.device["name"]) == ("graph", "gpu", "Fake GPU")
    assert [row.strategy for row in document.ran] == ["baseline", "backward-fusion"]
    assert all(row.tracing_overhead is not None and row.calibration == "profile" for row in document.ran)
    assert (tmp_path / "report" / "index.html").exists()
