"""Calibration of a simulated GPU, compared with its given times."""

import gc
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calibrate.cuda import sampler
from calibrate.cuda import testbed as gpu_testbed
from calibrate.cuda.bench import Bench, Cold, Effort, in_turn, objects_kept, results_kept
from calibrate.cuda.contention import Sizes, measure_pairs
from calibrate.cuda.device_record import GpuMonitor
from calibrate.cuda.host import HostYardstick, measure_host, measure_launches, queue_depth
from calibrate.cuda.rates import ReferenceKernel, measure_rates
from calibrate.cuda.sampler import CudaSampler
from calibrate.cuda.testbed import GpuLoop, GpuTestbed
from calibrate.cuda.transfers import fit_transfer, measure_peers, measure_transfers
from simulator.machine.machine import Device, Machine, Memory
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.update import STATE, forms
from simulator.plan.task import ACTIVATION, INPUT, Task
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support import models
from tests.support.applicable import default_plans, plan_unless_refused
from tests.support.gpu_testbeds import SMALL, few_repetitions, open_testbed
from tests.support.jobs import MLP
from tests.support.nvml import Nvml
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.samples import read_samples
from tests.support.small_plans import machine, mm, plan_of, value
from traces.documents.profile import Identity, Profile
from traces.errors import Code

US = 1e-6
MODELS = ["lenet5", *(f"{path}:make" for path in USER_MODELS)]
QUICK = Effort(rounds=1, fewest_copies=1, most_copies=1, most_sets=2, most_issues=1, sustained_s=0.0)
#: A small cache, which takes little time to flush.
SMALL_CACHE = replace(FACTS, cache_bytes=4096)
#: One GPU, as large as the simulated one.
WHOLE = Machine("fake", (Device("cuda:0", "gpu", FACTS.sms, {"fp32": 1e12}, "hbm"),), (Memory("hbm", 8 << 30, 2e12, 4 << 20),))
HALVES = Machine(
    "halves", tuple(Device(f"cuda:0.{i}", "gpu", 64, {"fp32": 5e11}, "hbm") for i in range(2)), (Memory("hbm", 8 << 30, 2e12, 4 << 20),)
)


def quiet(done: int, total: int, text: str) -> None:
    """Show no progress."""


def empty_profile() -> Profile:
    return Profile(identity=Identity(kind="gpu", gpu="Fake GPU", sms=FACTS.sms))


def planned(model: str, **fields) -> list:
    """Every strategy's plan for 4 samples."""
    job = Job(model, 4, **fields)
    return list(default_plans(job, WHOLE).values())


def product(edge: int, device: str = "cuda:0"):
    """A plan of one matrix product."""
    x, y, z = (value(name, (edge, edge), kind, device) for name, kind in (("x", INPUT), ("y", INPUT), ("z", ACTIVATION)))
    return plan_of([mm("product", x, y, z)], [x, y, z])


def negation(elements: int):
    """A plan of one op that reads and writes `elements` floats."""
    x, y = value("x", (elements,), INPUT), value("y", (elements,), ACTIVATION)
    return plan_of([Task("neg", OpCall("aten.neg.default", '[{"$":0}]'), "cuda:0", reads=(x.operand(),), writes=(y.operand(),))], [x, y])


def sampled(gpu: FakeGpu, plan, effort: Effort | None = None):
    """The samples of the only key of `plan`."""
    sampler = CudaSampler(gpu, effort=effort)
    sampler.measure(plan, plan.keys(WHOLE))
    sampler.learn_geometry()
    assert sampler.failures == {}
    assert sampler.notes == []
    (samples,) = sampler.samples.values()
    return samples


@pytest.mark.parametrize("kernel_s", [2 * US, 37 * US, 900 * US])
def test_a_key_takes_its_kernel_and_the_gap_to_the_next(kernel_s):
    with FakeGpu(Times(kernel_s=lambda op, size: kernel_s, gap_s=1.5 * US)) as gpu:
        samples = sampled(gpu, product(16), Effort(most_copies=20))
    assert len(samples.warm_s) == len(samples.cold_s) == 5
    assert samples.warm_s == pytest.approx([kernel_s + 1.5 * US] * 5, rel=0.01)
    assert samples.cold_s == pytest.approx([kernel_s + 1.5 * US] * 5, rel=0.01)


