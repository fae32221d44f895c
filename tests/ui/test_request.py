"""A request: its words, and the job and the placement that it asks for."""

import pytest

from calibrate.placement import Placement
from simulator.machine.scaled import scale_of
from simulator.model.job import Job
from traces.errors import SchedcastError
from ui.request import DECLARED, JobRequest

WHOLE = JobRequest(
    "lenet5", 24, 32, "adam", "fused", lr=0.1, clip_norm=1.5, accumulate=2, precision="amp", layout="nhwc", mode="graph",
    machine="dgx-h100", devices=1, link="copy:0.5", memory_limit=16.0, scale="memory=2", settings=("overlap=off",),
)  # fmt: skip


def test_a_request_says_what_is_not_as_usual():
    assert JobRequest("lenet5", 8).words == ["batch 8", "momentum:foreach", "default precision", "on this-cpu"]
    assert WHOLE.words == [
        "batch 24", "image size 32", "adam:fused", "norm at most 1.5", "2 microbatches", "amp", "nhwc", "graph", "on dgx-h100", "1 device",
        "link copy:0.5", "16 GB at most", "with memory=2", "overlap=off",
    ]  # fmt: skip


def test_the_job_and_the_placement_of_a_request():
    assert WHOLE.job() == Job("lenet5", 24, 32, "adam", "fused", 0.1, clip_norm=1.5, accumulate=2, precision="amp", layout="nhwc")
    placed = Placement(devices=1, mode="graph", link="copy:0.5", memory_limit_gb=16.0, scale=scale_of("memory=2"))
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
