"""Products of sparse, full and vector operands equal those of full matrices, for shared and for per-sample values."""

import numpy as np
import pytest
import torch

from executors.kernels import sparse as products
from executors.kernels.sparse import compile_product
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.product import ProductPattern
from simulator.plan.bodies.csr.rules import AdaptiveAveragePoolRule, ConvolutionRule, ElementwiseRule, LinearRule, MaxPoolRule
from simulator.plan.bodies.csr.sparse_rule import Store
from simulator.plan.bodies.scan import Full, Gradient, JacobianProduct, shape
from simulator.plan.task import Operand, Task
from tests.support.csr_cases import CPU, dense

FIRST = ConvolutionRule(2, 5, 6, 3, (3, 3), padding=(1, 1))
RELU = ElementwiseRule(90, "aten.threshold_backward.default", '[{"$":0},0]')
POOL = MaxPoolRule(3, 5, 6, (2, 3), (2, 2), (2, 2))
NEXT = LinearRule(18, 7, Mask(0.5))
MEAN = AdaptiveAveragePoolRule(3, 5, 6, (2, 3))
PAIRS = [
    (FIRST, RELU), (RELU, POOL), (FIRST, POOL), (POOL, NEXT), (FIRST, MEAN), (RELU, RELU),
    (ProductPattern(FIRST, RELU), ProductPattern(POOL, NEXT)),
    (FIRST, Full(90, 4)), (RELU, Full(90, 4)), (Full(4, 60), FIRST), (Full(4, 90), RELU), (Full(4, 90), Full(90, 3)),
    (FIRST, Gradient(90)), (RELU, Gradient(90)), (ProductPattern(FIRST, POOL), Gradient(18)), (Full(4, 90), Gradient(90)),
]  # fmt: skip


def random(form, samples):
    return torch.randn(shape(form, samples), dtype=torch.float64)


def as_full(form, values):
    """The operand as full matrices [V, rows, cols], whatever its format."""
    if isinstance(form, Gradient):
        return values.t().unsqueeze(2)
    if isinstance(form, Full):
        return values if values.dim() == 3 else values.unsqueeze(0)
    return dense(form.pattern(), values)


def task(body, *tensors):
    """A task that reads all tensors except the last one, which it writes."""
    operands = [Operand(f"v{i}", tuple(t.shape), tuple(t.stride()), "float64") for i, t in enumerate(tensors)]
    return Task("t", body, "cpu", reads=tuple(operands[:-1]), writes=tuple(operands[-1:]))


@pytest.mark.parametrize("scratch", [16, 2**17])
@pytest.mark.parametrize("samples", [(1, 1), (1, 3), (3, 1), (3, 3)])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_every_pair_of_formats(left, right, samples, scratch, monkeypatch):
    monkeypatch.setitem(products._SCRATCH, "cpu", scratch)
    torch.manual_seed(0)
    a, b = random(left, samples[0]), random(right, samples[1])
    body = JacobianProduct(left, right)
    result = compile_product(body, samples, CPU)(a, b)
    assert result.is_contiguous()
    assert result.shape == shape(body.result, max(samples))
    torch.testing.assert_close(as_full(body.result, result), as_full(left, a) @ as_full(right, b), rtol=1e-12, atol=1e-12)
    assert body.work(task(body, a, b, result)).flops == 2 * counted(left, right) * max(samples)


def counted(left, right) -> int:
    """The number of multiplications whose two factors may both be nonzero."""
    masks = [as_full(form, torch.ones(shape(form, 1)))[0].numpy() != 0 for form in (left, right)]
    return int((masks[0].sum(0) * masks[1].sum(1)).sum())


@pytest.mark.parametrize("samples", [(1, 1), (1, 3), (3, 3)])
def test_a_sparse_product_can_be_written_as_a_full_matrix(samples):
    a, b = random(FIRST, samples[0]), random(POOL, samples[1])
    body = JacobianProduct(FIRST, POOL, full=True)
    result = compile_product(body, samples, CPU)(a, b)
    assert result.shape == shape(Full(60, 18), max(samples))
    torch.testing.assert_close(as_full(body.result, result), as_full(FIRST, a) @ as_full(POOL, b))


def test_the_pattern_of_a_product_is_the_union_of_its_terms():
    pattern = ProductPattern(FIRST, POOL).pattern()
    expected = as_full(FIRST, torch.ones(FIRST.nnz, 1))[0] @ as_full(POOL, torch.ones(POOL.nnz, 1))[0]
    assert torch.equal(dense(pattern, torch.ones(pattern.nnz, 1))[0] != 0, expected != 0)
    assert all((np.diff(pattern.indices[a:b]) > 0).all() for a, b in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True))


def test_keys_are_short_and_distinguish_recipes():
    deep = RELU
    for _ in range(8):
        deep = ProductPattern(deep, RELU)
    assert len(deep.key) < 40
    assert deep.key != ProductPattern(RELU, RELU).key


def test_factors_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="cannot be multiplied by 18x7"):
        ProductPattern(FIRST, NEXT)
    with pytest.raises(ValueError, match="is not pruned, so its Jacobian is a full matrix"):
        JacobianProduct(LinearRule(4, 3), Gradient(3))
    body = JacobianProduct(FIRST, Gradient(90))
    with pytest.raises(ValueError, match=r"operand v1 is \(90, 2, 1\)"):
        body.work(task(body, random(FIRST, 1), torch.ones(90, 2, 1), torch.ones(60, 2)))
    with pytest.raises(ValueError, match="factors of 3 and 2 samples"):
        body.work(task(body, random(FIRST, 3), torch.ones(90, 2), torch.ones(60, 3)))


def test_the_store_evicts_the_least_recently_used_pattern():
    store, computed = Store(most_bytes=3 * RELU.pattern().bytes), []

    def get(name):
        return store.get(name, lambda: computed.append(name) or RELU.pattern())

    for name in "abcadb":
        get(name)
    assert computed == ["a", "b", "c", "d", "b"]
    assert store.bytes == store.most_bytes
