"""Gives results the strides that the plan states.

A plan is captured with the CPU's kernels, and it is right only for their strides: where PyTorch asked whether a tensor is contiguous,
the answer is part of the plan. `native_group_norm` refuses other strides, `native_layer_norm_backward` and `as_strided` read other
elements, and `view` raises an error. On CUDA an op may return other strides: cuDNN prefers channels-last, and fused attention puts heads
beside features.
"""

from collections.abc import Sequence

import torch

from simulator.plan.task import Operand, Value


def fits(tensor: torch.Tensor, planned: Operand | Value) -> bool:
    """Whether a result can stand for the planned value as it is.

    Also True if the backend's result has another shape, such as the logsumexp of attention, which only the backend's own ops read, and for
    planned strides that name an element twice, which no copy can have.
    """
    if tuple(tensor.shape) != tuple(planned.shape):
        return True
    overlaps = any(stride == 0 and extent > 1 for stride, extent in zip(planned.strides, planned.shape, strict=True))
    return overlaps or same_strides(tensor, planned.strides)


def same_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides. Those of dimensions of size 1 do not matter."""
    return all(a == b or n == 1 for a, b, n in zip(tensor.stride(), strides, tensor.shape, strict=True))


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy of `tensor` with these strides."""
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
