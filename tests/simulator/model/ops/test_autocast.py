"""Autocast by the rules of a GPU, on CPU tensors, follows PyTorch's own lists, and the CPU's rules are back afterwards."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.model.ops.autocast import GPU, LOWER, RESULT, WIDEST, autocast
from tests.support import mlp
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, graph_of, planned
from tests.support.refusals import refuses
from traces.errors import Code

HALF, FULL = torch.bfloat16, torch.float32


def types_under(kind):
    """The result type, by op, of ops on bfloat16 tensors under autocast."""
    x = torch.ones(2, 4, dtype=HALF)
    with autocast("bfloat16", kind):
        return {
            "linear": functional.linear(x.float(), torch.ones(3, 4)).dtype,
            "softmax": x.softmax(1).dtype,
            "layer_norm": functional.layer_norm(x, (4,)).dtype,
            "sum": x.sum().dtype,
            "exp": x.exp().dtype,
            "norm": x.norm(dim=1).dtype,
            "relu": x.relu().dtype,
            "gelu": functional.gelu(x).dtype,
            "addcmul": torch.addcmul(x, x.float(), x).dtype,
            "mse_loss": functional.mse_loss(x, x).dtype,
            "cat": torch.cat((x, x.float())).dtype,
        }


def test_a_gpu_computes_more_ops_in_float32_than_a_cpu():
    on_both = {"linear": HALF, "relu": HALF, "gelu": HALF, "mse_loss": FULL, "cat": FULL, "addcmul": FULL}
    assert types_under("cpu") == on_both | dict.fromkeys(("softmax", "layer_norm", "sum", "exp", "norm"), HALF)
    assert types_under(GPU) == on_both | dict.fromkeys(("softmax", "layer_norm", "sum", "exp", "norm"), FULL)
    assert types_under("cpu")["softmax"] == HALF  # the rules of a GPU are gone


def test_only_a_gpu_refuses_binary_cross_entropy():
    odds, target = torch.full((3,), 0.5), torch.ones(3)
    with autocast("bfloat16"):
        assert functional.binary_cross_entropy(odds, target).dtype == FULL
    with autocast("bfloat16", GPU), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(odds, target)


def test_the_rules_are_those_of_pytorch():
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()

    def listed(name):
        block = header.partition(f"#define {name}(_)")[2].partition("\n\n")[0]
        return {".".join(filter(None, (part.strip() for part in item.split(",")))) for item in re.findall(r"_\(([^)]*)\)", block)}

    lower, widest = listed("AT_FORALL_LOWER_PRECISION_FP"), listed("AT_FORALL_PROMOTE")
    assert lower | {"cudnn_convolution", "cudnn_convolution_transpose"} >= LOWER
    assert widest >= WIDEST
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") - {"prod", "prod.dim_int"} == RESULT


# Capture under autocast: the casts of weights and activations, and of gradients, by the rules of the device.


def typed(graph: TrainingGraph) -> list[str]:
    """Every op with the types of what it reads and writes."""
    names = {"float32": "f", "bfloat16": "b"}
    return [f"{op.name} {''.join(names[o.dtype] for o in op.inputs)}>{''.join(names[o.dtype] for o in op.writes)}" for op in graph.ops]


def test_a_linear_layer_casts_its_parameters_its_input_and_its_gradients():
    assert typed(graph_of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), torch.randn(4, 3), autocast=("bfloat16", "cpu"))) == [
        "0/_to_copy f>b",  # bias
        "0/_to_copy#2 f>b",  # input
        "0/_to_copy#3 f>b",  # weight
        "0/addmm bbb>b",
        "1/_to_copy f>b",
        "1/_to_copy#2 f>b",
        "1/addmm bbb>b",
        "loss/sum b>b",
        "loss/ones_like.dX b>b",
        "1/mm.dX bb>b",
        "1/mm.dW bb>b",
        "1/sum.dB b>b",
        "1/_to_copy.dW b>f",
        "1/_to_copy.dB b>f",
        "0/mm.dW bb>b",
        "0/sum.dB b>b",
        "0/_to_copy.dW b>f",
        "0/_to_copy.dB b>f",
    ]


def test_the_cast_of_a_weight_is_made_once_however_often_a_layer_is_used():
    graph = Job(f"{mlp.__file__}:shared", 4, precision="amp").graph()
    casts = [op.reads[0].value for op in graph.ops if "_to_copy" in op.name and op.reads[0].value in graph.parameters]
    assert sorted(casts) == ["inner.bias", "inner.weight", "outer.bias", "outer.weight"]


def test_softmax_computes_in_float32_on_a_gpu_alone():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), torch.randn(4, 3)
    (on_cpu,) = (line for line in typed(graph_of(model, x, autocast=("bfloat16", "cpu"))) if "/_softmax " in line)
    (on_gpu,) = (line for line in typed(graph_of(model, x, autocast=("bfloat16", "gpu"))) if "/_softmax " in line)
    assert (on_cpu, on_gpu) == ("1/_softmax b>b", "1/_softmax f>f")


def test_parameters_gradients_and_updates_are_float32():
    job, machine = Job(MLP, 4, precision="amp"), core_groups(1)
    plan = planned("baseline", job, machine)
    (update,) = (task for task in plan.tasks if task.phase == "update")
    assert {operand.dtype for operand in update.inputs} == {"float32"}


def test_a_job_has_the_rules_of_the_machine_that_it_is_planned_for():
    job = Job("lenet5", 4, precision="amp")
    assert job.on("gpu").autocast == "gpu"
    assert job.on("gpu").graph() is job.on("gpu").graph()
    assert Job("lenet5", 4).on("gpu").autocast == ""


def test_recurrent_layers_are_refused_in_one_line():
    with refuses(Code.MODEL, r"recurrent layer 'recurrent'.*--precision amp\); use fp32"):
        Job("rnn_bitstream", 4, 10, precision="amp").graph()