@pytest.mark.parametrize("kilobytes", [16, 256, 1024, 3000])
def test_warm_and_cold_samples_differ(kilobytes):
    size = kilobytes << 10
    with FakeGpu(Times(least_s=3 * US, bytes_per_s=1e10, warm_factor=0.25, rewrite_factor=0.0, gap_s=1 * US)) as gpu:
        samples = sampled(gpu, negation(size // 4), Effort(rounds=3, most_copies=40))
    warm = kilobytes <= 2000  # written bytes count too: beyond half of the 4 MB, a copy evicts its own operand
    assert statistics.median(samples.warm_s) == pytest.approx(4 * US + size * (1.25 if warm else 2) / 1e10, rel=0.01)
    assert statistics.median(samples.cold_s) == pytest.approx(4 * US + size * 2 / 1e10, rel=0.01)


@pytest.mark.parametrize(("rotated", "writes"), [(True, 1.0), (False, 0.0)])
def test_results_are_written_as_in_a_step_that_keeps_them_for_its_backward_pass(rotated, writes, monkeypatch):
    """A key that writes again where it wrote before, in the cache, takes half of its time in a step."""
    if not rotated:
        monkeypatch.setattr(sampler, "results_kept", lambda *sizes: 0)
    size, times = 16 << 10, Times(bytes_per_s=1e9, rewrite_factor=0.0)
    with FakeGpu(times, replace(FACTS, cache_bytes=4 * size)) as gpu:
        samples = sampled(gpu, negation(size // 4), Effort(rounds=1, most_copies=20))
        results = [torch.ones(size // 4)]
        for _ in range(10):
            results.append(-results[-1])
    assert [run.end_s - run.start_s for run in gpu.timeline[-10:]] == pytest.approx([times.least_s + 2 * size / 1e9] * 10)
    alone_s = times.least_s + (1 + writes) * size / 1e9 + times.gap_s
    assert samples.warm_s + samples.cold_s == pytest.approx([alone_s] * 2)


def test_kept_results_exceed_the_cache_as_cold_operands_do():
    size = 4 << 10
    with FakeGpu(facts=replace(FACTS, cache_bytes=16 * size)) as gpu:
        in_turn([lambda: torch.ones(size // 4).add_(1)], lambda: None, results_kept(size, gpu.facts.cache_bytes))(100)
        assert (gpu.allocated_bytes(), gpu.peak_bytes()) == (0, (2 * 16 + 1) * size)


def test_beyond_twice_the_cache_warm_is_cold():
    with FakeGpu(Times(warm_factor=0.25, rewrite_factor=0.0, bytes_per_s=1e10)) as gpu:
        samples = sampled(gpu, negation(9 << 18), Effort(rounds=2))
    assert samples.warm_s is samples.cold_s
    assert samples.cold_s[0] == pytest.approx(3 * US + (18 << 20) / 1e10, rel=0.01)


class Watched(Nvml):
    """NVML for a simulated GPU, which says whether the GPU is at work now and meets the power cap."""

    def __init__(self, gpu: FakeGpu):
        self.gpu = gpu
        super().__init__()

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        busy = max(stream.tail_s for stream in self.gpu.streams) > self.gpu.now_s()
        return 0x01 if not busy else 0x04 if self.gpu.kernel_times.heat_s >= self.gpu.times.cap_after_s else 0


@pytest.mark.parametrize(("sustained_s", "factor"), [(20e-3, 1.25), (0.0, 1.0)])
def test_a_key_that_is_bound_by_compute_is_timed_at_the_clock_of_a_step(sustained_s, factor, monkeypatch):
    """A step of products meets the power cap after 10 ms; a burst does not. A negation, which waits for memory, draws less power."""
    times = Times(kernel_s=lambda op, size: 100 * US, hot=["aten.mm"], cap_after_s=10e-3, capped_factor=1.25, gap_s=1 * US)
    profile = empty_profile()
    with FakeGpu(times, SMALL_CACHE) as gpu:
        monkeypatch.setattr(gpu_testbed, "GpuMonitor", lambda uuid: GpuMonitor(nvml=Watched(gpu)))
        testbed = GpuTestbed(gpu, effort=Effort(rounds=2, most_sets=4, sustained_s=sustained_s))
        testbed.calibrate([product(16), negation(256)], WHOLE, profile, None, quiet)
        x = torch.ones(16, 16)
        for _ in range(300):
            x.mm(x)
    assert statistics.median(run.end_s - run.start_s for run in gpu.timeline[-300:]) == pytest.approx(125 * US), "in a step"
    of_product, of_negation = (next(cost for key, cost in profile.costs.items() if key.startswith(op)) for op in ("aten.mm", "aten.neg"))
    assert of_product.warm.median_s == pytest.approx(factor * 100 * US + 1 * US, rel=1e-3)
    assert of_product.cold.median_s == pytest.approx(factor * 100 * US + 1 * US, rel=1e-3)
    assert of_product.burst_s == (pytest.approx(101 * US, rel=1e-3) if sustained_s else None)
    assert (of_negation.warm.median_s, of_negation.burst_s) == (pytest.approx(101 * US, rel=1e-3), None)
    capped = "the power cap held the SM clock down for moments; it was 1980 MHz whenever it was read"
    assert profile.notes == ([capped] if sustained_s else []), "read while the GPU is busy: it is idle between two keys"


def test_the_reference_kernel_takes_as_long_between_steps_as_at_calibration():
    """Where steps meet the power cap, a burst of it would take longer between them, and keys would seem to have changed."""
    times = Times(kernel_s=lambda op, size: 20 * US, hot=["aten.mm"], cap_after_s=2e-3, capped_factor=1.25)
    with FakeGpu(times, SMALL_CACHE) as gpu:
        kernel, x = ReferenceKernel(gpu, 4, Effort(sustained_s=4e-3)), torch.ones(4, 4)
        gpu.clock.spend(1.0)
        at_calibration = kernel.sample()
        for _ in range(200):
            x.mm(x)
        assert kernel.sample() == pytest.approx(at_calibration)


def test_medians_hold_against_noise():
    with FakeGpu(Times(kernel_s=lambda op, size: 40 * US, noise=0.05, gap_s=1 * US)) as gpu:
        samples = sampled(gpu, product(16))
    assert statistics.median(samples.warm_s) == pytest.approx(41 * US, rel=0.05)


def test_sets_of_operands_for_cold_copies():
    cache, budget = 50 << 20, 17 << 30
    assert Cold.for_operands(4096, cache, budget, 175, 64) == Cold(64, 32, False)  # every copy has its own set
    assert Cold.for_operands(10 << 20, cache, budget, 20, 64) == Cold(11, 20, False)  # the copies cycle through 110 MB
    assert Cold.for_operands(10 << 20, cache, budget, 4, 64) == Cold(8, 4, False)
    assert Cold.for_operands(200 << 20, cache, budget, 4, 64) == Cold(2, 4, True)
    assert Cold.for_operands(10 << 30, cache, budget, 4, 64) == Cold(1, 1, True)


def test_issue_seconds_are_the_hosts():
    with FakeGpu(Times(kernel_s=lambda op, size: 100 * US, op_s_by_name={"aten.mm": 13 * US})) as gpu:
        samples = sampled(gpu, product(16))
    assert samples.issue_s == pytest.approx([13 * US] * 5)


def test_a_key_is_measured_on_its_partition():
    times = Times(kernel_s=lambda op, size: 52 * US, least_s=2 * US, gap_s=0.0)
    profile = empty_profile()
    with FakeGpu(times) as gpu:
        sampler.calibrate_gpu([product(16), product(16, "cuda:0.1")], _both(), gpu, profile, None, quiet, effort=QUICK)
    whole, half = (next(cost for key, cost in profile.costs.items() if key.endswith(f"@{sms}")) for sms in (132, 64))
    assert whole.warm.median_s == pytest.approx(52 * US)
    assert half.warm.median_s == pytest.approx(2 * US + 50 * US * 132 / 64)


def _both() -> Machine:
    """The GPU and its two halves, as one machine."""
    whole = replace(WHOLE.devices[0], memory="all")
    return Machine("both", (whole, *HALVES.devices), (*HALVES.memories, Memory("all", 8 << 30, 2e12, 4 << 20)))


def test_a_machine_that_is_not_this_gpu_is_refused():
    with FakeGpu() as gpu:
        with refuses(Code.REQUEST, "toy says that cuda:0 has 10 SMs; Fake GPU has 132"):
            sampler.calibrate_gpu([product(16)], machine(), gpu, empty_profile(), None, quiet)
        odd = replace(HALVES, devices=tuple(replace(d, sms=66) for d in HALVES.devices))
        with refuses(Code.REQUEST, r"has 66 SMs; one of 2 partitions of Fake GPU has 64"):
            sampler.calibrate_gpu([product(16, "cuda:0.0")], odd, gpu, empty_profile(), None, quiet)


def test_geometry_from_the_profiler_from_partitions_and_from_the_table():
    def launch(op, elements):
        return 700, 256, 64, 0

    with FakeGpu(launch=launch) as gpu:
        samples = sampled(gpu, product(16), QUICK)
    assert (samples.grid, samples.blocks_per_sm, samples.geometry_from, samples.kernels) == (700, 4, "profiler", 1)
    with FakeGpu(Times(kernel_s=lambda op, size: 100 * US, least_s=0.0, gap_s=0.0), profiler=False) as gpu:
        samples = sampled(gpu, product(16), QUICK)
    assert samples.geometry_from == "partitions"
    assert samples.blocks_per_sm == 1
    assert samples.grid > 132  # times in proportion to 1 / SMs: many waves
    with FakeGpu(profiler=False, partitionable=False) as gpu:
        samples = sampled(gpu, product(16), QUICK)
    assert (samples.grid, samples.blocks_per_sm, samples.geometry_from, samples.kernels) == (None, None, "table", None)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model).stem)
def test_every_key_can_be_sampled(model):
    plans = planned(model)
    with FakeGpu(facts=SMALL_CACHE) as gpu:
        sampler = CudaSampler(gpu, effort=QUICK)
        for plan in plans:
            sampler.measure(plan, plan.keys(WHOLE))
        assert (sampler.failures, sampler.notes) == ({}, [])
        assert len(sampler.samples) > 10
        for key, samples in sampler.samples.items():
            assert len(samples.cold_s) == len(samples.warm_s) == len(samples.issue_s) == 1, key
            assert min(samples.issue_s) > 0, key
        sampler.learn_geometry()
        sampler.release()
        assert (sampler.samples, sampler.held_bytes) == ({}, 0)


def test_attention_with_dropout_can_be_sampled_as_pytorch_runs_it():
    """No plan that runs has this op, only that of the user's own loop."""
    plan = plan_unless_refused("pytorch", Job(f"{models.__file__}:attention_dropping", 4), WHOLE)
    with FakeGpu(facts=SMALL_CACHE) as gpu:
        sampler = CudaSampler(gpu, effort=QUICK)
        sampler.measure(plan, keys := {key: task for key, task in plan.keys(WHOLE).items() if "dot_product" in key})
        assert (sampler.failures, sampler.notes) == ({}, [])
        assert set(sampler.samples) == set(keys)
        assert len(keys) == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("optimizer", "form"), [(name, form) for name in STATE for form in forms(name)])
def test_every_update_can_be_sampled(optimizer, form):
    with FakeGpu(facts=SMALL_CACHE) as gpu:
        sampler = CudaSampler(gpu, effort=QUICK)
        for plan in planned(MLP, optimizer=optimizer, form=form):
            sampler.measure(plan, {key: task for key, task in plan.keys(WHOLE).items() if task.body.kind == "update"})
        assert sampler.failures == {}
        count_on_host = optimizer == "adagrad" and form != "fused"  # where the simulation cannot see it
        assert sampler.notes == [] or count_on_host
        assert len(sampler.samples) >= 3 - (form == "for")
        assert all(samples.issue_s for samples in sampler.samples.values())


def test_an_op_that_cannot_be_captured_is_timed_eagerly_with_a_note():
    body = OpCall("aten._local_scalar_dense.default", '[{"$":0}]', outputs=())
    single = value("x", (1,), INPUT)
    plan = plan_of([Task("item", body, "cuda:0", reads=(single.operand(),))], [single])
    with FakeGpu(Times(kernel_s=lambda op, size: 30 * US)) as gpu:
        sampler = CudaSampler(gpu, effort=QUICK)
        sampler.measure(plan, plan.keys(WHOLE))
        assert sampler.failures == {}
        assert "cannot be captured in a graph" in sampler.notes[0]
        (samples,) = sampler.samples.values()
        assert samples.warm_s[0] >= 30 * US
        sampler.measure(product(16), product(16).keys(WHOLE))  # does not affect other keys
        assert len(sampler.notes) == 1


@pytest.mark.thorough
def test_repeated_updates_keep_their_operands_normal():
    (plan, *_) = planned(MLP, optimizer="adam")
    keys = {key: task for key, task in plan.keys(WHOLE).items() if task.mutates}
    with FakeGpu() as gpu:
        sampler = CudaSampler(gpu, effort=Effort(most_copies=50))
        sampler.measure(plan, keys)
        tensors = [get for compiled, _ in sampler._compiled.values() for get in _operands(compiled)]
    assert len(tensors) > 10
    for tensor in tensors:
        assert bool(torch.isfinite(tensor).all())
        assert not bool(((tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)).any())


def _operands(compiled) -> list[torch.Tensor]:
    """The tensors that a compiled update works on."""
    getters = next(c.cell_contents for c in compiled.run.__closure__ if isinstance(c.cell_contents, list) and len(c.cell_contents) > 4)
    return [get(compiled.instance) for get in getters]


@pytest.mark.thorough
def test_a_deadline_leaves_a_profile_that_another_session_completes(tmp_path):
    plans, place, profile = planned(MLP), tmp_path / "first" / "gpu.json", empty_profile()
    keys = {key for plan in plans for key in plan.keys(WHOLE)}
    seen = []
    with FakeGpu(facts=SMALL_CACHE) as gpu:
        begin = gpu.now_s()
        sampler.calibrate_gpu(plans[:1], WHOLE, gpu, empty_profile(), None, quiet, effort=QUICK)
        whole_s = gpu.now_s() - begin
        first = sampler.calibrate_gpu(plans, WHOLE, gpu, profile, place, quiet, deadline_s=whole_s / 2, effort=QUICK)
        assert 0 < first.measured < len(keys)
        assert set(Profile.load(place).costs) | set(first.left) == keys
        assert len(first.left) == len(keys) - first.measured
        again = Profile.load(place)
        rest = sampler.calibrate_gpu(plans, WHOLE, gpu, again, place, lambda *report: seen.append(report[:2]), effort=QUICK)
        assert (rest.measured, rest.left) == (len(first.left), ())
        assert set(Profile.load(place).costs) == keys
        assert seen == [(done, len(first.left)) for done in range(len(first.left) + 1)]
        assert sampler.calibrate_gpu(plans, WHOLE, gpu, again, place, quiet, effort=QUICK).measured == 0
    assert max(cost.kernels for key, cost in again.costs.items() if "update" in key.lower() or key.startswith("sgd")) > 1
    cost = next(iter(again.costs.values()))
    assert (cost.geometry_from, cost.issue_s is not None) == ("profiler", True)
    assert {record["key"] for record in read_samples(place)} == keys
    assert {record["state"] for record in read_samples(place)} == {"warm", "cold", "issue"}


def test_groups_are_saved_one_by_one_and_a_failure_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "GROUP", 2)
    saved = []
    monkeypatch.setattr(Profile, "save", lambda self, path: saved.append(len(self.costs)))
    left, right, out = value("x", (3, 4), INPUT), value("y", (5, 6), INPUT), value("z", (3, 6), ACTIVATION)
    impossible = plan_of([mm("impossible", left, right, out)], [left, right, out])
    profile = empty_profile()
    with FakeGpu() as gpu:
        plans = [impossible, product(4), product(8), product(16)]
        outcome = sampler.calibrate_gpu(plans, WHOLE, gpu, profile, tmp_path / "p.json", quiet, effort=QUICK)
        assert (outcome.measured, saved) == (4, [1, 3])
    assert "mat1 and mat2 shapes cannot be multiplied" in next(iter(profile.failures.values()))


@pytest.mark.thorough
def test_host_costs():
    times = Times(
        record_s=0.7 * US, wait_s=0.4 * US, replay_s=6 * US, kernel_s=lambda op, size: 1 * US, gap_s=0.9 * US, cross_gap_s=1.1 * US,
        launch_gap_s=1.4 * US, callback_s=17 * US, call_s=2.5 * US, switch_s=1.3 * US, graph_node_s=0.2 * US, graph_branch_s=5 * US,
    )  # fmt: skip
    profile = empty_profile()
    with FakeGpu(times, SMALL_CACHE) as gpu:
        bench = Bench(gpu, effort=Effort(most_copies=20))
        measure_host(bench, profile, lambda host: 4.5 * US)
        measure_launches(bench, profile)
    dispatch = profile.dispatch
    assert dispatch.dispatch_s == 4.5 * US
    assert dispatch.record_s == pytest.approx(0.7 * US)
    assert dispatch.wait_s == pytest.approx(0.4 * US)
    assert dispatch.switch_s == pytest.approx(1.3 * US)
    assert dispatch.graph_launch_s == pytest.approx(6 * US)
    assert dispatch.graph_node_s == pytest.approx(0.2 * US)
    assert dispatch.graph_branch_s == pytest.approx(5 * US)
    assert dispatch.node_gap_s == 0.0
    assert dispatch.cross_gap_s == pytest.approx(1.1 * US)
    assert dispatch.launch_gap_s == pytest.approx((1.4 - 0.9) * US)
    assert dispatch.callback_s == pytest.approx((17 + 0.9) * US), "the gap to the next node counts with it, as with a key"
    assert dispatch.call_s == pytest.approx(2.5 * US)
    assert profile.identity.extras["node_cadence_s"] == pytest.approx(1.9 * US)
    assert profile.priority_levels == FACTS.priority_levels


def test_where_streams_cannot_call_the_host_the_rest_is_measured(caplog):
    profile = empty_profile()
    with FakeGpu(facts=SMALL_CACHE, callbacks=False) as gpu:
        measure_host(Bench(gpu, effort=QUICK), profile, lambda host: 4.5 * US)
    assert (profile.dispatch.callback_s, profile.dispatch.call_s, profile.dispatch.dispatch_s) == (None, None, 4.5 * US)
    assert "Fake GPU cannot call the host" in caplog.text


@pytest.mark.thorough
def test_a_figure_that_cannot_be_measured_leaves_the_others_and_is_tried_again(monkeypatch):
    """Without host costs, predictions take the preset's."""

    def fails(*_arguments, **_more):
        raise RuntimeError("no room")

    card = replace(SMALL, cache_bytes=4096)
    with few_repetitions(), FakeGpu(facts=card) as gpu:
        testbed = open_testbed(gpu)
        profile = Profile(identity=testbed.identity)
        with monkeypatch.context() as patch:
            patch.setattr(gpu_testbed, "measure_rates", fails)
            patch.setattr(gpu_testbed.TinyOps, "measure", fails)
            patch.setattr(gpu_testbed, "measure_launches", fails)
            testbed.measure_machine(profile)
        assert [note.partition(";")[0] for note in profile.notes] == [
            "not measured: peak rates (RuntimeError: no room)", "not measured: tiny kernels (RuntimeError: no room)",
            "not measured: launches of graphs (RuntimeError: no room)",
        ]  # fmt: skip
        assert profile.transfers
        assert (profile.dispatch.dispatch_s, profile.peak_flops) == (None, {})
        assert (profile.memory_bytes, profile.cache_bytes) == (card.memory_bytes, card.cache_bytes)
        testbed.measure_machine(profile)
        assert profile.dispatch.dispatch_s is None, "not in every validation"
        testbed.measure_machine(profile, again=True)
    assert profile.dispatch.graph_node_s == 0.0, "measured"
    assert (profile.notes, profile.dispatch.dispatch_s is None, "fp32" in profile.peak_flops) == ([], False, True)


def test_each_step_of_plain_pytorch_has_its_own_length():
    """Steps of 1, 3, and 2 kernels. Those that settle at first must not lengthen the others."""
    x = torch.ones(4)
    kernels = iter((1, 3, 2))

    def step() -> torch.Tensor:
        for _ in range(next(kernels)):
            x.add_(1)
        return x[0]

    with FakeGpu(Times(op_s=1 * US, kernel_s=lambda op, size: 100 * US)) as gpu:
        lengths_s = GpuLoop(SimpleNamespace(step=step), gpu, gpu.stream(), batch=1).train(3)
    assert lengths_s == pytest.approx([100 * US, 300 * US, 200 * US], rel=0.05)


def test_a_host_is_compared_with_its_own_fastest_launches():
    with FakeGpu(Times(op_s=4 * US)) as gpu:
        yardstick = HostYardstick(gpu)
        assert yardstick.slowdown() == pytest.approx(1.0)
        gpu.host_factor = 2.0
        assert yardstick.slowdown() == pytest.approx(2.0)
        gpu.host_factor = 0.5
        assert yardstick.slowdown() == pytest.approx(1.0)


def test_memory_and_cache_are_those_of_the_card_and_not_of_its_preset():
    """Another card of the same name may have other sizes."""
    card = replace(SMALL, name="NVIDIA H200", cache_bytes=48 << 20)
    with FakeGpu(facts=card) as gpu:
        testbed = open_testbed(gpu)
        (unmeasured,) = testbed.machine(None).memories
        profile = Profile(identity=testbed.identity)
        with few_repetitions():
            (measured,) = testbed.machine(profile).memories
    assert {(memory.size_bytes, memory.cache_bytes) for memory in (unmeasured, measured)} == {(card.memory_bytes, card.cache_bytes)}


@pytest.mark.thorough
def test_peak_rates():
    small = replace(FACTS, memory_bytes=64 << 20)
    times = Times(kernel_s=lambda op, size: 100 * US if op == "aten.mm" else size / 1e12, gap_s=0.0)
    profile = empty_profile()
    with FakeGpu(times, small) as gpu:
        measure_rates(Bench(gpu), profile, "fp32")
    assert profile.peak_flops == pytest.approx({
        "fp32": 2 * 256**3 / 1e-4, "tf32": 2 * 256**3 / 1e-4, "bf16": 2 * 512**3 / 1e-4, "fp64": 2 * 256**3 / 1e-4,
    })  # fmt: skip
    assert profile.bandwidth_bytes_per_s == pytest.approx(1e12)
    assert (profile.memory_bytes, profile.cache_bytes) == (64 << 20, 4 << 20)


def test_transfers_are_lines():
    times = Times(least_s=2 * US, pinned_bytes_per_s=50e9, pageable_bytes_per_s=8e9, record_s=0.0)
    profile = empty_profile()
    with FakeGpu(times) as gpu:
        errors = measure_transfers(Bench(gpu), profile, sizes=[4096 * 4**i for i in range(5)])
    assert set(profile.transfers) == set(errors) == {"host>cuda:0", "cuda:0>host", "host>cuda:0 pageable", "cuda:0>host pageable"}
    assert max(errors[name] for name in ("host>cuda:0", "cuda:0>host")) < 1e-6
    for name, route in profile.transfers.items():
        pageable = name.endswith("pageable")
        assert route.bytes_per_s == pytest.approx(8e9 if pageable else 50e9, rel=0.01)
        assert route.latency_s * (1 + 1e-9) >= 2 * US
        assert route.latency_s <= (12 if pageable else 2.0001) * US  # a blocking copy waits for the host
        assert len(route.points) == 5


class Numbered:
    """The simulated GPU under a device number, as one of several equally fast GPUs."""

    def __init__(self, gpu: FakeGpu, index: int, others: list):
        self.gpu, self.device, self.peers = gpu, torch.device("cpu", index), lambda: [o for o in others if o is not self]

    def __getattr__(self, name: str):
        return getattr(self.gpu, name)


def test_copies_between_gpus_are_measured_pair_by_pair():
    profile = empty_profile()
    with FakeGpu(Times(least_s=5 * US, bytes_per_s=4e10), SMALL_CACHE) as gpu:
        assert measure_peers(gpu, profile, (4096, 65536), QUICK) == {}
        several: list[Numbered] = []
        several += [Numbered(gpu, index, several) for index in range(3)]
        errors = measure_peers(several[0], profile, (4096, 65536, 1 << 20), QUICK)
    assert set(profile.transfers) == set(errors) == {f"cuda:{a}>cuda:{b}" for a in range(3) for b in range(3) if a != b}
    assert max(errors.values()) < 0.01
    line = profile.transfers["cuda:2>cuda:1"]
    assert (line.latency_s, line.bytes_per_s) == pytest.approx((5 * US, 2e10), rel=0.01), "a byte is read and written"
    assert [size for size, _ in line.points] == [4096, 65536, 1 << 20]


def test_a_line_is_fitted_on_relative_errors():
    points = [(size, (3 * US + size / 2e10) * (1.1 if size == 4096 else 1.0)) for size in (4096, 1 << 16, 1 << 20, 1 << 24)]
    line, worst = fit_transfer(points)
    assert line.bytes_per_s == pytest.approx(2e10, rel=0.02)
    assert 0.02 < worst < 0.1
    assert line.points == points
    with refuses(Code.REQUEST):
        fit_transfer([(1000, 2.0), (2000, 1.0)])


def test_kernels_beside_each_other():
    with FakeGpu(Times(kernel_s=lambda op, size: 40 * US, gap_s=0.0, cross_gap_s=0.0)) as gpu:
        shared = measure_pairs(gpu, Sizes(8, 4, 4096), effort=QUICK)
        halves = measure_pairs(gpu, Sizes(8, 4, 4096), gpu.partitions(2), effort=QUICK)
    assert [pair.name for pair in shared] == ["gemm / gemm", "small gemm / small gemm", "gemm / small gemm", "gemm / copy", "copy / copy"]
    for pair in (*shared, *halves):  # kernels of the simulated GPU do not slow one another down
        assert pair.slow_downs == pytest.approx((1.0, 1.0), rel=1e-3)
        assert pair.together_s == pytest.approx(pair.first_s, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [200, 1000])
def test_the_depth_of_a_streams_queue(depth):
    with FakeGpu(Times(queue_depth=depth), SMALL_CACHE) as gpu:
        assert queue_depth(Bench(gpu)) == pytest.approx(depth, abs=30)
    with FakeGpu(Times(queue_depth=10**6), SMALL_CACHE) as gpu:
        assert queue_depth(Bench(gpu)) is None


class Interrupted(FakeGpu):
    """One launch takes a millisecond, since the host did something else."""

    launches = 0

    def _issue(self, func, args, kwargs):
        self.launches += 1
        if self.launches == 500:
            self.clock.spend(1e-3)
        return super()._issue(func, args, kwargs)


def test_a_launch_that_was_held_up_is_not_the_end_of_a_queue():
    with Interrupted(Times(queue_depth=1000), SMALL_CACHE) as gpu:
        assert queue_depth(Bench(gpu)) == pytest.approx(1000, abs=30)
        assert gpu.launches > 500


def test_objects_are_frozen_whatever_is_frozen_already_and_once():
    """Python 3.12 begins with frozen objects, and so does a process that a fork server started."""
    gc.freeze()
    try:
        held = [[] for _ in range(1000)]
        before = gc.get_freeze_count()
        with objects_kept():
            inside = gc.get_freeze_count()
            with objects_kept():
                assert gc.get_freeze_count() == inside
        assert inside >= before + len(held)
        assert gc.get_freeze_count() == 0
    finally:
        gc.unfreeze()
