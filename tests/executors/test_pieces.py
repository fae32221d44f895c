"""Plans whose devices hold pieces of parameters, buffers and optimizer state train as plain PyTorch does, and give whole tensors back."""

import copy
import json
from dataclasses import replace
from math import inf

import pytest
import torch

from calibrate.operands import OperandPool, fill
from calibrate.samples import compile_alone
from executors.cpu.backend import CpuBackend
from executors.cuda.backend import CudaBackend
from executors.kernels.lowering.dropout import mask
from executors.kernels.update import torch_optimizer
from executors.run import execute
from executors.tensors import job_tensors
from executors.trainer import Trainer
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.plan.bodies.update import STATE, forms
from simulator.plan.json import dump, load
from tests.fake_gpu import FakeGpu
from tests.support.applicable import core_groups
from tests.support.jobs import job_of
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from tests.support.shard_plans import Shard, by_channels, by_images, shard_plan
from traces.documents.profile import Identity, Profile
from traces.errors import Code

CPUS = ("cpu:0", "cpu:1")
LIMIT = 1e-10


def square(model: str, **fields) -> Job:
    return job_of(f"square_{model}", 8, **fields)


@pytest.fixture(scope="module")
def machine():
    return core_groups(2)


@pytest.fixture(scope="module")
def two_devices(machine):
    return CpuBackend(machine)


@pytest.mark.parametrize("model", ["linear", "dropout", "convolution", "batch_norm"])
def test_devices_with_half_of_the_channels(model, machine, two_devices):
    job = square(model, optimizer="adam")
    plan = shard_plan(job, machine, by_channels(*CPUS))
    plan.validate(machine)
    assert largest_error(job, plan, two_devices) <= LIMIT


@pytest.mark.parametrize("model", ["linear", "dropout", "convolution", "batch_norm"])
def test_devices_with_half_of_the_images(model, machine, two_devices):
    """The step's loss is the mean of two, but the batch is one: its masks are those of one device.

    Each half has batch-norm statistics of its own, and so has plain PyTorch here.
    """
    job = square(model, optimizer="adam")
    plan = shard_plan(job, machine, by_images(job, *CPUS))
    assert (len(plan.losses), plan.microbatches) == (2, 1)
    assert largest_error(job, plan, two_devices) <= LIMIT


@pytest.mark.parametrize("optimizer", STATE)
def test_every_form_of_every_optimizer_updates_pieces(optimizer, machine, two_devices):
    for form in forms(optimizer):
        job = square("linear", optimizer=optimizer, form=form, lr_schedule="0:0.1,3:0.02")
        assert largest_error(job, shard_plan(job, machine, by_channels(*CPUS)), two_devices) <= LIMIT, form


@pytest.mark.parametrize("model", ["linear", "convolution", "batch_norm"])
def test_a_trainer_puts_whole_tensors_back(model, machine, two_devices):
    """Into the module, with the running statistics, and into a checkpoint of the optimizer."""
    job = square(model, optimizer="adam")
    built = job.build()
    plain = copy.deepcopy(built.module)
    optimizer = torch_optimizer(job.optimizer, job.form, plain.parameters(), job.hyper)
    trainer = Trainer(shard_plan(job, machine, by_channels(*CPUS)), job, built, two_devices)
    for _ in range(3):
        loss = plain(built.inputs[0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step(built.inputs, built.target) == pytest.approx(loss.item(), abs=LIMIT)
    for name, tensor in trainer.module.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=0, atol=LIMIT)
    saved, expected = trainer.optimizer_state_dict(), optimizer.state_dict()
    assert saved["state"].keys() == expected["state"].keys()
    for number, state in saved["state"].items():
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, expected["state"][number][name], rtol=0, atol=LIMIT)


def test_a_run_has_whole_tensors_beside_the_pieces(machine, two_devices):
    job = square("linear", optimizer="momentum")
    tensors = job_tensors(job, job.build(), job.graph())
    run = execute(shard_plan(job, machine, by_channels(*CPUS)), tensors, two_devices, steps=2)
    for name in ("0.weight", "0.bias", "0.weight::momentum_buffer"):
        pieces = [run.tensors[f"{name}@{device}"] for device in CPUS]
        assert pieces[0].shape[0] == 3
        assert torch.equal(run.tensors[name], torch.cat(pieces))


