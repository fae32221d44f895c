"""Reshapes operands, with the strides that PyTorch gives them."""

from simulator.plan.task import Operand
from simulator.plan.views import viewed


def reshaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """`operand` viewed in `shape`. Raises RuntimeError if `Tensor.view` does not allow it without a copy."""
    if shape == operand.shape:
        return operand
    strides = _view_strides(operand.shape, operand.strides, shape)
    return viewed(operand, shape, strides, "aten.view.default", list(shape))


def _view_strides(old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    return torch.empty_strided(old, strides, device="meta").view(new).stride()
