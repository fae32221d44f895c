"""Interference on the simulated GPU, whose streams slow kernels down by given factors: they are fitted, scored, stored and used.

Kernels that never end: calibration says so, keeps what it has measured, and does not measure them again. The simulated GPU reports their
operands as freed while in use, which does not matter as the process ends.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrate.cuda import testbed as gpu_testbed
from calibrate.cuda.bench import wait
from calibrate.cuda.contention import learn_contention
from calibrate.cuda.sampler import BROKEN, calibrate_gpu
from calibrate.preflight.probe import usable
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import STALLED, GpuStalledError
from simulator.engine.costs.contention import COMPUTE, MEMORY, best_saturation_share
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import gpu_machine, load_machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, Task
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support.gpu_testbeds import KERNELS, QUICK, SMALL, open_testbed
from tests.support.jobs import MLP
from tests.support.refusals import refuses
from tests.support.small_plans import mm, plan_of, value
from traces.documents.profile import Contention, Dispatch, Identity, Interference, Profile
from traces.errors import Code

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


@pytest.mark.thorough
def test_a_key_that_never_ends_fails_and_the_others_are_saved(tmp_path):
    place = tmp_path / "gpu.json"
    with FakeGpu(stalls={"aten.exp"}, races_allowed=True) as gpu:
        with refuses(Code.REQUEST, r"measuring aten.exp.default\S* never ended, so the GPU cannot be used by this process"):
            calibrated(gpu, Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms)), place)
        assert not usable(gpu)
    saved = Profile.load(place)
    assert [key.partition("|")[0] for key in saved.costs] == ["aten.neg.default"]
    assert [(key.partition("|")[0], why) for key, why in saved.failures.items()] == [("aten.exp.default", f"{STALLED} it")]
    with FakeGpu() as gpu:
        calibrated(gpu, saved, place)
    assert len(saved.costs) == 1, "it is not tried again"


class Breaking(FakeGpu):
    """Refuses one op, and every wait after it. `dies`: the process ends instead."""

    broken, dies = False, False

    def _issue(self, func, args, kwargs):
        if str(func.overloadpacket) == "aten.exp":
            if self.dies:
                raise SystemExit
            self.broken = True
            raise RuntimeError("an illegal memory access was encountered")
        return super()._issue(func, args, kwargs)

    def synchronize(self, in_flight=None):
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")
        super().synchronize(in_flight)


@pytest.mark.thorough
def test_a_key_that_leaves_the_gpu_unusable_is_not_measured_again(tmp_path):
    place = tmp_path / "gpu.json"
    with Breaking() as gpu, refuses(Code.REQUEST, r"measuring aten.exp.default\S* left the GPU unusable \(.*illegal memory access"):
        calibrated(gpu, Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms)), place)
    saved = Profile.load(place)
    assert [key.partition("|")[0] for key in saved.costs] == ["aten.neg.default"]
    assert list(saved.failures.values()) == [f"{BROKEN} (RuntimeError: an illegal memory access was encountered)"]
    with Breaking() as gpu:
        calibrated(gpu, saved, place)
    assert len(saved.costs) == 1


@pytest.mark.thorough
def test_nor_is_one_during_which_the_process_died(tmp_path, monkeypatch):
    """Nothing of that process has the key's name but a file beside the profile."""
    place, unlinked = tmp_path / "gpu.json", Path.unlink
    profile = Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms))
    monkeypatch.setattr(Breaking, "dies", True)
    monkeypatch.setattr(Path, "unlink", lambda path, **how: None if path.suffix == ".key" else unlinked(path, **how))
    with Breaking() as gpu, pytest.raises(SystemExit):
        calibrated(gpu, profile, place)
    monkeypatch.undo()
    saved = Profile.load(place)
    with Breaking() as gpu:
        calibrated(gpu, saved, place)
    assert list(saved.failures.values()) == [f"{BROKEN}: its process died"]
    assert not list(tmp_path.glob("*.key"))


def test_a_wait_without_an_end_raises():
    with FakeGpu(stalls={"aten.exp"}, races_allowed=True) as gpu:
        x = torch.ones(4)
        wait(gpu)
        x.exp()
        with pytest.raises(GpuStalledError, match=STALLED):
            wait(gpu)


@pytest.mark.thorough
def test_co_runs_that_never_end_are_reported_once(tmp_path):
    plan, place = two_lanes("float32"), tmp_path / "gpu.json"
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
        with refuses(Code.REQUEST):
            testbed.calibrate([plan], machine, profile, place, lambda *progress: None)
    saved = Profile.load(place)
    assert set(saved.costs) == set(plan.keys(machine))
    assert f"the interference of kernels was not measured: {STALLED} them" in saved.notes
    with FakeGpu(facts=SMALL) as gpu:
        assert not open_testbed(gpu).measure_contention([plan], machine, saved)