def test_the_first_of_several_replicas_is_put_back(machine, two_devices):
    job = square("linear")
    tensors = job_tensors(job, job.build(), job.graph())
    program = two_devices.load(shard_plan(job, machine, by_images(job, *CPUS)), tensors)
    program.binding.carried["0.weight@cpu:1"].fill_(7.0)
    target = torch.zeros(6, 4, dtype=torch.float64)
    program.copy_current({"0.weight": target})
    assert torch.equal(target, tensors["0.weight"].detach())


def test_what_no_piece_covers_stays_and_is_no_success(machine, two_devices):
    """A plan that trains only the first half of the channels."""
    job = square("linear")
    tensors = job_tensors(job, job.build(), job.graph())
    plan = shard_plan(job, machine, by_channels(*CPUS)[:1])
    program = two_devices.load(plan, tensors)
    program.run(1)
    target = torch.full((6, 4), 5.0, dtype=torch.float64)
    program.copy_current({"0.weight": target})
    assert torch.equal(target[:3], program.binding.carried["0.weight@cpu:0"])
    assert torch.equal(target[3:], torch.full((3, 4), 5.0, dtype=torch.float64))
    assert largest_error(job, plan, two_devices) == inf


def test_an_error_in_one_piece_is_noticed(machine, two_devices):
    job = square("linear")
    plan = shard_plan(job, machine, by_channels(*CPUS))
    tensors = job_tensors(job, job.build(), job.graph())
    program = two_devices.load(plan, tensors, keep=tuple(operand.value for operand in plan.gradients.values()))
    program.run(1)
    expected = {"0.weight": torch.cat([program.kept[f"dW@{device}"] for device in CPUS])}
    assert program.gradient_difference(expected) == 0.0
    program.kept["dW@cpu:1"][2, 3] += 0.5
    assert program.gradient_difference(expected) == pytest.approx(0.5)


# --- dropout


@pytest.mark.parametrize("part", ["channels", "images"])
def test_parts_of_a_mask_are_one_mask(part, machine, two_devices):
    """The two dropouts of the model have the numbers 0 and 1, however many devices draw their parts."""
    job = square("dropout")
    shards = by_channels(*CPUS) if part == "channels" else by_images(job, *CPUS)
    names = [[f"mask{number}@{device}" for device in CPUS] for number in range(2)]
    plan = shard_plan(job, machine, shards)
    run = execute(plan, job_tensors(job, job.build(), job.graph()), two_devices, 3, keep=(*names[0], *names[1]), seed=5)
    for number, p in enumerate((0.5, 0.3)):
        halves = [run.kept[name] for name in names[number]]
        assert torch.equal(torch.cat(halves, dim=1 if part == "channels" else 0), mask((8, 6), p, seed=5, step=2, index=number))


def test_a_part_costs_what_a_whole_mask_of_its_shape_costs(machine, two_devices):
    job = square("dropout")
    plan = shard_plan(job, machine, by_channels(*CPUS))
    part = next(task for task in plan.tasks if task.name == "drop.0@cpu:1")
    assert part.body.key(part) == replace(part.body, kwargs="{}", draw=0).key(part)
    call = compile_alone(part, plan, fill(part, plan, OperandPool()), lambda _: torch.device("cpu"))
    call()
    call.run(call.instance)
    assert torch.equal(call.instance.slots[call.written[1]], mask((8, 3), 0.5, 0, 0, 0))


def test_an_update_of_pieces_is_measured_on_states_that_can_be(machine):
    """A count of 10 steps, and sums of squares that are not negative, whatever the plan calls its pieces of them."""
    plan = shard_plan(square("linear", optimizer="adam"), machine, by_channels(*CPUS))
    tensors = fill(next(task for task in plan.tasks if task.name == "update@cpu:1"), plan, OperandPool())
    assert float(tensors["0.weight::step@cpu:1"]) == 10
    assert float(tensors["0.weight::exp_avg_sq@cpu:1"].min()) >= 0 > float(tensors["0.weight::exp_avg@cpu:1"].min())


