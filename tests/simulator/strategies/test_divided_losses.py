"""A mean over targets that do not all count is another one in parts of the batch: plans say so, or count the targets of the whole batch."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibrate.numerics import Expected, compare
from executors.cpu.backend import CpuBackend
from executors.trainer import Trainer
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.live import live_factory, undisturbed
from tests.support import models
from tests.support.applicable import core_groups
from tests.support.jobs import job_of, planned
from tests.support.linked_gpus import gpus
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

TWO_PARTS = [("baseline", 1, 2), ("data-parallel", 2, 1), ("fsdp", 2, 1), ("gpipe", 2, 2)]
#: A step's strategies, devices and microbatches of a device.
DIVIDED = [
    ("baseline", 1, 4), ("backward-fusion", 1, 2), ("turbodl", 1, 2), ("bppsa", 1, 2), ("data-parallel", 2, 1), ("data-parallel", 2, 2),
    ("data-parallel:update=backward-fusion,server=host", 2, 1), ("fsdp", 2, 2), ("fsdp:shard=1", 2, 1), ("fsdp:hybrid=2", 4, 1),
    ("gpipe", 2, 4), ("1f1b", 2, 4), ("1f1b:granularity=stage", 2, 2), ("1f1b:stages=2,replicas=2", 4, 2), ("owt", 2, 1),
]  # fmt: skip


def in_parts(name: str, microbatches: int = 1, **changes) -> Job:
    return job_of(name, 16, accumulate=microbatches, **changes)


def masked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    counts = target != 0
    return (functional.cross_entropy(output, target, reduction="none") * counts).sum() / counts.sum()


def of_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.unflatten(1, (3, 1)).expand(-1, -1, 5), target[:, None].expand(-1, 5))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(ignore_index=0), "targets of 0 are skipped"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "classes have weights"),
        (masked, "what the batch says does not count"),
        (of_tokens, "targets of -100, if there are any, are skipped"),
        (nn.CrossEntropyLoss(), ""),
        (nn.CrossEntropyLoss(ignore_index=0, reduction="sum"), ""),
        (lambda output, target: functional.mse_loss(output, torch.ones_like(output)), ""),
    ],
)
def test_a_loss_that_skips_targets_is_said_to_be_another_mean_in_parts(loss, said):
    module = nn.Linear(6, 3)
    factory, samples = live_factory(module, torch.randn(8, 6), torch.randint(3, (8,)), loss)
    with undisturbed():
        whole = planned("baseline", Job(factory.name, samples), load_machine("h100"))
        parts = planned("baseline", Job(factory.name, samples, accumulate=2), load_machine("h100"))
        devices = planned("data-parallel", Job(factory.name, samples), load_machine("2xh100"))
    words = f"the mean of the means of 2 parts of the batch, in which {said}, and not one mean over all"
    assert "loss" not in whole.semantics
    assert [plan.semantics.get("loss", "") for plan in (parts, devices)] == [words if said else ""] * 2


@pytest.mark.parametrize(("text", "devices", "microbatches"), TWO_PARTS)
def test_the_mean_of_the_parts_means_is_what_plans_say_and_not_plain_pytorchs(text, devices, microbatches):
    machine, job = core_groups(devices), in_parts("skipped_unequal", microbatches)
    plan, backend = planned(text, job, machine), CpuBackend(machine)
    assert "the mean of the means of 2 parts" in str(plan.semantics["loss"])
    assert largest_error(job, plan, backend) <= 1e-10
    assert error_of_whole_batch(plan, job, backend) > 0.01


def test_a_loss_that_owt_divides_by_samples_is_said_to_be_another_mean():
    job = in_parts("skipped")
    assert "2 parts of the batch, in which targets of 0 are skipped" in str(planned("owt", job, core_groups()).semantics["loss"])
    assert "loss" not in planned("owt", replace(job, loss_mean="batch"), core_groups()).semantics


@pytest.mark.sampled(8)
@pytest.mark.parametrize("model", models.SKIPPED)
@pytest.mark.parametrize(("text", "devices", "microbatches"), DIVIDED)
def test_one_mean_over_the_batch_is_plain_pytorchs_though_parts_have_no_targets(model, text, devices, microbatches):
    machine, job = core_groups(devices), in_parts(model, microbatches, loss_mean="batch")
    plan, backend = planned(text, job, machine), CpuBackend(machine, cores=[0] * devices)
    assert "loss" not in plan.semantics
    assert error_of_whole_batch(plan, job, backend) <= 1e-10


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", ["fsdp:cp=2", "fsdp:tp=2", "1f1b:stages=1,tp=2,replicas=2,microbatches=1"])
def test_devices_that_divide_layers_or_tokens_count_the_targets_of_each_microbatch_once(text):
    machine, job = core_groups(4), replace(in_parts("skipped_tokens", loss_mean="batch"), batch=4)
    plan = planned(text, job, machine)
    assert error_of_whole_batch(plan, job, CpuBackend(machine, cores=[0] * 4)) <= 1e-10


@pytest.mark.parametrize(("text", "devices", "microbatches"), TWO_PARTS)
def test_dropout_and_batch_norms_see_each_part_alone(text, devices, microbatches):
    machine, job = core_groups(devices), in_parts("skipped_dropped", microbatches, loss_mean="batch")
    assert largest_error(job, planned(text, job, machine), CpuBackend(machine)) <= 1e-10


def error_of_whole_batch(plan, job: Job, backend) -> float:
    """The largest error against plain PyTorch that takes the batch in one piece."""
    plain, built = replace(job, accumulate=1, loss_mean="parts"), job.build()
    numerics = compare(job, built, plan, backend, Expected.of(plain, built, 2), 2)
    return max(numerics.max_grad_error, numerics.max_param_error)


def test_losses_of_the_parts_have_the_mean_of_the_batchs_loss(two_cores, backend):
    job = in_parts("skipped", 4, loss_mean="batch")
    built = job.build()
    module, inputs, targets, loss = built.module, built.inputs[0], built.target, built.loss
    expected = loss(module(inputs), targets).item()
    assert Trainer(planned("baseline", job, two_cores), job, built, backend).step(inputs, targets) == pytest.approx(expected, rel=1e-12)


def test_targets_are_counted_before_the_first_forward_and_summed_over_the_devices():
    """A prediction has all of it: in each plan of several devices one sum of one number more."""
    for text in ("data-parallel", "fsdp", "pytorch-ddp", "pytorch-fsdp", "1f1b:stages=1,replicas=2"):
        job = in_parts("skipped", loss_mean="batch")
        counted, usual = (planned(text, each, gpus(2)) for each in (job, replace(job, loss_mean="parts")))
        names = [task.name.partition("@")[0] for task in counted.tasks if not task.name.startswith("fetch")]
        assert names.index("count targets") < names.index("sum targets") < names.index("divide targets") < names.index("0/addmm"), text
        assert not any("targets" in task.name for task in usual.tasks)


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        ("skipped_normed", "baseline", "the parts of the batch, and that of loss/div is divided by"),
        ("skipped_squared", "baseline", "needs a loss that is a sum of means, and loss/pow makes something else of one"),
    ],
)
def test_what_has_no_mean_over_the_batch_is_refused(model, text, message):
    with refuses(Code.MODEL, message):
        planned(text, in_parts(model, 2, loss_mean="batch"), gpus())
