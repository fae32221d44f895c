"""Plans over several devices of one GPU, which are disjoint partitions of its SMs: numbers, transfers, pipelines, shards and predictions.

The simulated GPU fails a test whose streams race, whose host writes memory that a stream still reads, or whose tensors are freed too early.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrate.cuda.bench import Effort
from calibrate.cuda.sampler import calibrate_gpu
from calibrate.numerics import Expected, References, compare, steps_to_compare
from executors.cuda.backend import CudaBackend
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target
from tests.fake_gpu import FACTS, FakeGpu, Times
from tests.support.jobs import MLP, job_of, planned
from tests.support.places import SUPPORT
from tests.support.refusals import refuses
from tests.support.shard_networks import random_job, random_plan
from traces.documents.profile import Identity, Profile, Transfer
from traces.errors import Code

US = 1e-6
TIED = f"{SUPPORT / 'user_models' / 'tied_cnn.py'}:make"
MODES = ("eager", "graph")


def partitioned(count: int) -> Machine:
    """An H200 in `count` partitions."""
    return gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), count)


def job_and_plan(machine: Machine, options: str = "", model: str = MLP, batch: int = 8, **fields) -> tuple[Job, Plan]:
    """A job and its data-parallel plan."""
    job = Job(model, batch, **{"precision": "fp64", **fields})
    plan = planned(f"data-parallel:{options}" if options else "data-parallel", job, machine)
    return job, plan


#: Options that change the plan: when parameters are updated; when, in which buckets, how and at which priority gradients are sent.
OPTIONS = [
    "", "overlap=off", "bucket=0", "bucket=0,priorities=on", "bucket=0,overlap=off", "algorithm=tree", "server=distributed", "fetch=off",
    "update=forward-fusion", "update=forward-fusion,bucket=0,algorithm=tree", "update=backward-fusion",
    "update=backward-fusion,bucket=0,priorities=on", "update=backward-fusion,overlap=off,server=distributed",
]  # fmt: skip
CASES = {(2, MLP, options, "graph") for options in OPTIONS} | {(2, MLP, options, "eager") for options in OPTIONS[::3]}
CASES |= {(4, MLP, options, "graph") for options in OPTIONS[3:7]}
CASES |= {(2, TIED, options, mode) for options, mode in zip(OPTIONS[9:12], ("graph", "eager", "graph"), strict=True)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("count", "model", "options", "mode"), sorted(CASES), ids=lambda value: Path(str(value)).stem)
def test_numbers_equal_plain_pytorch(count, model, options, mode):
    """11 steps: in graph mode three eager steps, two graphs of four steps each, and the drain."""
    machine = partitioned(count)
    job, plan = job_and_plan(machine, options, model, optimizer="adam")
    built = job.build()
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        numerics = compare(job, built, plan, backend, References(job, built, 11, backend).of(plan), 11)
    assert numerics.equal("fp64"), numerics


HELD = {"data-parallel:gradients=held": 2, "fsdp:shard=1,gradients=held": 2, "1f1b:stages=2,replicas=2,shard=1,gradients=held": 4}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", HELD)
def test_numbers_with_gradients_that_are_held_until_a_backward_has_ended(text, mode):
    machine = partitioned(HELD[text])
    job = Job(MLP, 8, precision="fp64", optimizer="adamw", accumulate=1 if "1f1b" in text else 2)
    built, plan = job.build(), planned(text, job, machine)
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics


@pytest.mark.parametrize("mode", MODES)
def test_numbers_with_accumulated_and_clipped_gradients(mode):
    machine = partitioned(2)
    job, plan = job_and_plan(machine, accumulate=2, clip_norm=0.5)
    built = job.build()
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        numerics = compare(job, built, plan, backend, Expected.of(job, built, 11, backend, [(len(plan.losses), (), ())]), 11)
    assert numerics.equal("fp64"), numerics


def test_sums_are_kernels_in_the_partition_that_receives_them():
    """Each half of the GPU adds and copies on a stream of its own, in addition to its compute stream."""
    machine = partitioned(2)
    job, plan = job_and_plan(machine, "bucket=0")
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu).load(plan, job_tensors(job, job.build(), job.graph()), job.seed)
        program.run(2)
        lanes = {stream.index: lane for lane, stream in program._streams.items()}
        ran = [(lanes[kernel.stream], kernel.op) for kernel in gpu.timeline if lanes.get(kernel.stream, ("", 0))[1] == 1]
        handles = {lane[0]: set(stream.partition.handle) for lane, stream in program._streams.items()}
    moves = [(task.lane, f"aten._foreach_{'add' if task.body.add else 'copy'}_") for task in plan.tasks if task.phase == "collective"]
    assert ran == 2 * moves
    assert {lane for lane, _ in moves} == {("cuda:0/0", 1), ("cuda:0/1", 1)}
    assert handles["cuda:0/0"] & handles["cuda:0/1"] == set()


@pytest.mark.parametrize("mode", MODES)
def test_inputs_are_fetched_from_pinned_memory(mode):
    """Over the link, without blocking the host, and only the part of the batch that the device trains on."""
    machine = partitioned(2)
    job, plan = job_and_plan(machine)
    tensors = job_tensors(job, job.build(), job.graph())
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu, mode).load(plan, tensors, job.seed)
        memory_kind = {name: gpu.memories.find(tensor).host for name, tensor in program._inputs.items()}
        program.run(3 + 8)
    fetched = [name for name in program._inputs if "@host@" in name]
    assert {memory_kind[name] for name in fetched} == {"pinned"}
    assert len({tensor.untyped_storage().data_ptr() for tensor in program._inputs.values()}) == 2, "inputs and targets, each pinned once"
    assert program._inputs["input:0@1@host@cuda:0/1"].shape == (4, 4)
    torch.testing.assert_close(program._inputs["input:0@1@host@cuda:0/1"], tensors["input:0"][4:])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", ["", "fetch=off", "update=forward-fusion"])
def test_new_data_every_step(options, mode):
    """With feeds, without feeds and with feeds again, over prologue, graphs, remainders and drains: the losses of plain PyTorch.

    No host buffer is overwritten before the copies from it have ended.
    """
    machine = partitioned(2)
    job, plan = job_and_plan(machine, options)
    tensors = job_tensors(job, job.build(), job.graph())
    own = {name: tensors[name].clone() for name in ("input:0", "target:0")}
    feeds = [{"input:0": torch.randn_like(own["input:0"]), "target:0": own["target:0"].roll(turn)} for turn in range(30)]
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu, mode).load(plan, tensors, job.seed)
        program.run(4, feeds[:4])
        program.run(14, feeds[4:18])
        program.run(9)
        program.sync()
        program.run(12, feeds[18:])
        program.sync()
        losses = [float(sum(map(float, of_devices)) / len(of_devices)) for _, of_devices in sorted(program.losses.items())]
    built = job.build()
    optimizer = torch.optim.SGD(built.module.parameters(), **{name: value for name, value in job.hyper if name != "form"})
    expected = []
    for feed in [*feeds[:18], *[own] * 9, *feeds[18:]]:
        optimizer.zero_grad()
        loss = built.loss(built.module(feed["input:0"]), feed["target:0"])
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-10)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", OPTIONS[::3])
def test_memory_does_not_grow(options):
    """Every tensor is freed, however far the host runs ahead."""
    machine = partitioned(2)
    job, plan = job_and_plan(machine, options)
    tensors = job_tensors(job, job.build(), job.graph())
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu).load(plan, tensors, job.seed)
        program.run(8)
        held = []
        for steps in (8, 40):
            program.losses.clear()
            gpu.peak_bytes(reset=True)
            program.run(steps)
            held.append(gpu.peak_bytes() - steps * 2 * 8)  # a loss of each device
    assert held[0] == held[1]
    assert program._compiled.releases.never_released == frozenset()


def test_a_server_in_the_hosts_memory_is_refused():
    with refuses(Code.DEVICES, r"server=host needs a collective library.* use server=distributed"):
        job_and_plan(partitioned(2), "server=host")


def test_sums_are_calibrated_in_their_partition_and_fetches_use_the_profiles_transfer():
    """A kernel's time, except for the part that no SM shortens, grows with the inverse share of SMs. A fetch has no key of its own."""
    transfer = Transfer(latency_s=10 * US, bytes_per_s=1e6)
    profile = Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132), transfers={"host>cuda:0": transfer})
    machine = gpu_machine(profile, 2)
    _, plan = job_and_plan(machine)
    effort = Effort(rounds=1, fewest_copies=4, most_copies=4, most_sets=2, most_issues=1)
    with FakeGpu(Times(kernel_s=lambda op, size: 52 * US, least_s=2 * US, gap_s=0.0), replace(FACTS, cache_bytes=4096)) as gpu:
        calibrate_gpu([plan], machine, gpu, profile, None, lambda *progress: None, effort=effort)
    sums = {key: cost for key, cost in profile.costs.items() if key.startswith("copy|")}
    assert {key.partition("|float64")[0] for key in sums} == {"copy|add", "copy|put"}
    half = pytest.approx(2 * US + 50 * US * 132 / 64)
    assert {(cost.warm.median_s == half, cost.cold.median_s == half) for cost in sums.values()} == {(True, True)}
    assert all(key.endswith("@64") and "host" not in key for key in profile.costs)
    predicted = forecast(plan, Target.of(CostModel(machine, profile)))
    assert predicted.shares.measured == 1.0
    fetch = next(span for span in predicted.timeline.spans if span.task == "fetch input:0")
    assert fetch.end_s - fetch.start_s >= 10 * US + 4 * 4 * 8 / 1e6 * (1 - 1e-9)
    assert {span.device for span in predicted.timeline.spans if span.phase == "transfer"} == {"cuda:0/0", "cuda:0/1"}


