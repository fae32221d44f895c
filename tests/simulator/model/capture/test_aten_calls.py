"""The backward of a convolution, also grouped or transposed, has its forward's FLOPs for each requested gradient."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from simulator.model.built import Built
from simulator.model.capture.aten_calls import SHAPES, flops
from simulator.model.capture.capture import capture
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.model.ops.aten_json import resolve
from simulator.plan.ops import row
from tests.support import models
from tests.support.places import USER_MODELS

aten = torch.ops.aten


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_each_gradient_costs_one_forward(groups, transposed):
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    x, w = torch.empty(2, 4, 8, 8, device="meta"), torch.empty(*channels, 3, 3, device="meta")
    geometry = ([2, 2], [1, 1], [1, 1], transposed, [0, 0], groups)
    y = aten.convolution(x, w, None, *geometry)
    forward = flops(aten.convolution.default, (x, w, None, *geometry), {}, [y])
    for mask, gradients in (([True, False, False], 1), ([False, True, True], 1), ([True, True, False], 2)):
        args = (y, x, w, [0], *geometry, mask)
        assert flops(aten.convolution_backward.default, args, {}, aten.convolution_backward(*args)) == gradients * forward


# Shape functions of our own give what the real ops give.


NORMALIZE, DIFFERENTIATE = torch.ops.aten.native_batch_norm.default, torch.ops.aten.native_batch_norm_backward.default
FORMATS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "rows": lambda: torch.randn(6, 3),
    "with gaps": lambda: torch.randn(2, 3, 4, 10)[..., ::2],
}


def alike(real, fake) -> None:
    assert [(each.shape, each.stride(), each.dtype) for each in real] == [(each.shape, each.stride(), each.dtype) for each in fake]


@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_and_its_backward(of, training, affine):
    inputs = FORMATS[of]()
    weight, bias = (torch.ones(3), torch.zeros(3)) if affine else (None, None)
    mean, variance = torch.zeros(3), torch.ones(3)
    forward = (inputs, weight, bias, mean, variance, training, 0.1, 1e-5)
    real = NORMALIZE(*forward)
    backward = (torch.randn_like(real[0]), inputs, weight, mean, variance, *real[1:], training, 1e-5, [True, affine, affine])
    back = [each for each in DIFFERENTIATE(*backward) if each is not None]
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:

        def faked(arguments):
            return [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments]

        alike(real, SHAPES[NORMALIZE](*faked(forward)))
        wanted = SHAPES[DIFFERENTIATE](*faked(backward))
        alike(back, [each for each in wanted if each is not None])


# Every tensor that an op's schema takes is an operand of the captured op: also in lists, with gaps, and by name.


FACTORIES = [f"{path}:make" for path in USER_MODELS] + [f"{models.__file__}:masked"]


class Lists(nn.Module):
    """Ops whose tensors are in lists, in lists with gaps, or given by name."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(4, 6))

    def forward(self, x, rows):
        parts = torch._foreach_mul([self.linear(x), x], [2.0, 3.0])
        torch._foreach_add_(parts, [x, x])
        self.seen.index_put_((rows, rows), torch.ones(()), accumulate=True)
        both = torch.stack([torch.cat(parts, dim=1)[:, :6], parts[0].index_put((rows,), x)], dim=1)
        picked = both[:, None][:, :, [0, 1], rows[:2]] + both.sum(1)[..., rows[:1], None]
        return torch.where(picked > 0, picked, picked.amin()).mean() + parts[1].clamp(max=x).mean() + torch.einsum("ab,ab->", parts)


def lists() -> TrainingGraph:
    inputs = torch.randn(4, 6), torch.arange(4)
    return capture(lambda: Built(Lists(), inputs, {}, torch.zeros(()), lambda output, _: output), 4)


def slots(item: object) -> Iterator[int]:
    """The numbers of the operands in an argument."""
    if isinstance(item, dict) and "$" in item:
        yield item["$"]
    for inner in item if isinstance(item, list) else ():
        yield from slots(inner)


def check(op: Op) -> None:
    schema = resolve(op.body.target)._schema
    given, named = json.loads(op.body.args), json.loads(op.body.kwargs)
    numbers: list[int] = []
    for position, argument in enumerate(schema.arguments):
        item = given[position] if position < len(given) else named.get(argument.name)
        own = list(slots(item))
        if "Tensor" not in str(argument.type):
            assert not own, f"{argument.name} takes no tensor"
            continue
        items = [each for each in (item if isinstance(item, list) else [item]) if each is not None]
        numbers_instead = [each for each in items if isinstance(each, int | float)]  # PyTorch takes x + 1 as a tensor and a number
        assert len(own) == len(items) - len(numbers_instead), f"{argument.name} has tensors that are no operands"
        hidden = position in row(op.body.target).running and given[5]
        changed = hidden or (argument.alias_info is not None and argument.alias_info.is_write)
        assert all((number >= len(op.reads)) == changed for number in own), f"{argument.name} is read, but changed, or the reverse"
        numbers += own
    assert sorted(set(numbers)) == list(range(len(op.inputs))), "operands that no argument names"
    written = [result for result in schema.returns if result.alias_info is None and "Tensor" in str(result.type)]
    assert bool(op.writes) == bool(written), "results that are no operands"
    assert len(op.writes) == len(op.body.outputs)


def check_all(graph: TrainingGraph) -> None:
    for op in graph.ops:
        if op.body.target.startswith("aten."):
            check(op)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("factory", FACTORIES, ids=lambda text: Path(text).stem)
def test_every_tensor_of_the_schema_is_an_operand(factory):
    check_all(Job(factory, 4, precision="fp64").graph())


def test_tensors_in_lists_with_gaps_and_by_name_are_operands():
    graph = lists()
    targets = {op.body.target.split(".")[1] for op in graph.ops}
    assert {"_foreach_mul", "_foreach_add_", "index_put_", "stack", "cat", "index", "add", "where", "clamp"} <= targets
    check_all(graph)
