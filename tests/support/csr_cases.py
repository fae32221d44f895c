"""Small ops with the rules of their transposed Jacobians, for tests."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from executors.kernels.jacobians import COMPILE
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.patterns import Pattern
from simulator.plan.bodies.csr.rules import (
    AdaptiveAveragePoolRule,
    AveragePoolRule,
    ConvolutionRule,
    ElementwiseRule,
    LinearRule,
    MaxPoolRule,
    Rule,
)

CPU = torch.device("cpu")
#: kernel, stride, padding, dilation, groups of a convolution from 4 to 6 channels of 7x9, and a mask.
CONVOLUTIONS = [
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, None),
    ((1, 1), (1, 1), (0, 0), (1, 1), 1, None),
    ((2, 5), (1, 3), (1, 2), (1, 1), 2, None),
    ((3, 2), (2, 1), (0, 3), (2, 3), 2, None),
    ((3, 3), (3, 2), (4, 1), (1, 2), 1, None),
    ((7, 9), (1, 1), (0, 0), (1, 1), 1, None),
    ((3, 3), (1, 1), (1, 1), (1, 1), 1, Mask(0.2, 3)),
    ((3, 2), (2, 1), (0, 3), (2, 3), 2, Mask(0.4)),
]
#: kernel, stride, padding, dilation, ceil_mode of pooling over 3 channels of 7x9.
POOLS = [
    ((2, 2), (2, 2), (0, 0), (1, 1), False), ((3, 3), (2, 2), (1, 1), (1, 1), False), ((2, 3), (1, 2), (1, 0), (1, 1), True),
    ((2, 2), (2, 3), (1, 1), (3, 2), False),
]  # fmt: skip


@dataclass
class Case:
    """An op, its input [B, ...], the tensors that its rule reads, and the rule."""

    op: Callable[[Tensor], Tensor]
    x: Tensor
    reads: tuple[Tensor, ...]
    rule: Rule

    @property
    def values(self) -> Tensor:
        """The values [nnz, V] that the kernels compute."""
        return COMPILE[self.rule.of](self.rule, torch.float64, CPU)(*self.reads)

    def expected(self) -> Tensor:
        """The transposed Jacobian [B, rows, cols] by autograd, sample by sample."""
        found = []
        for sample in range(len(self.x)):
            rest = self.x.clone()

            def one(x: Tensor, s: int = sample, rest: Tensor = rest) -> Tensor:
                return self.op(torch.cat((rest[:s], x, rest[s + 1 :])))[s]

            jacobian = torch.autograd.functional.jacobian(one, self.x[sample : sample + 1])
            found.append(jacobian.reshape(self.rule.cols, self.rule.rows).t())
        return torch.stack(found)


def dense(pattern: Pattern, values: Tensor) -> Tensor:
    """CSR values as full matrices [V, rows, cols]."""
    full = values.new_zeros(values.shape[1], pattern.rows, pattern.cols)
    full[:, torch.from_numpy(pattern.entry_rows).long(), torch.from_numpy(pattern.indices).long()] = values.t()
    return full


def convolution(kernel, stride, padding, dilation, groups, mask, x=None) -> Case:
    """A layer with random weights, set to zero outside the mask."""
    x = torch.randn(2, 4, 7, 9, dtype=torch.float64) if x is None else x
    weight = torch.randn(6, 4 // groups, *kernel, dtype=torch.float64)
    if mask is not None:
        kept = torch.zeros(weight.numel(), dtype=torch.float64)
        kept[torch.from_numpy(mask.kept(tuple(weight.shape)))] = 1
        weight *= kept.view_as(weight)
    rule = ConvolutionRule(4, 7, 9, 6, kernel, stride, padding, dilation, groups, mask)
    return Case(lambda x: F.conv2d(x, weight, None, stride, padding, dilation, groups), x, (weight,), rule)


def max_pool(kernel, stride, padding, dilation, ceil) -> Case:
    """Of distinct random numbers."""
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    out, argmax = F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)
    rule = MaxPoolRule(3, 7, 9, tuple(out.shape[2:]), kernel, stride, padding, dilation)
    return Case(lambda x: F.max_pool2d(x, kernel, stride, padding, dilation, ceil), x, (argmax,), rule)


def average_pool(kernel, stride, padding, _dilation, ceil, count_padding=True, divisor=None) -> Case:
    """With a choice of what to divide by."""
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64)

    def op(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, kernel, stride, padding, ceil, count_padding, divisor)

    return Case(op, x, (), AveragePoolRule(3, 7, 9, tuple(op(x).shape[2:]), kernel, stride, padding, count_padding, divisor))


def adaptive(out) -> Case:
    """To any output size."""
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    return Case(lambda x: F.adaptive_avg_pool2d(x, out), x, (), AdaptiveAveragePoolRule(3, 7, 9, out))


def linear(mask=None) -> Case:
    """From 11 to 5."""
    x = torch.randn(2, 11, dtype=torch.float64)
    weight = torch.randn(5, 11, dtype=torch.float64)
    if mask is not None:
        gone = np.setdiff1d(np.arange(weight.numel()), mask.kept((5, 11)))
        weight.view(-1)[torch.from_numpy(gone)] = 0
    return Case(lambda x: F.linear(x, weight), x, (weight,), LinearRule(11, 5, mask))


def relu(shape=(3, 7, 9), batch=2) -> Case:
    """A ReLU."""
    x = torch.randn(batch, *shape, dtype=torch.float64)
    rule = ElementwiseRule(x[0].numel(), "aten.threshold_backward.default", '[{"$":0},0]')
    return Case(torch.relu, x, (torch.relu(x),), rule)
