"""A bf16 copy of float32 parameters computes: what is cast, when, and what it takes; see tests/executors for the numbers."""

import pytest
import torch
from torch import nn

from calibrate.numerics import Expected, compare
from executors.cpu.backend import CpuBackend
from simulator.model.built import Built
from simulator.model.capture.capture import capture
from simulator.model.job import Job
from simulator.model.ops.mixed import lowered
from simulator.plan.bodies.op_class import ADDED_PRODUCT
from tests.support import mlp
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, planned
from tests.support.refusals import refuses
from traces.errors import Code


def test_parameters_are_cast_where_they_are_used_and_gradients_where_they_are_complete():
    module, x = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)), torch.randn(4, 3)
    graph = capture(lambda: Built(module, (x,), {}, torch.zeros(()), lambda out, _: out.sum(), lowered="bfloat16"), batch=4)
    kinds = {"float32": "f", "bfloat16": "b"}
    types = [f"{op.layer} {op.name} {''.join(kinds[o.dtype] for o in (*op.inputs, *op.writes))}" for op in graph.ops]
    assert types == [
        " model/_to_copy#3 fb",  # the input
        "0 model/_to_copy fb",  # the weight of layer 0
        "0 0/mm bbb",
        "1 model/_to_copy#2 fb",
        "1 1/mm bbb",
        "loss loss/sum bb",
        "loss loss/ones_like.dX bb",
        "1 1/mm.dW bbb",
        "1 1/_to_copy.dW bf",
        "1 1/mm.dX bbb",
        "0 0/mm.dW bbb",
        "0 0/_to_copy.dW bf",
    ]


def test_the_module_has_its_own_parameters_again_and_a_tied_one_is_cast_once():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    module = nn.Sequential(first, second)
    with lowered(module, "bfloat16"):
        assert first.weight is second.weight
        out = module(torch.ones(1, 2))
    assert (out.dtype, first.weight.dtype) == (torch.bfloat16, torch.float32)
    out.sum().backward()
    assert isinstance(first.weight, nn.Parameter)
    assert first.weight.grad.dtype == torch.float32


def test_no_op_of_a_decoder_computes_activations_in_float32_but_the_loss_and_rotations():
    job = Job("lm:form=llama,layers=1,d_model=64,heads=2,kv_heads=1,ffn=128,vocab=100", 2, image_size=16, precision="mixed")
    wide = {op.layer for op in job.graph().ops if op.phase == "forward" and op.writes and op.writes[0].dtype == "float32"}
    assert wide == {"loss", "blocks.0.attention"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text",
    [
        "baseline",
        "fsdp",
        *(f"{name}gradients={how}" for name in ("fsdp:shard=1,", "data-parallel:", "1f1b:") for how in ("kept", "fused", "held")),
    ],
)
@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_it_trains_as_plain_pytorch_does(text, precision):
    machine = core_groups(1 if text == "baseline" else 2)
    job = Job(f"{mlp.__file__}:shared", 8, precision=precision, optimizer="adamw", accumulate=2)
    built = job.build()
    numerics = compare(job, built, planned(text, job, machine), CpuBackend(machine), Expected.of(job, built))
    assert max(numerics.max_grad_error, numerics.max_param_error) <= (1e-10 if precision == "fp64" else 2e-2)


def test_kept_gradients_are_carried_and_every_microbatch_adds_to_them():
    machine = core_groups(2)
    plan = planned("data-parallel:gradients=kept", Job(MLP, 8, accumulate=2), machine)
    kept = [value for value in plan.values.values() if value.name.partition("@")[0].endswith("::gradient")]
    assert all(value.storage in plan.carried for value in kept)
    assert {value.name for value in kept} == {f"{p}::gradient{end}" for p in plan.gradients for end in ("", f"@{plan.devices[1]}")}
    assert sum("accumulate" in task.name for task in plan.tasks) == 2 * 2 * len(plan.gradients)


@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_products_add_to_fused_gradients_without_a_sum(precision):
    """Of a network without biases, no microbatch has another op for its gradients."""
    machine, job = core_groups(2), Job(f"{mlp.__file__}:square", 8, accumulate=2, precision=precision)
    kept, fused = (planned(f"data-parallel:gradients={how}", job, machine) for how in ("kept", "fused"))
    products = [task for task in fused.tasks if task.body.op == ADDED_PRODUCT]
    assert {task.mutates[0].value.partition("@")[0] for task in products} == {f"{name}::gradient" for name in job.graph(2, 4).parameters}
    assert len(kept.tasks) - len(fused.tasks) == len(products)
    assert not [task for task in fused.tasks if "accumulate" in task.name]


