"""The op `schedcast::expect`: a check, in every step, that a branch of the model goes the way that the plan was made for."""

import torch
from torch import Tensor

from traces.errors import SchedcastError


class OtherBranchError(SchedcastError):
    """A number on which the course of the step depends is not the one that the plan was made for."""


def _expect(value: Tensor, expected: float) -> Tensor:
    """Raise OtherBranchError unless `value`, a tensor with one element, is `expected`. Returns whether it is."""
    same = _same(value, expected)
    if not bool(same):
        raise OtherBranchError(
            f"the model decides by a number of its batch what to compute: it is {float(value):g} now, and was {expected:g} in the batch"
            " that the plan was made for; expected batches, and micro-batches, that take the same branches"
        )
    return same


def _same(value: Tensor, expected: float) -> Tensor:
    """Whether two numbers are equal; floats up to the order in which they were summed."""
    return torch.isclose(value, torch.full_like(value, expected), rtol=1e-3) if value.is_floating_point() else value == expected


def _expect_on_gpu(value: Tensor, expected: float) -> Tensor:
    """Check without making the host wait."""
    same = _same(value, expected)
    torch._assert_async(same, "the model decides by a number of its batch what to compute, and this batch takes another branch")
    return same


torch.library.define("schedcast::expect", "(Tensor value, float expected) -> Tensor")
torch.library.impl("schedcast::expect", "CPU")(_expect)
torch.library.impl("schedcast::expect", "CUDA")(_expect_on_gpu)
torch.library.register_fake("schedcast::expect")(lambda value, expected: value.new_empty(value.shape, dtype=torch.bool))