# --- refusals


def test_a_piece_that_cannot_be_is_refused(machine, two_devices):
    job = square("linear")
    plan = shard_plan(job, machine, by_channels(*CPUS))

    def refused(words: str, **fields):
        value = plan.values["0.weight@cpu:1"]
        changed = replace(value, source=replace(value.source, **fields))
        with refuses(Code.PLAN, words):
            replace(plan, values={**plan.values, value.name: changed}).validate(machine)

    steps = plan.values["0.weight@cpu:1"].source.views
    refused(r"no piece of '0.weight': it is cut by aten.slice.Tensor\[0, 0, 6, 2\]", views=(replace(steps[0], args="[0, 0, 6, 2]"),))
    refused(r"no piece of '0.weight': it is cut by aten.select.int\[0\]", views=(replace(steps[0], target="aten.select.int", args="[0]"),))
    refused(r"has shape \(3, 4\), but its source in '0.weight' has \(1, 4\)", shape=(1, 4))
    beyond = [Shard("cpu:0", (0, 3)), Shard("cpu:1", (4, 7))]
    with refuses(Code.PLAN):
        two_devices.load(shard_plan(job, machine, beyond), job_tensors(job, job.build(), job.graph()))
    swapped = {"0.weight@cpu:0": plan.gradients["0.bias@cpu:0"]}
    with refuses(Code.PLAN, r"the gradient of '0.weight@cpu:0' has shape \(3,\); expected \(3, 4\)"):
        replace(plan, gradients=swapped).validate(machine)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"of": [8, 6], "box": [[0, 8], [0, 2]]}, "draws the part .* of a mask .* for an operand of shape"),
        ({"of": [8, 6], "box": [[0, 8], [4, 7]]}, "draws the part"),
        ({"of": [8], "box": [[0, 8], [0, 3]]}, "draws the part"),
    ],
)
def test_a_part_that_does_not_fit_is_refused(kwargs, words, machine):
    plan = shard_plan(square("dropout"), machine, by_channels(*CPUS))
    broken = [
        replace(task, body=replace(task.body, kwargs=json.dumps({"part": kwargs}))) if task.name == "drop.1@cpu:0" else task
        for task in plan.tasks
    ]
    with refuses(Code.PLAN, words):
        replace(plan, tasks=tuple(broken)).validate(machine)


def test_pieces_go_to_json_and_back(machine):
    plan = shard_plan(square("dropout"), machine, by_channels(*CPUS))
    again = load(json.loads(json.dumps(dump(plan))))
    assert again == plan
    assert again.gradient_sources["0.weight@cpu:1"].value == "0.weight"


# --- simulated GPUs


@pytest.fixture(scope="module")
def partitions():
    """A GPU in two partitions."""
    return gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), 2)


@pytest.mark.parametrize(("model", "mode"), [("linear", "eager"), ("dropout", "eager"), ("convolution", "graph"), ("batch_norm", "graph")])
def test_partitions_of_a_gpu(model, mode, partitions):
    job = square(model, optimizer="adam")
    plan = shard_plan(job, partitions, by_channels(*(device.name for device in partitions.devices)))
    with FakeGpu() as gpu:
        assert largest_error(job, plan, CudaBackend(partitions, gpu, mode), 11) <= LIMIT


def test_a_graph_cannot_draw_parts(partitions):
    job = square("dropout")
    plan = shard_plan(job, partitions, by_channels(*(device.name for device in partitions.devices)))
    with (
        FakeGpu() as gpu,
        refuses(Code.REQUEST, "draws a part of a dropout mask, which a CUDA graph cannot; use --mode eager"),
    ):
        CudaBackend(partitions, gpu, "graph").load(plan, job_tensors(job, job.build(), job.graph()))
