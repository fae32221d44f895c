"""Dropout masks depend on (seed, step, index) only, and plain PyTorch can be made to use them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from executors.contexts import DeterministicDraws, batch_norm_by_parts
from executors.kernels.lowering.dropout import draw_seed, drop, mask
from tests.support.refusals import refuses
from traces.errors import Code


def test_a_mask_depends_on_seed_step_and_index_alone():
    first = mask((50, 40), 0.3, seed=1, step=2, index=3)
    torch.rand(7)
    assert torch.equal(first, mask((50, 40), 0.3, seed=1, step=2, index=3))
    for other in [(0, 2, 3), (1, 0, 3), (1, 2, 0), (2, 1, 3), (12, 3, 0)]:
        assert not torch.equal(first, mask((50, 40), 0.3, *other))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_a_mask_drops_a_share_p(p):
    keep = mask((200, 200), p, 0, 0, 0)
    assert keep.dtype == torch.bool
    assert abs(1 - keep.double().mean().item() - p) < 0.01


def test_a_mask_leaves_the_global_generator_and_default_dtype_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    keep = mask((4,), 0.5, 1, 1, 1)
    assert torch.equal(torch.rand(3), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(mask((4,), 0.5, 1, 1, 1), keep)
    finally:
        torch.set_default_dtype(torch.float32)


def test_plain_dropout_uses_the_masks_in_call_order():
    x = torch.randn(20, 30, dtype=torch.float64)
    layer = nn.Dropout(0.25)
    with DeterministicDraws(seed=5, step=7):
        outputs = [F.dropout(x, 0.1), layer(x), F.dropout(x.clone(), 0.4, inplace=True), F.dropout(x, 0.5, training=False)]
    for index, (output, p) in enumerate(zip(outputs, (0.1, 0.25, 0.4), strict=False)):
        assert torch.equal(output, drop(x, mask(x.shape, p, 5, 7, index), p))
    assert torch.equal(outputs[3], x)


def test_a_dropped_element_gets_no_gradient():
    x = torch.randn(20, 30, dtype=torch.float64, requires_grad=True)
    with DeterministicDraws(5, 7):
        output = F.dropout(x, 0.25)
    output.sum().backward()
    assert torch.equal(x.grad, drop(torch.ones_like(x), mask(x.shape, 0.25, 5, 7, 0), 0.25).detach())


def test_native_dropout_uses_the_masks_too():
    x = torch.randn(20, 30, dtype=torch.float64, requires_grad=True)
    with DeterministicDraws(5, 7):
        output, keep = torch.native_dropout(x, 0.25, True)
    assert torch.equal(keep, mask(x.shape, 0.25, 5, 7, 0))
    assert torch.equal(output, drop(x, keep, 0.25))
    output.sum().backward()
    assert torch.equal(x.grad != 0, keep)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_drops_its_weights(causal):
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    with DeterministicDraws(5, 7) as mode:
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3, is_causal=causal)
    scores = query @ key.transpose(-2, -1) / 2
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), float("-inf"))
    weights = drop(scores.softmax(-1), mask(scores.shape, 0.3, 5, 7, 0), 0.3)
    torch.testing.assert_close(output, weights @ value, rtol=1e-12, atol=1e-12)
    assert mode.calls == 1


def test_attention_without_dropout_runs_unchanged():
    query = torch.randn(2, 3, 5, 4, requires_grad=True)
    with DeterministicDraws(5, 7) as mode:
        without = F.scaled_dot_product_attention(query, query, query)
        with_dropout = F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
    assert "Flash" in without.grad_fn.name()
    assert "Flash" not in with_dropout.grad_fn.name()
    assert mode.calls == 1


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_inside_pytorchs_own_attention_module(need_weights):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64)

    def run(seed: int, step: int) -> torch.Tensor:
        with DeterministicDraws(seed, step) as mode:
            output, _ = attention(x, x, x, need_weights=need_weights)
        assert mode.calls == 1
        return output

    assert torch.equal(run(1, 0), run(1, 0))
    assert not torch.equal(run(1, 0), run(1, 1))
    assert not torch.equal(run(1, 0), run(2, 0))


def test_entering_again_continues_with_the_next_index():
    x = torch.ones(100)
    mode = DeterministicDraws(0, 0)
    with mode:
        first = F.dropout(x)
    between = F.dropout(x)
    with mode:
        second = F.dropout(x)
    assert torch.equal(first != 0, mask((100,), 0.5, 0, 0, 0))
    assert torch.equal(second != 0, mask((100,), 0.5, 0, 0, 1))
    assert between.shape == x.shape
    assert mode.calls == 2


def test_with_a_seed_function_the_op_itself_draws():
    x = torch.randn(20, 30, dtype=torch.float64)
    with DeterministicDraws(5, 7, torch.manual_seed) as mode:
        F.dropout(x, 0.1)
        output, keep = torch.native_dropout(x, 0.25, True)
    torch.manual_seed(draw_seed(5, 7, 1))
    expected = torch.native_dropout(x, 0.25, True)
    assert torch.equal(output, expected[0])
    assert torch.equal(keep, expected[1])
    assert mode.calls == 2


def test_dropping_everything_draws_no_mask_in_a_captured_step_either():
    from simulator.model.built import Built
    from simulator.model.capture.capture import capture

    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0), nn.Linear(3, 3), nn.Dropout(0.5))
    graph = capture(lambda: Built(model, (torch.randn(2, 3),), {}, torch.zeros(()), lambda out, _: out.sum()), batch=2)
    x = torch.randn(2, 3)
    with DeterministicDraws(0, 0) as mode:
        model(x)
    assert sum(op.body.target == "aten.native_dropout.default" for op in graph.ops) == mode.calls == 1


# Batch-norm by parts, in plain PyTorch: as if every part were a batch.


X = torch.randn(4, 3, 6, 2, dtype=torch.float64)


def model() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()).double()


def test_every_part_is_normalized_by_itself():
    """Two halves of the images times three parts of the height; the first of the six makes the running statistics."""
    divided, alone = model(), model()
    with batch_norm_by_parts(divided, {"0": [2, 3, 1]}):
        output = divided(X)
    for image in range(0, 4, 2):
        for row in range(0, 6, 2):
            expected = model()(X[image : image + 2, :, row : row + 2])
            torch.testing.assert_close(output[image : image + 2, :, row : row + 2], expected, rtol=0, atol=1e-12)
    alone(X[:2, :, :2])
    for name, tensor in divided.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[name]), name


def test_outside_the_context_and_in_evaluation_the_layer_is_as_it_was():
    layer, other = model(), model()
    with batch_norm_by_parts(layer, {"0": [2, 1, 1]}):
        torch.testing.assert_close(layer.eval()(X), other.eval()(X))
    torch.testing.assert_close(layer.train()(X), other.train()(X))
    assert "forward" not in vars(layer[0])


@pytest.mark.parametrize("path", ["1", "features.0"])
def test_only_batch_norm_layers_have_parts(path):
    with refuses(Code.MODEL), batch_norm_by_parts(model(), {path: [2, 1, 1]}):
        pass