PAIRS = {(a, b) for a in (COMPUTE, MEMORY) for b in (COMPUTE, MEMORY)}
FIGURES = {
    "memory_bytes": 256 << 20, "bandwidth_bytes_per_s": 2e12, "cache_bytes": 4 << 20, "priority_levels": 6,
    "peak_flops": dict.fromkeys(("fp32", "tf32", "bf16", "fp64"), 1e13), "dispatch": Dispatch(dispatch_s=5e-6),
}  # fmt: skip


def learned_on(gpu, precision: str = "fp32") -> Contention:
    """The contention that the testbed would measure."""
    return learn_contention(gpu, given_profile(gpu), precision, KERNELS, QUICK)


def given_profile(gpu) -> Profile:
    """The simulated machine's figures, without measuring them."""
    return Profile(identity=open_testbed(gpu).identity, **FIGURES)


#: Products in bf16 slow down as persistent kernels do, which wait for one another's SMs.
BESIDE = {"aten.mm": 1.1, "aten.neg": 1.5, "aten.mm of bfloat16": 2.0}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("profiler", "precision", "slower"), [(True, "fp32", 1.1), (False, "default", 1.1), (True, "bf16", 2.0)])
def test_the_given_slow_downs_are_fitted(profiler, precision, slower):
    times = Times(beside=BESIDE, gap_s=0.0, cross_gap_s=0.0)
    with FakeGpu(times, SMALL, profiler=profiler) as gpu:
        learned = learned_on(gpu, precision)
    assert learned.multipliers == pytest.approx(
        {"compute|compute": slower, "compute|memory": slower, "memory|compute": 1.5, "memory|memory": 1.5}
    )
    assert learned.held_out_error < 0.01 < 0.1 < learned.held_out_error_without
    assert {(run.group, run.beside) for run in learned.co_runs} == learned.known == PAIRS
    assert [sum(run.held_out == held for run in learned.co_runs) for held in (False, True)] == [10, 10]
    assert learned.saturation_share is None, "small kernels do not show it"


def test_kernels_that_do_not_slow_down_need_no_multipliers():
    with FakeGpu(Times(gap_s=0.0, cross_gap_s=0.0), SMALL) as gpu:
        learned = learned_on(gpu)
    assert learned.multipliers == {}
    assert set(learned.rejected.values()) == {1.0}
    assert learned.held_out_error == learned.held_out_error_without < 1e-3


def plans(profile, *texts, precision="fp32"):
    machine = gpu_machine(profile)
    job = Job(MLP, 4, precision=precision).on("gpu")
    parsed = [strategies.parse(text) for text in texts]
    return [s.plan(job, machine, CostModel(machine, profile), options) for s, options in parsed], machine


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("precision", "measured", "products"), [("fp32", "", COMPUTE), ("amp", "bf16", "compute.bf16")])
def test_a_calibration_measures_co_runs_once_where_lanes_share_the_gpu(precision, measured, products, monkeypatch):
    with FakeGpu(Times(beside={"aten.mm": 1.2}, gap_s=0.0, cross_gap_s=0.0), SMALL) as gpu:
        profile, testbed = given_profile(gpu), open_testbed(gpu)
        one, machine = plans(profile, "baseline", precision=precision)
        two, _ = plans(profile, "backward-fusion:update_stream=on", precision=precision)
        assert not testbed.measure_contention(one, machine, profile)
        assert profile.contentions == {}
        assert testbed.measure_contention([*one, *two], machine, profile)
        monkeypatch.setattr(gpu_testbed, "learn_contention", None)  # not to be called again
        assert not testbed.measure_contention(two, machine, profile)
    assert list(profile.contentions) == [measured]
    assert CostModel(machine, profile).pair_multipliers[products, MEMORY] == pytest.approx(1.2)
    cost = next(cost for cost in CostModel(machine, profile).resolve(two[0]) if cost.group == MEMORY)
    assert cost.memory_share > 0, "on a GPU multipliers apply in addition to shared bandwidth"


def two_lanes(dtype: str) -> Plan:
    """Four products of two matrices on each of two streams."""
    made = [replace(value(f"{name}{i}", (8, 8), kind), dtype=dtype) for name, kind in (("x", INPUT), ("y", ACTIVATION)) for i in range(8)]
    return plan_of([mm(f"mm{i}", made[i], made[i], made[8 + i], stream=i % 2) for i in range(8)], made)