# Pipelines on partitions of one GPU: their numbers, with lags of several iterations and transfers between streams, eagerly and in graphs.
# The simulated GPU fails a test whose streams race or whose tensors are freed too early.


TWO = ("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "pipedream", "pipedream-2bw", "stale-pipeline", "hybrid-pipeline")
UNFOLDED = "on=unfolded,stages=2,backward_weights=stashed"
FOUR = (
    "1f1b", "stale-pipeline:stages=3", f"stale-pipeline:{UNFOLDED}", f"hybrid-pipeline:{UNFOLDED},then=gpipe", "zero-bubble:shape=v",
)  # fmt: skip
PIPELINES = [(2, text, mode) for text in TWO for mode in ("eager", "graph")] + [(4, text, "graph") for text in FOUR]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("count", "strategy", "mode"), PIPELINES)
def test_pipelines_compute_the_reference_trainers_numbers(count, strategy, mode):
    machine = partitioned(count)
    model = "chain" if count == 4 else "residual"
    job = job_of(model, 8, optimizer="adam")
    built, plan = job.build(), plan_of(job, strategy, Target.of(CostModel(machine)))
    plan.validate(machine)
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics


@pytest.mark.parametrize("steps", [11, 13])
def test_a_drain_after_graphs_completes_every_iteration(steps):
    """Three eager periods, two graphs of four, and with 13 steps two more eager ones, which tasks of the graphs come before.

    The last loss is computed in the drain.
    """
    machine, job = partitioned(4), job_of("chain", 8)
    text = f"stale-pipeline:{UNFOLDED}"
    with FakeGpu() as gpu:
        plan = plan_of(job, text, Target.of(CostModel(machine)))
        program = CudaBackend(machine, gpu, "graph").load(plan, job_tensors(job, job.build(), job.graph()))
        program.run(steps)
        program.sync()
    assert sorted(program.losses) == list(range(steps))


# Any mix of configurations on partitions of one GPU, eagerly and in graphs.
# The simulated GPU fails a test whose streams race or whose tensors are freed too early.


SHARDS = [
    (seed, mode, batch_norm, "baseline")
    for seed, mode in ((40, "eager"), (41, "eager"), (41, "graph"), (43, "graph"))
    for batch_norm in ("separate", "synchronized")
]
LATE = [
    (seed, mode, batch_norm, "asynchronous")
    for seed, mode, batch_norm in ((40, "eager", "separate"), (41, "eager", "synchronized"), (43, "graph", "synchronized"))
]


FUSED = [(41, "eager", "synchronized", "forward-fusion"), (43, "graph", "separate", "backward-fusion")]


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("seed", "mode", "batch_norm", "update"), SHARDS + LATE + FUSED)
def test_shards_compute_the_reference_trainers_numbers(seed, count, mode, batch_norm, update, tmp_path):
    job, draw = random_job(seed, tmp_path, norms=seed > 40)
    machine, built = gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), count), job.build()
    plan = random_plan(job, machine, draw, servers=("all-reduce", "distributed"), batch_norm=batch_norm, update=update)
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics
