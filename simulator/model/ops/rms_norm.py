"""RMS norm as one op in forward and one in backward: `aten._fused_rms_norm`, which PyTorch has kernels of for CUDA alone.

On a CPU, PyTorch decomposes F.rms_norm into small ops before autograd. A step is captured on CPU tensors, whatever device will run it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

FORWARD, BACKWARD = torch.ops.aten._fused_rms_norm.default, torch.ops.aten._fused_rms_norm_backward.default
#: The kernels for CPU tensors, once in each block that is open. PyTorch's table of kernels is one for the whole process.
_open: list[torch.library.Library] = []
_lock = threading.Lock()


@contextmanager
def as_one_op() -> Iterator[None]:
    """Within the block F.rms_norm of CPU tensors is dispatched as of CUDA tensors, also where autocast casts them before.

    As on CUDA, input and weight of different types are decomposed. Several threads may be in such blocks.
    """
    with _lock:
        _open.append(_open[0] if _open else _kernels())
    try:
        yield
    finally:
        with _lock:
            library = _open.pop()
            if not _open:
                library._destroy()


def _kernels() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", FORWARD.decompose, "CPU")
    library.impl("_fused_rms_norm_backward", backward, "CPU")
    return library


def backward(
    grad: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and weight that `mask` asks for, as the op for CUDA returns them.

    `rstd`: 1 over the root mean square of each row of x, with `shape` replaced by ones.
    """
    own = tuple(range(-len(shape), 0))
    wide = rstd.dtype
    normalized = x.to(wide) * rstd
    at_x = at_weight = None
    if mask[0]:
        scaled = grad.to(wide) if weight is None else grad.to(wide) * weight.to(wide)
        at_x = (rstd * (scaled - normalized * (scaled * normalized).mean(own, keepdim=True))).to(x.dtype)
    if mask[1] and weight is not None:
        at_weight = (grad.to(wide) * normalized).sum_to_size(weight.shape).to(weight.dtype)
    return at_x, at_weight


def shapes(x: Tensor, shape: list[int], weight: Tensor | None, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """The results of the forward op: the normalized input, and 1 over the root mean square of each row, in float32 at least."""
    rows = x.shape[: x.dim() - len(shape)]
    return x.new_empty(x.shape), x.new_empty((*rows, *(1 for _ in shape)), dtype=wide_type(x))


def wide_type(x: Tensor) -> torch.dtype:
    """The type of statistics of x: float32 at least."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def backward_shapes(
    grad: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The results of the backward op."""
    return x.new_empty(x.shape) if mask[0] else None, weight.new_empty(weight.shape) if mask[1] and weight is not None else None
