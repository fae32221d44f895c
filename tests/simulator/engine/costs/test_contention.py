"""Interference runs become multipliers, and multipliers longer forecasts; those that rest on noise or cannot be scored are not used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.cpu import contention as co_run_contention
from calibrate.cpu.contention import learn_contention
from calibrate.cpu.monitor import undisturbed_s
from calibrate.identity import cpu_identity
from simulator.engine.costs import contention
from simulator.engine.costs.contention import (
    COMPUTE,
    MEMORY,
    SMALL,
    UPDATE,
    concurrent_pairs,
    fit,
    group_of,
    pair_multipliers,
    typical_ratio,
)
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.interference import modeled_slow_downs
from simulator.engine.simulation import simulate
from simulator.model.job import Job
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import tiny
from tests.support.jobs import MLP, planned
from traces.documents.profile import Contention, Identity, Interference, KeyCost, Profile, Stats

RUN = Interference(COMPUTE, COMPUTE, 1.2)
PAIRS = {(COMPUTE, COMPUTE): 1.05, (COMPUTE, MEMORY): 1.1, (MEMORY, COMPUTE): 1.2, (MEMORY, MEMORY): 1.4}


def synthetic(factors=PAIRS, noise=(0.99, 1.01), modeled=1.0):
    """Two fitted and two held-out interference runs of every pair, one a little below and one a little above its factor."""
    return [
        Interference(a, b, factor * modeled * off, modeled, held_out)
        for (a, b), factor in factors.items()
        for held_out in (False, True)
        for off in noise
    ]


def test_known_factors_come_back():
    fitted = fit(synthetic(noise=(1.0, 1.0)), "cpu")
    assert fitted.multipliers == {"compute|compute": 1.05, "compute|memory": 1.1, "memory|compute": 1.2, "memory|memory": 1.4}
    assert fitted.rejected == {}
    assert fitted.held_out_error == 0.0
    assert fitted.held_out_error_without == pytest.approx(sum(1 - 1 / f for f in PAIRS.values()) / 4, rel=1e-3)


def test_a_multiplier_is_typical_of_its_pair_and_scored_on_others():
    fitted = fit([Interference("a", "b", 1.0), Interference("a", "b", 1.44), Interference("a", "b", 1.5, 1.0, True)], "cpu")
    assert fitted.multipliers == {"a|b": 1.2}
    assert fitted.held_out_error == pytest.approx(1 - 1.2 / 1.5)
    assert fitted.held_out_error_without == pytest.approx(1 - 1 / 1.5, rel=1e-3)


def test_on_a_cpu_multipliers_replace_the_modelled_slow_down_and_on_a_gpu_they_multiply_it():
    assert set(fit(synthetic({("a", "b"): 1.2}, modeled=1.5), "gpu").multipliers.values()) == {1.2}
    assert set(fit(synthetic({("a", "b"): 1.2}, modeled=1.5), "cpu").multipliers.values()) == {1.8}


def test_pairs_share_a_multiplier_if_that_predicts_better():
    # Interference runs of different pairs differ less than interference runs of one pair.
    rows = [Interference("a", beside, factor) for beside, factor in (("a", 1.1), ("a", 1.31), ("b", 1.12), ("b", 1.3))]
    assert len(set(fit([*rows, Interference("a", "a", 1.2, 1.0, True)], "cpu").multipliers.values())) == 1
    rows += [Interference("b", "a", factor) for factor in (2.0, 2.2)]
    fitted = fit([*rows, Interference("a", "a", 1.2, 1.0, True)], "cpu").multipliers
    assert fitted["a|a"] == fitted["a|b"] < 1.3 < 2.0 < fitted["b|a"]


def test_an_interrupted_thread_has_a_bounded_effect():
    assert typical_ratio([1.0, 1.0, 1.0, 1.0]) == 1.0
    assert typical_ratio([1.0, 1.0, 1.0, 1000.0]) == typical_ratio([1.0, 1.0, 1.0, 2.0])
    assert typical_ratio([1.0, 1.0, 1.0, 0.001]) == typical_ratio([1.0, 1.0, 1.0, 0.5])


def test_without_co_runs_there_are_no_multipliers():
    fitted = fit([], "cpu")
    assert (fitted.multipliers, fitted.rejected, fitted.held_out_error, fitted.known) == ({}, {}, None, frozenset())


def test_multipliers_that_cannot_be_scored_are_not_used():
    fitted = fit([Interference("a", "a", 1.3), Interference("a", "a", 1.3)], "cpu")
    assert (fitted.multipliers, fitted.rejected, fitted.held_out_error) == ({}, {"a|a": 1.3}, None)


def test_a_speed_up_counts_as_one_and_is_rejected():
    fitted = fit(synthetic({("a", "a"): 0.9}), "cpu")
    assert (fitted.multipliers, fitted.rejected) == ({}, {"a|a": 1.0})
    assert fitted.held_out_error == fitted.held_out_error_without > 0


def test_multipliers_that_do_not_predict_others_are_rejected():
    fitted = fit(
        [
            Interference("a", "a", 1.5),
            Interference("a", "a", 1.5),
            Interference("a", "a", 1.0, 1.0, True),
            Interference("a", "a", 1.02, 1.0, True),
        ],
        "cpu",
    )
    assert (fitted.multipliers, fitted.rejected) == ({}, {"a|a": 1.5})
    assert fitted.held_out_error > fitted.held_out_error_without


@pytest.mark.thorough
@given(
    st.lists(st.builds(Interference, st.sampled_from("ab"), st.sampled_from("ab"), st.floats(0.1, 9.0), st.floats(1.0, 2.0), st.booleans()))
)
def test_a_fit_is_never_below_one_nor_worse_than_none(rows):
    fitted = fit(rows, "cpu")
    assert all(factor >= 1.0 for factor in (fitted.multipliers | fitted.rejected).values())
    if fitted.multipliers:
        assert fitted.held_out_error < fitted.held_out_error_without


def test_a_fit_comes_back_from_disk(tmp_path):
    fitted = fit(synthetic(), "cpu").model_copy(update={"disturbed": True, "unmeasured": ["small|small"]})
    profile = Profile(identity=cpu_identity(), contention=fitted)
    loaded = Profile.load(profile.save(tmp_path / "p.json")).contention
    assert loaded == fitted
    assert isinstance(loaded.co_runs[0], Interference)
    assert loaded.known == {*PAIRS, (SMALL, SMALL)}


def test_groups():
    assert group_of("conv", 1e-3, "cpu") == group_of("matmul.attention", 1e-6, "gpu") == COMPUTE
    assert group_of("norm.layer", 1e-3, "cpu") == group_of("elementwise", 1e-3, "cpu") == MEMORY
    assert group_of("update.adam:for", 1e-3, "cpu") == UPDATE
    assert group_of("update.adam:for", 1e-6, "gpu") == group_of("norm.layer", 1e-6, "gpu", "bf16") == MEMORY
    products = [(kind, precision) for kind in ("gpu", "cpu") for precision in ("tf32", "bf16")]
    assert [group_of("conv", 1e-3, *of) for of in products] == [COMPUTE, "compute.bf16", COMPUTE, COMPUTE]
    assert group_of("conv", 5e-5, "cpu") == SMALL


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"": 1.1, "bf16": 1.5}, (1.1, 1.5, 1.5, 1.1, 1.1)),
        ({"": 1.1}, (1.1, 1.1, 1.1, 1.1, 1.1)),  # as every profile from before there were others
        ({"bf16": 1.5}, (1.5, 1.5, 1.5, 1.5, 1.5)),
        ({"": 1.1, "bf16": None}, (1.1, None, None, 1.1, 1.1)),  # multipliers that do not help in bf16
        ({"": None, "bf16": 1.5}, (None, 1.5, 1.5, None, None)),
        ({}, (None, None, None, None, None)),
    ],
)
def test_products_have_the_multipliers_of_their_precision_else_of_another(measured, expected):
    fits = {
        name: Contention(multipliers=dict.fromkeys(map("|".join, PAIRS), x) if x else {}, co_runs=[RUN]) for name, x in measured.items()
    }
    profile = Profile(identity=Identity(kind="gpu"), contention=fits.pop("", Contention()), other_contention=fits)
    half = "compute.bf16"
    pairs = (COMPUTE, COMPUTE), (half, MEMORY), (MEMORY, half), (MEMORY, MEMORY), ("compute.fp16", "compute.fp16")
    multipliers = pair_multipliers(profile)
    assert tuple(map(multipliers.get, pairs)) == expected
    assert multipliers.get((COMPUTE, half)) == expected[0], "of two precisions, that of the task which slows down"


def lanes(*groups, machine=None, on=None):
    """The concurrent pairs of a plan with one task per (stream, group)."""
    timed = [
        tiny.task(f"t{i}", reads="x", writes=f"y{i}", stream=stream, group=group, on=(on or {}).get(stream, "d"))
        for i, (stream, group) in enumerate(groups)
    ]
    plan, costs = tiny.build(*timed)
    return concurrent_pairs(plan, machine or tiny.cpu(cores=2), costs)


def test_groups_on_different_lanes_of_one_memory_are_concurrent():
    assert lanes((0, "a"), (0, "b")) == set()
    assert lanes((0, "a"), (0, "b"), (1, "c")) == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}
    assert lanes((0, "a"), (1, "a")) == {("a", "a")}
    assert lanes((0, "a"), (1, "")) == set()
    apart = {0: "p", 1: "q"}
    assert lanes((0, "a"), (1, "b"), machine=tiny.gpu("p", "q"), on=apart) == set()
    assert lanes((0, "a"), (1, "b"), machine=tiny.gpu("p", "q", memory="hbm"), on=apart) == {("a", "b"), ("b", "a")}


def test_the_modelled_slow_down_is_the_engines():
    streaming, computing = (Cost("k", 1.0, 1.0, memory_share=share) for share in (0.7, 0.0))
    machine = tiny.cpu(cores=1, overhead_s=1.0)  # each lane has a core, and nothing else takes time
    assert modeled_slow_downs([streaming], [streaming], machine.devices[0], machine) == pytest.approx((1.4, 1.4))
    assert modeled_slow_downs([streaming], [computing] * 2, machine.devices[0], machine) == (1.0, 1.0)
    full, few = Cost("k", 1.0, 1.0, grid=10, compute_share=1.0), Cost("k", 1.0, 1.0, grid=4, compute_share=1.0)
    machine = tiny.gpu()
    assert modeled_slow_downs([full], [full], machine.devices[0], machine) == (1.0, 2.0)
    assert modeled_slow_downs([few], [few], machine.devices[0], machine) == (1.0, 1.0)
    many = [full] * 3
    assert modeled_slow_downs(many, many, machine.devices[0], machine) == (pytest.approx(5 / 3), 2.0)
    assert modeled_slow_downs(many, many, machine.devices[0], machine, priority=-1) == (1.0, 2.0), "the urgent lane runs as if alone"


FACTORS = st.dictionaries(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), st.floats(1.0, 3.0))
TASKS = st.lists(st.tuples(st.floats(1e-3, 1.0), st.integers(0, 1), st.sampled_from("ab")), min_size=1, max_size=8)


@given(TASKS, FACTORS)
def test_two_lanes_are_never_faster_for_slowing_each_other_down(tasks, factors):
    timed = [
        tiny.task(f"t{i}", s, reads=f"y{i - 2}" if i > 1 else "x", writes=f"y{i}", stream=stream, group=group)
        for i, (s, stream, group) in enumerate(tasks)
    ]
    plan, costs = tiny.build(*timed)
    machine = tiny.cpu(cores=2)
    alone = simulate(plan, machine, costs, iterations=2)
    assert simulate(plan, machine, costs, iterations=2, pair_multipliers=factors).step_s >= alone.step_s * (1 - 1e-9)


def calibrated(plan, machine, known=None, seconds=1e-3) -> Profile:
    """A profile in which every task of the plan takes `seconds`."""
    stats = Stats(seconds, seconds, seconds, seconds, 8)
    return Profile(identity=cpu_identity(), costs={key: KeyCost(stats) for key in plan.keys(machine)}, contention=known or Contention())


def test_a_forecast_uses_the_profiles_multipliers_where_lanes_share_a_memory(two_cores):
    slow = Contention(multipliers={f"{a}|{b}": 2.0 for a in (COMPUTE, MEMORY, UPDATE) for b in (COMPUTE, MEMORY, UPDATE)})
    for text, longer in (("backward-fusion:update_stream=on", True), ("backward-fusion", False)):
        plan = planned(text, Job(MLP, 4), two_cores)
        without, with_ones, with_twos = (
            forecast(plan, Target.of(CostModel(two_cores, calibrated(plan, two_cores, known)))).timeline.step_s
            for known in (None, Contention(multipliers={"compute|compute": 1.0}), slow)
        )
        assert without == pytest.approx(with_ones)  # tiny operands draw almost no bandwidth
        assert (with_twos > with_ones * 1.05) == longer


def test_on_a_cpu_with_multipliers_tasks_draw_no_bandwidth(two_cores):
    plan = planned("backward-fusion:update_stream=on", Job(MLP, 4), two_cores)
    shares = [
        max(cost.memory_share for cost in CostModel(two_cores, calibrated(plan, two_cores, known, 1e-9)).resolve(plan))
        for known in (None, Contention(multipliers={"small|small": 1.1}))
    ]
    assert shares[0] > shares[1] == 0.0


def test_co_runs_are_measured_once_and_only_where_lanes_share_a_memory(two_cores, monkeypatch):
    monkeypatch.setattr(co_run_contention, "ROUNDS", 2)
    monkeypatch.setattr(co_run_contention, "FEWEST", 2)
    monkeypatch.setattr(contention, "SMALL_S", 100.0)  # all tasks count as short, however busy the machine is
    one, two = (planned(text, Job(MLP, 4), two_cores) for text in ("backward-fusion", "backward-fusion:update_stream=on"))
    profile = calibrated(two, two_cores, seconds=1e-5)
    costs = dict(profile.costs)
    assert not learn_contention([one], two_cores, profile)
    assert profile.contention == Contention()
    assert learn_contention([one, two], two_cores, profile)
    fitted = profile.contention
    assert {(run.group, run.beside) for run in fitted.co_runs} == {(SMALL, SMALL)}
    assert {run.held_out for run in fitted.co_runs} == {False, True}
    assert len({run.key for run in fitted.co_runs}) == len(fitted.co_runs) <= 2 * co_run_contention.KEYS
    assert all(run.slow_down > 0 and run.modeled >= 1 for run in fitted.co_runs)
    assert fitted.held_out_error is not None
    assert profile.costs == costs, "times of single keys that the interference runs measured are not kept"
    profile.contention.disturbed = False
    assert not learn_contention([two], two_cores, profile)
    profile.contention.disturbed = True
    assert learn_contention([two], two_cores, profile)
    assert len(profile.contention.co_runs) == len(fitted.co_runs)


def test_a_pair_without_suitable_tasks_is_not_measured_again(two_cores, monkeypatch):
    monkeypatch.setattr(co_run_contention, "ROUNDS", 1)
    monkeypatch.setattr(co_run_contention, "FEWEST", 1)
    monkeypatch.setattr(co_run_contention, "group_of", lambda op_class, seconds, kind: "another")
    plan = planned("backward-fusion:update_stream=on", Job(MLP, 4), two_cores)
    profile = calibrated(plan, two_cores, seconds=1e-3)  # the profile calls the tasks long; measured, they are of another group
    assert learn_contention([plan], two_cores, profile)
    assert profile.contention.co_runs == []
    assert sorted(profile.contention.unmeasured) == ["compute|update", "memory|update", "update|compute", "update|memory"]
    profile.contention.disturbed = False
    assert not learn_contention([plan], two_cores, profile)


def test_a_call_is_timed_on_its_own_thread():
    assert undisturbed_s(lambda: None) >= 0.0
