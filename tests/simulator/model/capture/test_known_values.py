"""A step may decide by numbers of its batch what to compute: it is captured for the batch at hand, and checks them in every step."""

import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from simulator.model.built import Built
from simulator.model.capture.capture import capture
from simulator.model.graph import CHECK, TrainingGraph
from tests.support.refusals import refuses
from traces.errors import Code

MASK = torch.tensor([[True, True, False], [True, True, True]])


def masked(forward, mask=MASK) -> TrainingGraph:
    """The step of a linear layer with the function `forward(linear, x, mask)`; x has the shape of the mask."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("limit", torch.tensor(2))
            self.gate = nn.Linear(3, 2)

        def forward(self, x, mask):
            return forward(self, x, mask)

    return capture(lambda: Built(Net(), (torch.randn(2, 3), mask), {}, None, lambda output, _: output.sum()), batch=2)


def checks(graph: TrainingGraph) -> list[str]:
    """The number that each check expects."""
    return [op.body.args.rpartition(",")[2].rstrip("]") for op in graph.ops if op.body.target == CHECK]


def targets(graph: TrainingGraph) -> list[str]:
    return [op.body.target.split(".")[1] for op in graph.ops if op.phase == "forward"]


@pytest.mark.parametrize(("mask", "expected", "scaled"), [(MASK, "0.0", False), (torch.ones_like(MASK), "1.0", True)])
def test_a_branch_goes_the_way_of_the_given_mask_and_is_checked(mask, expected, scaled):
    graph = masked(lambda net, x, mask: net.linear(x) * 2 if mask.all() else net.linear(x), mask)
    assert checks(graph) == [expected]
    assert ("mul" in targets(graph)) == scaled


def test_what_only_literals_decide_needs_no_check():
    def forward(net, x, mask):
        causal = torch.ones(3, 3).tril()
        return net.linear(x) * 2 if torch.equal(causal, causal.tril()) else net.linear(x)

    graph = masked(forward)
    assert checks(graph) == []
    assert "mul" in targets(graph)


@pytest.mark.parametrize(
    ("forward", "shape", "expected"),
    [
        (lambda net, x, mask: net.linear(x)[mask], (5,), "5.0"),
        (lambda net, x, mask: net.linear(x)[mask[:, 2]], (1, 3), "1.0"),
        (lambda net, x, mask: net.linear(x).masked_select(mask), (5,), "5.0"),
        (lambda net, x, mask: net.linear(x)[torch.where(mask)], (5,), "5.0"),
        (lambda net, x, mask: net.linear(x).repeat_interleave(mask.sum(1), 0), (5, 3), "5.0"),
        (lambda net, x, mask: net.linear(x)[: int(net.limit) - 1], (1, 3), "2.0"),
        (lambda net, x, mask: net.linear(x)[:, torch.unique(mask).long()], (2, 2), "1.0"),
        (lambda net, x, mask: net.linear(x)[0, torch.unique_consecutive(mask).long()], (3,), "2.0"),
        (lambda net, x, mask: net.linear(x) if torch.equal(mask, ~mask) else net.linear(x)[0], (3,), "0.0"),
    ],
)
def test_shapes_are_those_that_the_batch_gives(forward, shape, expected):
    graph = masked(forward)
    (total,) = (op for op in graph.ops if op.name == "loss/sum")
    assert total.reads[0].shape == shape
    assert checks(graph) == [expected]


def test_a_number_that_was_changed_in_place_counts_as_it_is_now():
    def forward(net, x, mask):
        count = mask.sum()
        count[None].add_(2)
        return net.linear(x) * count.item()

    assert checks(masked(forward)) == ["7.0"]


@pytest.mark.parametrize(
    "read", [lambda net, x: net.linear.weight.sum(), lambda net, x: torch.rand(3).sum(), lambda net, x: net.linear(x).max()]
)
def test_a_number_that_changes_from_step_to_step_is_refused_with_its_line(read):
    with refuses(Code.MODEL, r"test_known_values.py:\d+ in <lambda>: the training step reads tensor values"):
        masked(lambda net, x, mask: net.linear(x) * read(net, x).item())


def test_a_shape_that_cannot_be_checked_is_refused_with_its_line():
    with refuses(Code.MODEL, r"test_known_values.py:\d+ in <lambda>: the shape of the result of aten.unique_dim.default"):
        masked(lambda net, x, mask: net.linear(x)[: len(torch.unique(mask, dim=0))])


def experts(net, x, mask):
    """Each sample goes to one of two experts, which are the same layer here."""
    weight, chosen = net.gate(x).softmax(-1).topk(1)
    output = torch.zeros_like(x)
    for expert in range(2):
        rows = functional.one_hot(chosen[:, 0], 2)[:, expert].nonzero()[:, 0]
        output = output.index_add(0, rows, net.linear(x[rows]) * weight[rows])
    return output


def test_experts_are_captured_with_a_balanced_load():
    graph = masked(experts)
    assert [op.reads[1].shape for op in graph.ops if op.name.startswith("linear/addmm")] == [(1, 3), (1, 3)]
    assert checks(graph) == []
    assert "balanced experts" in graph.assumptions[0]


def test_a_layer_that_is_dropped_at_random_runs():
    graph = masked(lambda net, x, mask: x if torch.rand(()) < 0.1 else net.linear(x))
    assert "addmm" in targets(graph)
    assert "each random number at its mean" in graph.assumptions[0]
    assert "experts" not in graph.assumptions[0]


@pytest.mark.parametrize("draw", [random.random, lambda: numpy.random.rand(1).item()])
def test_what_random_numbers_of_python_decide_is_predicted_and_said(draw):
    graph = masked(lambda net, x, mask: net.linear(x) * 2 if draw() < 0.5 else net.linear(x) + draw())
    (assumption,) = graph.assumptions
    assert assumption.startswith("the model draws random numbers of Python or NumPy")
