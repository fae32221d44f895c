"""Checkpointed steps, executed: plain PyTorch's numbers, and less memory."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.numerics import reference
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.task import AGAIN
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import models
from tests.support.jobs import job_of, planned
from tests.support.same_numbers import largest_error

#: Attention, dropout, batch-norm and ops in place; and a chain without blocks.
MODELS = [f"{models.__file__}:{name}" for name in ("attending", "attending_dropping", "convolving", "chain")]
STRATEGIES = ["baseline", "backward-fusion", "turbodl", "data-parallel", "1f1b:placement=3", "zero-bubble", "pipedream", "deepa"]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("checkpoint", ["full", "selective"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.rpartition(":")[2])
def test_numbers_do_not_change(model, strategy, checkpoint):
    """Cuts of pipelines lie also within blocks."""
    machine = this_cpu(devices=1 if STRATEGIES.index(strategy) < 3 else 2)
    job = Job(model, 8, precision="fp64", optimizer="adam", checkpoint=checkpoint)
    plan = planned(strategy, job, machine)
    assert any(AGAIN in task.name for task in plan.tasks)
    assert largest_error(job, plan, CpuBackend(machine), 3) < 1e-10


def test_dropout_masks_and_running_statistics_are_those_of_the_first_forward():
    dropping, convolving = (
        planned("baseline", Job(model, 4, precision="fp64", checkpoint="full"), this_cpu()).tasks for model in MODELS[1:3]
    )
    draws = {task.name: task.body.draw for task in dropping if task.body.random}
    repeated = {name: draw for name, draw in draws.items() if AGAIN in name}
    assert repeated
    assert all(draw == draws[name.replace(AGAIN, "")] for name, draw in repeated.items())
    assert not any(task.mutates for task in convolving if AGAIN in task.name and "batch_norm" in task.body.target)


@pytest.mark.thorough
def test_the_executor_holds_as_much_as_predicted():
    machine, model = this_cpu(), f"{models.__file__}:attending"
    backend, measured, predicted = CpuBackend(machine), {}, {}
    for checkpoint in ("none", "selective", "full"):
        job = Job(model, 1 << 11, checkpoint=checkpoint)
        plan = planned("baseline", job, machine)
        measured[checkpoint] = max(backend.peak_bytes(plan, job_tensors(job, job.build(), job.graph())).values())
        predicted[checkpoint] = max(device.peak_bytes for device in forecast(plan, Target.of(CostModel(machine))).timeline.devices)
    assert measured["full"] < measured["selective"] < measured["none"]
    assert measured == pytest.approx(predicted, rel=0.1)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("strategy", ["baseline", "1f1b", "turbodl"])
@pytest.mark.parametrize("model", ["checkpointing", "reentrant", "redrawing", "selecting"])
def test_models_that_checkpoint_their_blocks_themselves(model, strategy):
    machine = this_cpu(devices=1 + (strategy == "1f1b"))
    job = job_of(model, 8)
    plan = planned(strategy, job, machine)
    assert plan.semantics["checkpoint"] == "the model's own"
    assert largest_error(job, plan, CpuBackend(machine), 3) < 1e-10


@pytest.mark.parametrize("checkpoint", ["full", "selective", "budget:80KiB"])
def test_plain_pytorch_is_timed_with_checkpointed_modules(checkpoint):
    """The numbers stay; as many products are computed as the graph has; and the module is left as it was."""
    job = Job(MODELS[0], 8, precision="fp64", checkpoint=checkpoint)
    built = job.build()
    results = []
    for loop in (reference(replace(job, checkpoint="none"), job.build(), False), reference(job, built, False)):
        with Counting() as counted:
            loop.step()
        results.append((loop.gradients(), counted.products))
    (expected, without), (gradients, products) = results
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    assert products - without == sum("addmm" in op.name for op in job.graph().ops if AGAIN in op.name)
    assert not any("forward" in vars(module) for module in built.module.modules())


class Counting(TorchDispatchMode):
    """Counts products with a bias."""

    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))
