"""Operands in another shape, with the strides that PyTorch gives them."""

from simulator.plan.task import Operand
from simulator.plan.views import viewed


def shaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """With other dimensions: all in one order, as `Tensor.view` allows it. Raises ValueError where it does not."""
    if shape == operand.shape:
        return operand
    strides = _strides_as(operand.shape, operand.strides, shape)
    return viewed(operand, shape, strides, "aten.view.default", list(shape))


def _strides_as(old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    return torch.empty_strided(old, strides, device="meta").view(new).stride()