@pytest.mark.thorough
def test_a_plan_in_bf16_is_predicted_by_co_runs_in_bf16():
    """Those in float32 leave the plan's slow-down uncertain. Neither changes what the other predicts."""
    plans = {dtype: two_lanes(dtype) for dtype in ("float32", "bfloat16")}
    times = Times(kernel_s=lambda op, size: 100e-6, beside=BESIDE, gap_s=0.0, cross_gap_s=0.0)
    with FakeGpu(times, SMALL) as gpu:
        profile, testbed = given_profile(gpu), open_testbed(gpu)
        machine = gpu_machine(profile)
        calibrate_gpu(plans.values(), machine, gpu, profile, None, lambda *progress: None, effort=QUICK)

        def predicted(dtype):
            return forecast(plans[dtype], Target.of(CostModel(machine, profile), "graph"))

        def error(dtype):
            inputs = {f"x{i}": torch.ones(8, 8, dtype=getattr(torch, dtype)) for i in range(8)}
            run = CudaBackend(machine, gpu, "graph").load(plans[dtype], inputs, 0).run(12)
            return predicted(dtype).timeline.step_s / run.steps_s[-1] - 1

        assert testbed.measure_contention([plans["float32"]], machine, profile)
        before = predicted("float32")
        assert (error("float32"), error("bfloat16")) == pytest.approx((0.0, 1.1 / 2 - 1), abs=0.02)
        assert "slow-down" in predicted("bfloat16").sensitivity.deviations
        assert testbed.measure_contention(plans.values(), machine, profile)
        assert not testbed.measure_contention(plans.values(), machine, profile)
        assert (error("float32"), error("bfloat16")) == pytest.approx((0.0, 0.0), abs=0.02)
    assert "slow-down" not in {**predicted("bfloat16").sensitivity.deviations, **before.sensitivity.deviations}
    assert predicted("float32").timeline.step_s == before.timeline.step_s
    assert list(profile.contentions) == ["", "bf16"]


def test_co_runs_that_fail_leave_a_note_and_nothing_else(monkeypatch):
    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(gpu_testbed, "learn_contention", fail)
    with FakeGpu(facts=SMALL) as gpu:
        profile = given_profile(gpu)
        two, machine = plans(profile, "backward-fusion:update_stream=on")
        assert not open_testbed(gpu).measure_contention(two, machine, profile)
    assert profile.notes == ["the interference of kernels was not measured: RuntimeError: no room"]


def rows(modeled):
    """A fitted and a held-out pair, both measured to take twice as long, and modeled to take `modeled` times as long."""
    return [Interference(MEMORY, MEMORY, 2.0, modeled, held_out) for held_out in (False, True)]


def test_the_saturation_share_is_the_one_that_explains_the_pairs():
    by_share = {0.2: rows(1.6), 0.3: rows(1.5), 0.5: rows(2.0), 0.8: rows(1.0)}
    assert best_saturation_share(by_share, 0.3) == 0.5
    assert best_saturation_share(by_share, 0.5) is None
    assert best_saturation_share(dict.fromkeys(by_share, rows(1.5)), 0.3) is None
    by_share[0.5][1] = by_share[0.5][1]._replace(modeled=1.0)  # worse on what was not fitted
    assert best_saturation_share(by_share, 0.3) is None
    assert best_saturation_share({0.3: [], 0.5: []}, 0.3) is None


@given(st.floats(0.05, 1.0), st.booleans())
def test_a_fitted_share_is_the_machines(share, in_bf16):
    identity, fitted = Identity(kind="gpu", gpu="Unheard of", sms=132), Contention(saturation_share=share, co_runs=rows(1.0))
    profile = Profile(identity=identity, **({"other_contention": {"bf16": fitted}} if in_bf16 else {"contention": fitted}), **FIGURES)
    assert gpu_machine(profile).memories[0].saturation_share == share
    without = profile.model_copy(update={"contention": Contention(), "other_contention": {}})
    assert replace(gpu_machine(profile).memories[0], saturation_share=0.3) == gpu_machine(without).memories[0]


def test_the_first_precision_determines_the_share():
    with FakeGpu(facts=SMALL) as gpu:
        profile = given_profile(gpu)
        profile.contention = Contention(saturation_share=0.45, co_runs=rows(1.0))
        assert learn_contention(gpu, profile, "bf16", KERNELS, QUICK).saturation_share == 0.45
