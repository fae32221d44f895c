"""Interference on the simulated GPU, whose streams slow kernels down by given factors: they are fitted, scored, stored and used."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.cuda import testbed as gpu_testbed
from calibrate.cuda.contention import learn_contention
from simulator.engine.costs.contention import COMPUTE, MEMORY, best_saturation_share
from simulator.engine.costs.model import CostModel
from simulator.machine.this_gpu import gpu_machine
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.fake_gpu import FakeGpu, Times
from tests.support.gpu_testbeds import KERNELS, QUICK, SMALL, open_testbed
from tests.support.jobs import MLP
from traces.documents.profile import Contention, CoRun, Dispatch, Identity, Profile

PAIRS = {(a, b) for a in (COMPUTE, MEMORY) for b in (COMPUTE, MEMORY)}
FIGURES = {
    "memory_bytes": 256 << 20, "bandwidth_bytes_per_s": 2e12, "cache_bytes": 4 << 20, "priority_levels": 6,
    "peak_flops": dict.fromkeys(("fp32", "tf32", "bf16", "fp64"), 1e13), "dispatch": Dispatch(dispatch_s=5e-6),
}  # fmt: skip


def learned_on(gpu) -> Contention:
    """The contention that the testbed would measure."""
    return learn_contention(gpu, given_profile(gpu), "fp32", KERNELS, QUICK)


def given_profile(gpu) -> Profile:
    """The simulated machine's figures, without measuring them."""
    return Profile(identity=open_testbed(gpu).identity, **FIGURES)


@pytest.mark.parametrize("profiler", [True, False])
def test_the_given_slow_downs_are_fitted(profiler):
    times = Times(beside={"aten.mm": 1.1, "aten.neg": 1.5}, gap_s=0.0, cross_gap_s=0.0)
    with FakeGpu(times, SMALL, profiler=profiler) as gpu:
        learned = learned_on(gpu)
    assert learned.multipliers == pytest.approx(
        {"compute|compute": 1.1, "compute|memory": 1.1, "memory|compute": 1.5, "memory|memory": 1.5}
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


def plans(gpu, profile, *texts):
    machine = gpu_machine(profile)
    job = Job(MLP, 4)
    parsed = [strategies.parse(text) for text in texts]
    return [s.plan(job, machine, CostModel(machine, profile), options) for s, options in parsed], machine


def test_a_calibration_measures_co_runs_once_where_lanes_share_the_gpu(monkeypatch):
    with FakeGpu(Times(beside={"aten.mm": 1.2}, gap_s=0.0, cross_gap_s=0.0), SMALL) as gpu:
        profile, testbed = given_profile(gpu), open_testbed(gpu)
        one, machine = plans(gpu, profile, "baseline")
        two, _ = plans(gpu, profile, "backward-fusion:update_stream=on")
        assert not testbed.measure_contention(one, machine, profile)
        assert profile.contention == Contention()
        assert testbed.measure_contention([*one, *two], machine, profile)
        monkeypatch.setattr(gpu_testbed, "learn_contention", None)  # not to be called again
        assert not testbed.measure_contention(two, machine, profile)
    assert CostModel(machine, profile).pair_multipliers[COMPUTE, MEMORY] == pytest.approx(1.2)
    cost = next(cost for cost in CostModel(machine, profile).resolve(two[0]) if cost.group == MEMORY)
    assert cost.memory_share > 0, "on a GPU multipliers apply in addition to shared bandwidth"


def test_co_runs_that_fail_leave_a_note_and_nothing_else(monkeypatch):
    def fail(*_):
        raise RuntimeError("no room")

    monkeypatch.setattr(gpu_testbed, "learn_contention", fail)
    with FakeGpu(facts=SMALL) as gpu:
        profile = given_profile(gpu)
        two, machine = plans(gpu, profile, "backward-fusion:update_stream=on")
        assert not open_testbed(gpu).measure_contention(two, machine, profile)
    assert profile.notes == ["the interference of kernels was not measured: RuntimeError: no room"]


def rows(modeled):
    """A fitted and a held-out pair, both measured to take twice as long, and modeled to take `modeled` times as long."""
    return [CoRun(MEMORY, MEMORY, 2.0, modeled, held_out) for held_out in (False, True)]


def test_the_saturation_share_is_the_one_that_explains_the_pairs():
    by_share = {0.2: rows(1.6), 0.3: rows(1.5), 0.5: rows(2.0), 0.8: rows(1.0)}
    assert best_saturation_share(by_share, 0.3) == 0.5
    assert best_saturation_share(by_share, 0.5) is None
    assert best_saturation_share(dict.fromkeys(by_share, rows(1.5)), 0.3) is None
    by_share[0.5][1] = by_share[0.5][1]._replace(modelled=1.0)  # worse on what was not fitted
    assert best_saturation_share(by_share, 0.3) is None
    assert best_saturation_share({0.3: [], 0.5: []}, 0.3) is None


@given(st.floats(0.05, 1.0))
def test_a_fitted_share_is_the_machines(share):
    identity = Identity(kind="gpu", gpu="Unheard of", sms=132)
    profile = Profile(identity=identity, contention=Contention(saturation_share=share), **FIGURES)
    assert gpu_machine(profile).memories[0].saturation_share == share
    without = profile.model_copy(update={"contention": Contention()})
    assert replace(gpu_machine(profile).memories[0], saturation_share=0.3) == gpu_machine(without).memories[0]
