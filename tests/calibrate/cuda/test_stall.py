"""Kernels that never end: calibration says so, keeps what it has measured, and does not measure them again.

The simulated GPU reports their operands as freed while in use, which does not matter as the process ends.
"""

import pytest
import torch

from calibrate.cuda.bench import STALLED, GpuStalledError, wait
from calibrate.cuda.sampler import calibrate_gpu
from calibrate.preflight.probe import usable
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import ACTIVATION, INPUT, Task
from tests.fake_gpu import FACTS, FakeGpu
from tests.support.gpu_testbeds import QUICK, SMALL, open_testbed
from tests.support.jobs import MLP, planned
from tests.support.small_plans import plan_of, value
from traces.documents.profile import Dispatch, Identity, Profile
from traces.errors import SchedcastError

WHOLE = load_machine("h200")


def two_ops():
    """A plan of two ops with keys of their own: neg and exp."""
    values = [value("x", (8,), INPUT), value("y", (8,), ACTIVATION), value("z", (8,), ACTIVATION)]
    tasks = [
        Task(name, OpCall(f"aten.{name}.default", '[{"$":0}]'), "cuda:0", reads=(source.operand(),), writes=(target.operand(),))
        for name, source, target in zip(("neg", "exp"), values, values[1:], strict=False)
    ]
    return plan_of(tasks, values)


def calibrated(gpu: FakeGpu, profile: Profile, place) -> None:
    calibrate_gpu([two_ops()], WHOLE, gpu, profile, place, lambda *progress: None, effort=QUICK)


def test_a_key_that_never_ends_fails_and_the_others_are_saved(tmp_path):
    place = tmp_path / "gpu.json"
    with FakeGpu(stalls={"aten.exp"}, races_allowed=True) as gpu:
        with pytest.raises(SchedcastError, match=r"measuring aten.exp.default\S* never ended, so the GPU cannot be used by this process"):
            calibrated(gpu, Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms)), place)
        assert not usable(gpu)
    saved = Profile.load(place)
    assert [key.partition("|")[0] for key in saved.costs] == ["aten.neg.default"]
    assert [(key.partition("|")[0], why) for key, why in saved.failures.items()] == [("aten.exp.default", f"{STALLED} it")]
    with FakeGpu() as gpu:
        calibrated(gpu, saved, place)
    assert len(saved.costs) == 1, "it is not tried again"


def test_a_wait_without_an_end_raises():
    with FakeGpu(stalls={"aten.exp"}, races_allowed=True) as gpu:
        x = torch.ones(4)
        wait(gpu)
        x.exp()
        with pytest.raises(GpuStalledError, match=STALLED):
            wait(gpu)


def test_co_runs_that_never_end_are_reported_once(tmp_path):
    job, place = Job(MLP, 4), tmp_path / "gpu.json"
    with FakeGpu(facts=SMALL, stalls_beside={"aten.mm"}, races_allowed=True) as gpu:
        testbed = open_testbed(gpu)
        profile = Profile(
            identity=testbed.identity,
            dispatch=Dispatch(dispatch_s=0.0),
            peak_flops={"fp32": 1e12},
            bandwidth_bytes_per_s=2e12,
            memory_bytes=SMALL.memory_bytes,
            cache_bytes=SMALL.cache_bytes,
            priority_levels=SMALL.priority_levels,
        )
        machine = testbed.machine(profile)
        plan = planned("turbodl", job, machine)
        with pytest.raises(SchedcastError, match="kernels beside each other never ended"):
            testbed.calibrate([plan], machine, profile, place, lambda *progress: None)
    saved = Profile.load(place)
    assert set(saved.costs) == set(plan.keys(machine))
    assert f"the interference of kernels was not measured: {STALLED} them" in saved.notes
    with FakeGpu(facts=SMALL) as gpu:
        assert not open_testbed(gpu).measure_contention([plan], machine, saved)
