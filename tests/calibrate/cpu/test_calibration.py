"""Calibration of a few keys on this CPU: every key can be sampled, failures are kept and reported, nothing is measured twice."""

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrate.cpu import sampler
from calibrate.cpu.contention import InterferenceRounds
from calibrate.cpu.monitor import CpuMonitor, Disturbance
from calibrate.cpu.sampler import Sampler
from calibrate.distributed.testbeds import CpuGroupTestbed
from calibrate.identity import cpu_identity
from calibrate.operands import OperandPool, fill
from calibrate.planned import does_not_fit, plan_all, require_memory_together
from calibrate.profiles import open_profile, own_profile, warn_if_foreign
from calibrate.samples import store_samples
from executors.distributed.ranks import Ranks
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Device, Link, Machine, Memory
from simulator.model.job import Job
from simulator.plan.task import ACTIVATION, INPUT
from simulator.predict.forecast import Forecast, forecast
from simulator.predict.largest_batch import Fitting
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support.applicable import default_plans
from tests.support.jobs import MLP, planned
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.samples import read_samples
from tests.support.small_plans import mm, plan_of, value
from traces.documents.profile import Identity, Profile, Stats
from traces.documents.profile_files import default_path
from traces.errors import Code, UnusableFileError


def test_the_workers_of_a_co_run_have_no_tensors_in_common(two_cores):
    """Otherwise one would find in the shared cache what the other has read, as lanes of a plan do not."""
    job, profile = Job(MLP, 4), Profile(identity=cpu_identity())
    plan = planned("turbodl", job, two_cores, CostModel(two_cores, profile))
    interference = InterferenceRounds.for_plans([plan], two_cores, profile)
    timed, other = ({t.data_ptr() for t in sampler._pool._tensors.values()} for sampler in (interference._sampler, interference._beside))
    assert len(timed) == len(other) > 0
    assert not timed & other
    assert interference._sampler.samples.keys() == interference._beside.samples.keys()


MODELS = ["lenet5", *(f"{path}:make" for path in USER_MODELS)]


def quiet(done: int, total: int, text: str) -> None:
    """Show no progress."""


def all_plans(model: str, machine, **fields) -> list:
    """Every strategy's plan for 4 samples."""
    job = Job(model, 4, **fields)
    return list(default_plans(job, machine).values())


def tiny(machine) -> list:
    """The plans of two linear layers."""
    return all_plans(MLP, machine)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model).stem)
def test_every_key_can_be_sampled(model, optimizer, two_cores, backend):
    sampler = Sampler(backend)
    for plan in all_plans(model, two_cores, optimizer=optimizer):
        sampler.add(plan, plan.keys(two_cores))
    sampler.sample(list(sampler.samples), 0)
    assert sampler.failures == {}
    assert len(sampler.samples) > 10
    assert all(len(s.cold_s) == len(s.warm_s) == 1 and s.cold_s[0] > 0 for s in sampler.samples.values())


def test_operands_are_distinct_and_plausible(two_cores):
    plan = all_plans(MLP, two_cores, optimizer="adam")[0]
    update = plan.tasks[-1]
    tensors = fill(update, plan, OperandPool())
    assert len({item.data_ptr() for item in tensors.values()}) == len(tensors) == 5 * 4
    assert all(float(item) == 10 for name, item in tensors.items() if name.endswith("::step"))
    assert all(float(item.min()) >= 0 for name, item in tensors.items() if name.endswith("::exp_avg_sq"))
    assert any(float(item.min()) < 0 for name, item in tensors.items() if name.endswith("::exp_avg"))


def test_a_sampled_task_fetches_its_operands_as_in_its_plan(two_cores, backend):
    plan = tiny(two_cores)[0]
    sampler = Sampler(backend)
    sampler.add(plan, plan.keys(two_cores))
    for key, samples in sampler.samples.items():
        compiled = sampler._compiled[key]
        local = {o.value for o in (*samples.task.inputs, *samples.task.writes) if plan.storage_of(o) not in plan.carried}
        assert len(compiled.instance.slots) == len(local), key
        assert len(compiled.written) == len(samples.task.writes)


def test_keys_in_the_profile_are_not_measured_again(two_cores, backend, tmp_path):
    profile, place = Profile(identity=cpu_identity()), tmp_path / "p.json"
    plans = tiny(two_cores)
    seen = []
    measured = sampler.calibrate_cpu(
        plans, two_cores, partial(Sampler, backend), profile, place, lambda done, total, text: seen.append((done, total))
    )
    keys = {key for plan in plans for key in plan.keys(two_cores)}
    assert measured == len(keys) == len(profile.costs)
    assert set(Profile.load(place).costs) == keys
    assert seen == [(sample, measured * sampler.ROUNDS) for sample in range(measured * sampler.ROUNDS + 1)]
    assert {record["key"] for record in read_samples(place)} == keys
    assert all(len(record["samples_s"]) == sampler.ROUNDS for record in read_samples(place))
    costs = dict(profile.costs)
    assert sampler.calibrate_cpu(plans, two_cores, partial(Sampler, backend), profile, place, quiet) == 0
    assert profile.costs == costs


