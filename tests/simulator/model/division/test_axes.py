"""The axes of ops by brute force: run on parts of its tensors, an op makes parts, or addends, of what it makes of the whole tensors."""

import json
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calibrate.operands import elements_of
from simulator.model.built import Built
from simulator.model.capture.capture import capture
from simulator.model.division.axes import Axis, axes, is_linear
from simulator.model.division.placement import WHOLE, Placement, cut_along
from simulator.model.graph import Op, TrainingGraph, arguments_of
from simulator.model.job import Job
from simulator.model.ops.aten_json import Slot, decode, decode_item, resolve
from simulator.model.ops.rms_norm import as_one_op
from simulator.plan.bodies.opcall import DROPOUT
from simulator.plan.ops import ROWS, name_of
from simulator.plan.views import dense
from tests.support import mlp, real_models
from tests.support.view_chains import part

_CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def rms_norm_as_one_op():
    with as_one_op():
        yield


def inputs_of(op: Op) -> list[torch.Tensor]:
    """Random tensors for an op: positive numbers, which every function here takes, and indices in range."""
    torch.manual_seed(1)
    elements, tensors = elements_of(op), []
    for operand in op.inputs:
        dtype = getattr(torch, operand.dtype)
        drawn = torch.rand(operand.shape, dtype=torch.float64) + 0.1 if dtype.is_floating_point or dtype.is_complex else None
        drawn = torch.randint(elements[operand.value].below, operand.shape) if drawn is None else drawn
        tensors.append(torch.empty_strided(operand.shape, dense(operand.shape, operand.strides), dtype=dtype).copy_(drawn))
    return tensors


def run(op: Op, tensors: Sequence[torch.Tensor], args: list | None = None) -> list[torch.Tensor]:
    """What the op makes of these tensors: its results that the graph reads, or the tensors that it changes."""

    def filled(item):
        if isinstance(item, list):
            return [filled(each) for each in item]
        return given[item] if isinstance(item, Slot) else item

    given = [tensor.clone() for tensor in tensors]  # an op may change them
    text = op.body.args if args is None else json.dumps(args)
    named = {name: filled(decode_item(item, _CPU)) for name, item in json.loads(op.body.kwargs).items()}
    results = resolve(op.body.target)(*filled(decode(text, _CPU)), **named)
    if not op.writes:
        return given[len(op.reads) :]
    results = results if isinstance(results, tuple | list) else (results,)
    return [results[at] for at in op.body.outputs]


def check_axis(op: Op, axis: Axis, degree: int) -> bool:
    """Check an axis of an op on so many devices. Returns False if its dimensions do not divide by their number."""
    inputs = [WHOLE if dim is None else cut_along(dim, o.shape[dim]) for dim, o in zip(axis.inputs, op.inputs, strict=True)]
    if not all(placement.fits(o.shape, degree) for placement, o in zip(inputs, op.inputs, strict=True)):
        return False
    tensors = inputs_of(op)
    whole = run(op, tensors)
    parts = []
    for rank in range(degree):
        own = [part(tensor, placement, rank, degree) for tensor, placement in zip(tensors, inputs, strict=True)]
        args = arguments_of(op)
        if "slice_backward" in op.body.target:  # its second argument is the shape of its result
            args[1] = list(cut_along(axis.writes[0], whole[0].shape[axis.writes[0]]).local(whole[0].shape, degree))
        parts.append(run(op, own, args))
    dims = axis.writes or axis.inputs[len(op.reads) :]
    assert len(dims) == len(whole)
    for number, (dim, result) in enumerate(zip(dims, whole, strict=True)):
        if dim is None:
            torch.testing.assert_close(sum(own[number] for own in parts), result)
            continue
        blocks = (result.shape[dim],)
        if "aten.cat" in op.body.target and dim == (*arguments_of(op), 0)[1] % result.dim():
            blocks = tuple(block for item in arguments_of(op)[0] for block in inputs[item["$"]].blocks)
        for rank, own in enumerate(parts):
            torch.testing.assert_close(own[number], part(result, Placement(dim, blocks), rank, degree))
    return True


