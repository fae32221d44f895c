"""Every rule's transposed Jacobian equals autograd's, and its pattern has no entry that is always zero."""

import pytest
import torch
from torch.nn import functional as F

from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, LinearRule, MaxPoolRule
from tests.support import csr_cases as cases
from tests.support.csr_cases import CONVOLUTIONS, POOLS, Case, dense


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def check_values(case: Case) -> None:
    """The rule's values equal autograd's Jacobian."""
    rule, values = case.rule, case.values
    assert values.shape == (rule.nnz, 1 if rule.shared else len(case.x))
    torch.testing.assert_close(dense(rule.pattern(), values).expand(len(case.x), -1, -1), case.expected(), rtol=1e-12, atol=1e-12)


def check_pattern(case: Case, runs: int = 1) -> None:
    """The pattern is the union of the entries that differ from zero over `runs` random inputs."""
    nonzero = torch.zeros(case.rule.rows, case.rule.cols, dtype=torch.bool)
    for _ in range(runs):
        case.x.normal_()
        nonzero |= (case.expected() != 0).any(0)
    pattern = case.rule.pattern()
    assert torch.equal(dense(pattern, torch.ones(pattern.nnz, 1))[0] != 0, nonzero)


@pytest.mark.parametrize("geometry", CONVOLUTIONS)
def test_convolution(geometry):
    case = cases.convolution(*geometry)
    check_values(case)
    check_pattern(case)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("geometry", POOLS)
def test_max_pool_has_a_static_pattern_of_whole_windows(geometry):
    case = cases.max_pool(*geometry)
    check_values(case)
    check_pattern(case, runs=150)


@pytest.mark.parametrize(("count_padding", "divisor"), [(True, None), (False, None), (True, 5)])
@pytest.mark.parametrize("geometry", [pool for pool in POOLS if pool[3] == (1, 1)])
def test_average_pool(geometry, count_padding, divisor):
    case = cases.average_pool(*geometry, count_padding, divisor)
    check_values(case)
    check_pattern(case)


@pytest.mark.parametrize("out", [(1, 1), (3, 4), (7, 9), (10, 2)])
def test_adaptive_average_pool(out):
    case = cases.adaptive(out)
    check_values(case)
    check_pattern(case)


@pytest.mark.parametrize("mask", [Mask(0.3, 1), Mask(0.0), Mask(1.0)])
def test_pruned_linear(mask):
    case = cases.linear(mask)
    check_values(case)
    check_pattern(case)


def test_a_linear_layer_that_is_not_pruned_is_the_full_matrix():
    case = cases.linear()
    torch.testing.assert_close(case.values.expand(2, -1, -1), case.expected())


OPS = {
    "relu": (torch.relu, "aten.threshold_backward.default", '[{"$":0},0]', "out"),
    "relu6": (F.relu6, "aten.hardtanh_backward.default", '[{"$":0},0,6]', "in"),
    "tanh": (torch.tanh, "aten.tanh_backward.default", '[{"$":0}]', "out"),
    "sigmoid": (torch.sigmoid, "aten.sigmoid_backward.default", '[{"$":0}]', "out"),
    "leaky": (lambda x: F.leaky_relu(x, 0.2), "aten.leaky_relu_backward.default", '[{"$":0},0.2,false]', "in"),
    "gelu": (F.gelu, "aten.gelu_backward.default", '[{"$":0}]', "in"),
    "silu": (F.silu, "aten.silu_backward.default", '[{"$":0}]', "in"),
    "hardswish": (F.hardswish, "aten.hardswish_backward.default", '[{"$":0}]', "in"),
    "elu": (F.elu, "aten.elu_backward.default", '[1.0,1.0,1.0,false,{"$":0}]', "in"),
}


@pytest.mark.parametrize("name", OPS)
def test_element_wise(name):
    op, target, args, saved = OPS[name]
    x = 4 * torch.randn(3, 2, 5, dtype=torch.float64)
    check_values(Case(op, x, (op(x) if saved == "out" else x,), ElementwiseRule(10, target, args)))


def test_dropout():
    x, mask = torch.randn(3, 40, dtype=torch.float64), torch.rand(3, 40) < 0.75
    rule = ElementwiseRule(40, "aten.native_dropout_backward.default", '[{"$":0},4.0]')
    check_values(Case(lambda x: x * mask * 4.0, x, (mask,), rule))


def test_sparsities_and_sizes_of_the_first_layers_of_vgg11_as_published():
    first = ConvolutionRule(3, 32, 32, 64, (3, 3), padding=(1, 1))
    pattern, elements = first.pattern(), 64 * 32 * 32
    relu, pool = ElementwiseRule(elements, "aten.threshold_backward.default"), MaxPoolRule(64, 32, 32, (16, 16), (2, 2), (2, 2))
    assert [round(r.pattern().sparsity, 5) for r in (first, relu, pool)] == [0.99157, 0.99998, 0.99994]
    mebibyte = 2**20
    assert 4 * first.rows * first.cols / mebibyte == 768
    assert round(4 * pattern.nnz / mebibyte, 1) == 6.5
    assert round((4 * pattern.nnz + pattern.indices.nbytes + pattern.indptr.nbytes) / mebibyte, 2) == 12.96


def test_a_mask_keeps_exactly_its_share_and_is_reproducible():
    mask = Mask(0.03, seed=7)
    assert len(mask.kept((64, 3, 3, 3))) == round(0.03 * 1728)
    assert mask.kept((2, 5, 3)).tolist() == Mask(0.03, seed=7).kept((2, 5, 3)).tolist()
    assert Mask(0.1, 1).kept((5, 6)).tolist() == [0, 7, 19]
    assert LinearRule(30, 20, mask).nnz == 18


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvolutionRule(3, 8, 8, 4, (3, 3), groups=2), "cannot be split into 2 groups"),
        (lambda: ConvolutionRule(3, 2, 2, 4, (3, 3)), "does not fit into 2x2"),
        (lambda: ConvolutionRule(3, 8, 8, 4, (3, 3), stride=(0, 1)), "an extent of 0"),
        (lambda: ConvolutionRule(2**20, 8, 8, 2**20, (3, 3)), "expected at most 2147483647"),
        (lambda: ElementwiseRule(4, "aten.mm.default"), "is not an element-wise backward op"),
        (lambda: Mask(1.5), "keeps a share of 1.5"),
        (lambda: Mask(0.5, -1), "has seed -1"),
    ],
)
def test_impossible_rules_and_masks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