def test_no_float32_copy_is_made_of_what_is_added_to_a_kept_gradient():
    machine, job = core_groups(2), Job(MLP, 8, accumulate=2, precision="mixed")
    freed, kept = (planned(f"data-parallel:gradients={how}", job, machine) for how in ("freed", "kept"))
    casts, none = (
        [task.name for task in plan.tasks if task.name.partition("@")[0].endswith(("_to_copy.dW", "_to_copy.dB"))] for plan in (freed, kept)
    )
    assert (len(casts), none) == (2 * 2 * len(job.graph(2, 4).parameters), [])
    assert {task.reads[0].dtype for task in kept.tasks if "accumulate" in task.name} == {"bfloat16"}


def test_held_gradients_are_added_when_a_backward_has_ended():
    """The first microbatch's; those of the last go to buckets as they come, or, with shards, are summed whole at the end."""
    machine, job = core_groups(2), Job(MLP, 8, accumulate=2)
    replicas, shards = (planned(f"{text}gradients=held", job, machine) for text in ("data-parallel:", "fsdp:shard=1,"))
    names = [[task.name for task in plan.tasks if task.device == "cpu:0" and task.phase == "backward"] for plan in (replicas, shards)]
    added, parameters = [name for name in names[0] if "accumulate@0" in name], len(job.graph(2, 4).parameters)
    first, last = names[0][: len(names[0]) // 2], names[0][len(names[0]) // 2 :]
    assert names[0].index(added[0]) == names[0].index(added[-1]) - parameters + 1
    assert sum("/copy@1" in name for name in last) == parameters
    assert not [name for name in first if "/copy@" in name]
    assert {value.name.partition("@")[0] for value in replicas.values.values() if "::bucket" in value.name} == {
        f"{p}::bucket" for p in replicas.gradients
    }
    assert all("accumulate@1" in name for name in names[1][-parameters:])
    sums = [position for position, task in enumerate(shards.tasks) if task.phase == "collective" and "reduce" in task.name]
    assert min(sums) > max(position for position, task in enumerate(shards.tasks) if task.phase == "backward")


def test_held_gradients_with_shards_gather_all_parameters_at_once_to_where_they_stay():
    """Each rank's part of each parameter is copied by itself (nanotron, `_all_gather_params` of src/nanotron/optim/zero.py)."""
    machine, job = core_groups(3), Job(MLP, 12, precision="mixed")
    plan, parameters = planned("fsdp:shard=1,gradients=held", job, machine), len(job.graph(4, 3).parameters)
    (placed,) = [task for task in plan.tasks if task.name.endswith("/copy@cpu:0")]
    assert len(placed.body.steps) == sum(min(3, job.graph(4, 3).values[name].shape[0]) for name in job.graph(4, 3).parameters)
    assert len(placed.mutates) == parameters
    assert {plan.storage_of(operand) for operand in placed.mutates} <= plan.carried
    assert len({task.name.partition("/")[0] for task in plan.tasks if "/gather" in task.name}) == 1


@pytest.mark.parametrize(("total", "factor"), [("float32", "bfloat16"), ("float32", "float32"), ("float64", "float64")])
def test_a_product_is_added_in_the_type_of_the_sum(total, factor):
    total, left, right = torch.ones(3, 2, dtype=getattr(torch, total)), *torch.ones(2, 8, 8, dtype=getattr(torch, factor))
    torch.ops.schedcast.add_mm(total, left[:3], right[:, :2])
    assert total.tolist() == [[9.0] * 2] * 3


def test_gradients_are_kept_only_where_a_device_has_whole_ones():
    with refuses(Code.REQUEST, "gradients=kept goes with shard=0 or 1"):
        planned("fsdp:gradients=kept", Job(MLP, 8), core_groups(2))
    with refuses(Code.REQUEST, "gradients=kept goes with update=baseline"):
        planned("data-parallel:gradients=kept,update=forward-fusion", Job(MLP, 8), core_groups(2))
