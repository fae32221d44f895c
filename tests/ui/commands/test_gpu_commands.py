"""The commands that measure, run on a simulated GPU instead of `--device cuda`."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from calibrate.cuda.testbed import GpuTestbed
from calibrate.placement import Placement
from simulator.model.job import Job
from tests.support.gpu_testbeds import QUICK, hard_gpu, measured_profile
from tests.support.jobs import MLP
from traces.documents.comparison import Validation
from traces.documents.profile import Profile
from traces.documents.profile_files import default_path
from traces.errors import SchedcastError
from ui.commands import measuring, predicting, training

CUDA, GRAPH = Placement("cuda"), Placement("cuda", mode="graph")
HALVES = Placement("cuda", mode="graph", partition=2)


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


def job() -> Job:
    return Job(MLP, 4)


def printed(capfd) -> dict:
    return json.loads(capfd.readouterr().out)


def test_calibrate_then_predict_for_this_gpu(gpu, capfd):
    measuring.calibrate(job(), ["baseline"], [], None, CUDA, True)
    document = printed(capfd)
    profile = Profile.load(document["profile"])
    assert document["measured_keys"] == len(profile.costs) > 10
    assert (profile.identity.kind, profile.identity.gpu, Path(document["profile"]).name) == ("gpu", "Fake GPU", "gpu-fake-gpu-132.json")
    assert profile.partition_sms == {}  # partitions are made only where a schedule uses them
    predicting.predict([job()], ["baseline"], [], None, ["this-gpu"], CUDA, None, False, True)
    eager = printed(capfd)
    predicting.predict([job()], ["baseline"], [], None, ["this-gpu"], GRAPH, None, False, True)
    graph = printed(capfd)
    assert eager["shares"] == {"measured": 1.0, "fitted": 0.0, "guessed": 0.0}
    assert (eager["mode"], graph["mode"]) == ("eager", "graph")
    assert graph["step_s"] < eager["step_s"] / 2, "15 ops that the host takes 8 us each to issue"
    measuring.calibrate(job(), ["baseline"], [], None, CUDA, True)
    assert printed(capfd)["measured_keys"] == 0


@pytest.mark.thorough
def test_run_in_graphs(gpu, capfd, tmp_path):
    training.run(job(), "forward-fusion", [], None, 3 + 12, GRAPH, [], (tmp_path / "m.json", tmp_path / "t.json", None), True)
    document = printed(capfd)
    assert (document["mode"], document["steps"], len(document["losses"])) == ("graph", 15, 15)
    assert json.loads((tmp_path / "t.json").read_text())["mode"] == "graph"
    with pytest.raises(SchedcastError, match="graphs of 4 iterations need at least 11"):
        training.run(job(), "baseline", [], None, 10, GRAPH, [], (None, None, None), True)


@pytest.mark.thorough
@pytest.mark.parametrize("placement", [CUDA, GRAPH], ids=lambda placement: placement.mode)
def test_run_on_data_beside_autograd(gpu, capfd, placement):
    trained = Job("rnn_bitstream", 4, 4, precision="fp64")
    training.run(trained, "forward-fusion", [], None, 24, placement, ["autograd", "baseline"], (None, None, None), True)
    document = printed(capfd)
    assert [curve["name"] for curve in document["curves"]] == ["forward-fusion", "baseline", "autograd"]
    assert len(set(document["losses"])) == 24
    assert document["max_loss_difference"] < 1e-10
    assert all(after > before for curve in document["curves"] for before, after in pairwise(curve["seconds"]))


@pytest.mark.thorough
def test_two_devices_are_two_partitions_of_the_gpu(gpu, capfd, tmp_path):
    """The job runs before any calibration, as on a GPU without a preset; then its partitions are calibrated, and the job is predicted."""
    training.run(job(), "data-parallel", [], None, 3 + 8, HALVES, [], (None, tmp_path / "t.json", None), True)
    document = printed(capfd)
    assert (document["strategy"], len(document["losses"])) == ("data-parallel", 11)
    assert {span["device"] for span in json.loads((tmp_path / "t.json").read_text())["spans"]} == {"cuda:0/0", "cuda:0/1"}
    measuring.calibrate(job(), ["data-parallel"], [], None, HALVES, True)
    profile = Profile.load(printed(capfd)["profile"])
    assert {key.rpartition("@")[2] for key in profile.costs} == {"64", "132"}, "plain PyTorch uses the whole GPU"
    assert any(key.startswith("copy|add|float32|") for key in profile.costs)
    predicting.predict([job()], ["data-parallel"], [], None, ["this-gpu"], HALVES, None, False, True)
    predicted = printed(capfd)
    assert [device["name"] for device in predicted["devices"]] == ["cuda:0/0", "cuda:0/1"]
    assert predicted["shares"]["measured"] == 1.0


@pytest.mark.thorough
def test_on_partitions_the_baseline_uses_the_whole_gpu(gpu, capfd):
    """Both sizes are calibrated, and the baseline is measured beside the partitions."""
    measuring.validate(job(), ["data-parallel"], [], None, True, HALVES, None, True)
    document = Validation.model_validate({name: item for name, item in printed(capfd).items() if name != "schema"})
    baseline, parallel = document.results
    assert (baseline.status, parallel.status) == ("ok", "ok")
    assert list(baseline.measured_peak_bytes_by_device) == ["cuda:0"]
    profile = Profile.load(default_path(document_name(document)))
    assert {key.rpartition("@")[2] for key in profile.costs} == {"64", "132"}
    predicting.predict([job()], ["baseline"], [], None, ["this-gpu"], GRAPH, None, False, True)
    assert printed(capfd)["step_s"] == pytest.approx(baseline.predicted_step_s)


def document_name(document: Validation) -> str:
    """The name of the profile of a validation's GPU."""
    return f"gpu-{document.device['name'].lower().replace(' ', '-')}-{document.device['sms']}"


def test_one_process_uses_one_gpu(gpu):
    with pytest.raises(SchedcastError, match=r"--devices 2: one process uses one GPU; start torchrun .* with --partition 2"):
        measuring.validate(job(), ["data-parallel"], [], None, True, Placement("cuda", 2), None, True)


def test_a_gpu_that_cannot_be_split_is_refused(gpu):
    gpu.partitionable = False
    with pytest.raises(SchedcastError, match="Fake GPU cannot be partitioned"):
        training.run(job(), "data-parallel", [], None, 11, HALVES, [], (None, None, None), True)


@pytest.mark.thorough
def test_validate_with_a_report(gpu, capfd, tmp_path):
    measuring.validate(job(), ["backward-fusion"], [], None, True, GRAPH, tmp_path / "report", True)
    document = Validation.model_validate({k: v for k, v in printed(capfd).items() if k != "schema"})
    assert (document.mode, document.device["kind"], document.device["name"]) == ("graph", "gpu", "Fake GPU")
    assert [row.strategy for row in document.ran] == ["baseline", "backward-fusion"]
    assert all(row.tracing_overhead is not None and row.calibration == "profile" for row in document.ran)
    assert (tmp_path / "report" / "index.html").exists()