def check(op: Op) -> set[Axis]:
    """Check all axes of an op on two and three devices. Returns those that divide."""
    return {axis for axis in axes(op) for degree in (2, 3) if check_axis(op, axis, degree)}


# The ops of models' graphs.


HEADS = "d_model=24,heads=6,kv_heads=2,ffn=36,vocab=30"
MODELS = [
    f"lm:form=llama,layers=1,{HEADS}",
    f"lm:form=gpt,layers=1,loss=fused,{HEADS}",
    f"{mlp.__file__}:make",
    f"{real_models.__file__}:vit",
]
MORE = [f"{real_models.__file__}:{name}" for name in ("llama", "gpt2", "bert", "t5", "bart", "swin", "beit", "convnext")]


@cache
def checked(model: str) -> frozenset[str]:
    """Check the ops of a model, except dropout, which draws. Returns the names of those with axes that divide."""
    length = 6 if model.startswith("lm:") else None
    return check_all(Job(model, 6 if mlp.__file__ in model else 2, image_size=length, precision="fp64").graph())


def check_all(graph: TrainingGraph) -> frozenset[str]:
    ops = {(op.body, *(operand.shape for operand in op.inputs)): op for op in graph.ops if op.body.target != DROPOUT}.values()
    for op in filter(is_linear, ops):
        check_sum(op)
    return frozenset(name_of(op.body.target) for op in ops if check(op))


def check_sum(op: Op) -> None:
    """Check that what a linear op makes of sums are sums."""
    first = inputs_of(op)
    second = [2 * tensor for tensor in first]
    (both,) = run(op, [a + b for a, b in zip(first, second, strict=True)])
    torch.testing.assert_close(run(op, first)[0] + run(op, second)[0], both)


@pytest.mark.parametrize("model", [*MODELS, *(pytest.param(model, marks=pytest.mark.thorough) for model in MORE)])
def test_ops_of_models(model):
    assert checked(model) >= {"mm", "_log_softmax", "_log_softmax_backward_data"} or checked(model) >= {
        "cross_entropy",
        "cross_entropy_backward",
    }


#: Functions of [6, 12] that models seldom have; in place as well.
FUNCTIONS = (
    torch.tanh, torch.sigmoid, F.elu, F.leaky_relu, F.hardtanh, F.relu, F.silu, F.gelu, torch.exp, torch.neg, torch.rsqrt, torch.sqrt,
    torch.reciprocal, torch.cos, torch.sin, torch.tanh_, torch.sigmoid_, F.relu_, torch.ops.aten.gelu_,
    lambda x: x**2, lambda x: 1 / x, lambda x: x - x.exp(), lambda x: x.softmax(0), lambda x: x.add_(x.exp()).mul_(2).div_(3),
    lambda x: torch.where(x > 1, x, x.exp()), lambda x: x.masked_fill(x > 1, 0.5), lambda x: F.silu(x.clone(), inplace=True),
    lambda x: torch.bmm(x.view(2, 3, 12), x.view(2, 12, 3)).sum((0, 2)).sum() * x, lambda x: F.dropout(x, 0.5), lambda x: x.double(),
    lambda x: torch.zeros_like(x).copy_(x), lambda x: torch.lerp(x, x.exp(), x.detach().sigmoid()), lambda x: torch.logaddexp(x, x.exp()),
)  # fmt: skip


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x):
        y = self.linear(x)
        return sum(function(y.clone()) for function in FUNCTIONS)


def test_every_rule():
    graph = capture(lambda: Built(Functions(), (torch.rand(6, 12),), {}, None, lambda output, _: output.sum()), batch=6)
    tried = check_all(graph).union(*map(checked, MODELS))
    alone = {"all_gather", "reduce_scatter"}  # of no process here; see test_context_parallel.py
    assert tried == {name for name, row in ROWS.items() if row.divides} - alone - {"native_dropout"}
