"""RMS norm as one op: its gradients, and what is dispatched within the block and after it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.model.ops.rms_norm import BACKWARD, FORWARD, as_one_op, backward, backward_shapes, shapes


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def differentiated(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    out = F.rms_norm(x, shape, weight, 1e-5)
    inputs = [x] if weight is None else [x, weight]
    return out, *torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape)).sum(), inputs)


@pytest.mark.parametrize("shape", [[6], [3, 6]], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_are_those_of_the_small_ops(shape, weighted, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape, dtype=dtype, requires_grad=True) if weighted else None
    plain = differentiated(x, shape, weight)
    with as_one_op():
        one = differentiated(x, shape, weight)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(one, plain, rtol=tolerance, atol=tolerance)


def test_within_the_block_there_are_two_ops_and_none_after_it():
    x, weight = torch.randn(2, 6, requires_grad=True), torch.ones(6, requires_grad=True)
    for fused in (True, False):
        with Dispatched() as seen:
            if fused:
                with as_one_op():
                    differentiated(x, [6], weight)
            else:
                differentiated(x, [6], weight)
        assert [op in seen.ops for op in (FORWARD, BACKWARD)] == [fused] * 2
        assert (torch.ops.aten.rsqrt.default in seen.ops) is not fused


def test_the_kernels_stay_until_the_last_block_ends():
    x, weight = torch.randn(2, 6, requires_grad=True), torch.ones(6, requires_grad=True)
    with as_one_op():
        with as_one_op():
            pass
        with Dispatched() as seen:
            differentiated(x, [6], weight)
    assert {FORWARD, BACKWARD} <= set(seen.ops)


def test_shapes_are_those_of_the_results():
    x, weight = torch.randn(2, 3, 6, dtype=torch.bfloat16), torch.ones(6, dtype=torch.bfloat16)
    out, rstd = FORWARD(x, [6], weight, 1e-5)
    for made, real in zip(shapes(x, [6], weight, 1e-5), (out, rstd), strict=True):
        assert (made.shape, made.dtype, made.stride()) == (real.shape, real.dtype, real.stride())
    for mask in ([True, True], [True, False], [False, True]):
        for made, real in zip(backward_shapes(out, x, [6], rstd, weight, mask), backward(out, x, [6], rstd, weight, mask), strict=True):
            assert (made is None) == (real is None)
            assert made is None or (made.shape, made.dtype) == (real.shape, real.dtype)
