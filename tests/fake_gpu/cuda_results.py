"""Runs an op on the CPU with the result types and strides that CUDA's kernels have where they differ from the CPU's."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_HALF = (torch.bfloat16, torch.float16)
#: The positions of a norm's statistics among the results of its forward op, and among the arguments of its backward op.
_STATISTICS = {
    "native_batch_norm": (1, 2), "native_batch_norm_backward": (5, 6), "native_layer_norm": (1, 2),
    "native_layer_norm_backward": (3, 4),
}  # fmt: skip


@cache
def as_on_cuda(func: OpOverload) -> Callable[..., Any]:
    """A function that runs `func` on CPU tensors and returns what its CUDA kernel would return."""
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in ("native_batch_norm", "native_layer_norm"):
        return lambda *args, **kwargs: _with_float_statistics(func(*args, **kwargs), _STATISTICS[name])
    if name in ("native_batch_norm_backward", "native_layer_norm_backward"):
        return lambda *args, **kwargs: func(*_cpu_statistics(args, _STATISTICS[name]), **kwargs)
    if name == "convolution_backward":
        return lambda *args, **kwargs: _in_format_of(func(*args, **kwargs), args[1:3])
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return lambda *args, **kwargs: _with_rows(*func(*args, **kwargs))
    return func


def _with_float_statistics(results: tuple, positions: Sequence[int]) -> tuple:
    """Statistics of a half-precision input are float32 on CUDA. On the CPU they have the type of the weights."""
    return tuple(result.float() if i in positions and result.dtype in _HALF else result for i, result in enumerate(results))


def _cpu_statistics(args: tuple, positions: Sequence[int]) -> list:
    """The arguments of a norm's backward op for the CPU's kernel. CUDA's kernel refuses half-precision statistics."""
    weight = next((arg for arg in (args[2], args[5]) if isinstance(arg, Tensor) and arg.is_floating_point() and arg.dim() == 1), None)
    cpu_type = torch.float32 if weight is not None and weight.dtype is torch.float32 else args[1].dtype
    converted = list(args)
    for position in positions:
        if isinstance(args[position], Tensor) and args[1].dtype in _HALF:
            if args[position].dtype is not torch.float32:
                raise RuntimeError(f"expected scalar type Float but found {args[position].dtype}")
            converted[position] = args[position].to(cpu_type)
    return converted


def _with_rows(out: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor]:
    """Fused kernels return a contiguous logsumexp. That of the CPU's kernel is transposed."""
    return out, logsumexp.contiguous()


def _in_format_of(results: tuple, operands: tuple[Tensor, Tensor]) -> tuple:
    """cuDNN returns the gradients of a convolution's input and weight channels-last if one of the two operands is."""
    if not any(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in operands):
        return results
    gradients = (None if r is None else r.contiguous(memory_format=torch.channels_last) for r in results[:2])
    return (*gradients, *results[2:])