def test_groups_are_saved_one_by_one(two_cores, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "GROUP", 5)
    saved = []
    monkeypatch.setattr(Profile, "save", lambda self, path: saved.append(len(self.costs)))
    profile = Profile(identity=cpu_identity())
    measured = sampler.calibrate_cpu(tiny(two_cores), two_cores, partial(Sampler, backend), profile, tmp_path / "p.json", quiet)
    assert saved == [*range(5, measured, 5), measured]


@pytest.mark.parametrize("message", ["DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "CUDA out of memory"])
def test_a_key_that_failed_for_memory_is_tried_again_by_the_next_calibration(two_cores, backend, tmp_path, monkeypatch, capsys, message):
    from ui.commands.measuring import _show_failures

    def no_memory(*_):
        raise RuntimeError(message)

    plan, place = tiny(two_cores)[0], tmp_path / "p.json"
    profile = Profile(identity=cpu_identity())
    with monkeypatch.context() as patched:
        patched.setattr("calibrate.cpu.sampler.compile_alone", no_memory)
        sampler.calibrate_cpu([plan], two_cores, partial(Sampler, backend), profile, place, quiet, rounds=2)
    assert set(profile.failures.values()) == {"not enough memory at the time"}
    later = Profile.load(place)
    assert sampler.calibrate_cpu([plan], two_cores, partial(Sampler, backend), later, place, quiet, rounds=2) == len(profile.failures)
    _show_failures(later)
    assert capsys.readouterr().err == ""
    assert (later.failures, set(later.costs)) == ({}, set(profile.failures))


def test_a_key_that_fails_is_recorded_reported_and_not_tried_again_by_this_calibration(two_cores, backend, tmp_path, capsys):
    from ui.commands.measuring import _show_failures

    left, right, out = (value(name, shape, kind, "cpu:0") for name, shape, kind in (
        ("x", (3, 4), INPUT), ("y", (5, 6), INPUT), ("z", (3, 6), ACTIVATION),
    ))  # fmt: skip
    plan = plan_of([mm("impossible", left, right, out)], [left, right, out])
    (key,) = plan.keys(two_cores)
    profile, place = Profile(identity=cpu_identity()), tmp_path / "p.json"
    assert sampler.calibrate_cpu([plan], two_cores, partial(Sampler, backend), profile, place, quiet) == 1
    assert profile.costs == {}
    assert "mat1 and mat2 shapes cannot be multiplied" in Profile.load(place).failures[key]
    assert sampler.calibrate_cpu([plan], two_cores, partial(Sampler, backend), profile, place, quiet) == 0
    _show_failures(profile)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("schedcast: not measured: aten.mm.default: RuntimeError: mat1 and mat2")
    good = tiny(two_cores)
    sampler.calibrate_cpu(
        [plan, *good], two_cores, partial(Sampler, backend), profile, None, quiet
    )  # one failure does not affect other keys
    assert set(profile.costs) == {key for plan in good for key in plan.keys(two_cores)}


def test_winsorised_means_and_quartiles_come_from_all_rounds_but_the_first(two_cores, backend):
    sampler = Sampler(backend)
    plan = tiny(two_cores)[0]
    key, task = next(iter(plan.keys(two_cores).items()))
    sampler.add(plan, {key: task})
    samples = sampler.samples[key]
    samples.warm_s, samples.cold_s, samples.numbers = [9.0, 1.0, 1.0, 10.0], [9.0, 2.0, 2.0, 2.0], [0, 1, 2, 3]
    profile = Profile(identity=cpu_identity())
    store_samples(sampler.samples, sampler.failures, profile, range(1, 4))
    assert profile.costs[key].warm == Stats.from_samples([1.0, 1.0, 10.0])
    assert profile.costs[key].warm.mean_s == pytest.approx(4 / 3, rel=1e-5)
    assert profile.costs[key].cold.median_s == 2.0
    store_samples(sampler.samples, sampler.failures, profile, [3])
    assert profile.costs[key].warm.median_s == 10.0


def test_profiles_of_this_and_other_machines(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path))
    place = default_path(cpu_identity().name)
    assert own_profile() is None
    created, where = open_profile(None, create=True)
    assert (created.identity, where) == (cpu_identity(), place)
    assert not warn_if_foreign(created, where)
    with refuses(Code.FILE):
        open_profile(None)
    created.save(place)
    assert own_profile().identity == cpu_identity()
    other = Profile(identity=Identity(kind="cpu", cpu="Elsewhere 9000", cores=64, torch="0.1"))
    assert warn_if_foreign(other, "there.json")
    assert "cpu-elsewhere-9000-64" in caplog.text
    assert cpu_identity().name in caplog.text
    other.save(place)
    assert own_profile() is None
    place.write_text("{")
    with pytest.raises(UnusableFileError, match="delete it and make it again"):
        open_profile(None, create=True)


def test_memory_is_checked_before_anything_is_allocated(two_cores):
    def small(size_bytes: int) -> Machine:
        return Machine("small", (Device("cpu:0", "cpu", 2, {"fp32": 1e11}, "ram"),), (Memory("ram", size_bytes, 2e10, 32 << 20),))

    job = Job("vgg16", 4)  # 1.1 GB (10**9 bytes) of parameters and momentum
    forecasts, refused = plan_all(job, strategies.names(1), {}, Target.of(CostModel(small(10**9))))
    assert forecasts == {}
    assert list(refused) == strategies.names(1)
    for label, refusal in refused.items():
        assert refusal.code is Code.MEMORY
        if label != "bppsa":  # which does not even plan
            assert re.search(
                r" does not fit: needs .* GiB \(allocated\), 953.7 MiB \(1 GB\) there, .* MiB too much; peak of .*parameters", refusal.words
            )
        assert "; no smaller batch is predicted to fit" in refusal.words, "parameters and state alone are too large"
    machine = small(3 * 10**9)  # enough for one strategy, but not for all together
    forecasts, refused = plan_all(job, strategies.names(1), {}, Target.of(CostModel(machine)))
    assert list(refused) == ["bppsa"]  # its Jacobians alone need more
    with refuses(
        Code.MEMORY, rf"comparing {len(forecasts)} strategies at once does not fit: needs .* GiB \(allocated\), 2.79 GiB \(3 GB\) there"
    ):
        require_memory_together(forecasts.values(), calibrate=True)


def two_replicas(machine: Machine) -> Forecast:
    strategy, options = strategies.parse("data-parallel:fetch=off", {})
    model = CostModel(machine)
    return forecast(strategy.plan(Job("lenet5", 64), machine, model, options), Target(machine, model))


def test_core_groups_share_a_memory_and_gpus_have_their_own():
    cores = tuple(Device(f"cpu:{i}", "cpu", 1, {"fp32": 1e11}, "ram") for i in range(2))
    shared = Machine("shared", cores, (Memory("ram", 10**9, 2e10, 32 << 20),))
    predicted = two_replicas(shared)
    one, total = predicted.peak_bytes["cpu:0"], predicted.memory_bytes["ram"]
    assert 1.5 * one < total <= sum(predicted.peak_bytes.values())
    assert predicted.fits
    tight = two_replicas(shared.with_memory_limit(1.5 * one))
    assert not tight.fits
    assert re.search(
        r"needs .* there, .* too much; peak of .* on cpu:0.*; at their own peaks cpu:1 ", does_not_fit(tight, Fitting(None)).words
    )
    apart = tuple(replace(device, memory=f"ram {i}") for i, device in enumerate(cores))
    memories = tuple(Memory(f"ram {i}", 10**9, 2e10, 32 << 20) for i in range(2))
    own = replace(shared, devices=apart, memories=memories, links=(Link("cpu:0", "cpu:1", 0.0, 1e10),))
    assert two_replicas(own.with_memory_limit(1.5 * one)).fits
    tight = two_replicas(own.with_memory_limit(0.5 * one))
    assert re.match(
        r"data-parallel does not fit: needs .* in ram [01], .* there, .* too much; 1 other memory is too small",
        does_not_fit(tight, Fitting(32)).words,
    )
    assert does_not_fit(tight, Fitting(32)).words.endswith("; the largest batch that fits is 32")
    limited = own.with_memory_limit(2.1 * one)
    with refuses(Code.MEMORY, r"comparing 2 strategies at once does not fit: needs .* in ram 0.*held by"):
        require_memory_together([two_replicas(limited), two_replicas(limited)], calibrate=False)
    require_memory_together([two_replicas(limited)], calibrate=False)
    with refuses(Code.MEMORY):
        require_memory_together([two_replicas(limited)] * 2, calibrate=False)


def test_a_limit_is_no_more_than_the_machine_has(two_cores):
    assert two_cores.with_memory_limit(None) is two_cores
    assert two_cores.with_memory_limit(1e30) == two_cores
    assert two_cores.with_memory_limit(1e6).memories[0].size_bytes == 10**6


def test_processes_keep_to_a_memory_limit_too():
    testbed = CpuGroupTestbed(SimpleNamespace(ranks=Ranks(0, 2, 0, 2)))
    testbed.memory_limit_bytes = 1e6
    assert {memory.size_bytes for memory in testbed.machine(None).memories} == {10**6}


def test_the_monitor_returns_shares_of_the_machines_time():
    monitor = CpuMonitor()
    end = time.process_time() + 0.2
    while time.process_time() < end:  # our own work is not foreign
        pass
    disturbance = monitor.stop()
    assert 0.0 <= disturbance.steal <= 1.5
    assert 0.0 <= disturbance.foreign <= 1.5
    assert not Disturbance(0.0, 0.0).rejected
    assert Disturbance(0.2, 0.0).rejected
    assert Disturbance(0.0, 0.2).rejected


def test_an_op_on_a_relus_result_is_calibrated_with_numbers_that_a_relu_can_return(two_cores):
    plan = planned("baseline", Job("lenet5", 2), two_cores)
    pool = next(task for task in plan.tasks if "max_pool2d_with_indices" in task.name)
    (images,) = fill(pool, plan, OperandPool()).values()
    assert images.min() == 0
    assert images.max() > 0
