"""The cross-entropy as one op in forward and one in backward, as fused kernels compute it: `schedcast::cross_entropy`.

F.cross_entropy makes the logarithm of the softmax, which is as large as the logits and often wider, and then picks one element of each
row. Fused kernels (FlashAttention's CrossEntropyLoss, Megatron-LM's, Liger's) save one number per row instead, and read the logits again in
backward. The loss of a row is the logarithm of the sum of its exponentials, less the logit of its label.
"""

import torch
from torch import Tensor

from simulator.model.ops.rms_norm import wide_type

#: Elements of the logits that are computed in a wide type at one time, so that no copy of all of them is made.
_AT_ONCE = 2**24


def _row_parts(logits: Tensor) -> list[slice]:
    step = max(1, _AT_ONCE // max(1, logits.shape[1]))
    return [slice(first, first + step) for first in range(0, logits.shape[0], step)]


def _own(labels: Tensor, classes: int) -> Tensor:
    return (labels >= 0) & (labels < classes)


def _forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [R, V] and labels [R], the logit of each label, 0 for a label that is no class, and each row's logarithm of the sum."""
    picked, sums = _shapes(logits, labels)
    for rows in _row_parts(logits):
        wide = logits[rows].to(sums.dtype)
        torch.logsumexp(wide, 1, out=sums[rows])
        own = _own(labels[rows], logits.shape[1])
        picked[rows] = wide.gather(1, (labels[rows] * own)[:, None])[:, 0] * own
    return picked, sums


def _backward(of_picked: Tensor, of_sums: Tensor, logits: Tensor, labels: Tensor, sums: Tensor) -> Tensor:
    """The gradient of the logits [R, V], by those of both results [R]."""
    grad = torch.empty_like(logits)
    for rows in _row_parts(logits):
        own = _own(labels[rows], logits.shape[1])
        wide = (logits[rows].to(sums.dtype) - sums[rows, None]).exp_().mul_(of_sums[rows, None])
        wide.scatter_add_(1, (labels[rows] * own)[:, None], (of_picked[rows] * own)[:, None])
        grad[rows] = wide
    return grad


def _shapes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    rows, wide = logits.shape[:1], wide_type(logits)
    return logits.new_empty(rows, dtype=wide), logits.new_empty(rows, dtype=wide)


def _keep(ctx, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _gradient(ctx, of_picked: Tensor, of_sums: Tensor) -> tuple[Tensor, None]:
    return torch.ops.schedcast.cross_entropy_backward(of_picked, of_sums, *ctx.saved_tensors), None


for _name, _schema, _kernel, _fake in (
    ("cross_entropy", "(Tensor logits, Tensor labels) -> (Tensor, Tensor)", _forward, _shapes),
    (
        "cross_entropy_backward",
        "(Tensor of_picked, Tensor of_sums, Tensor logits, Tensor labels, Tensor sums) -> Tensor",
        _backward,
        lambda of_picked, of_sums, logits, *_: torch.empty_like(logits),
    ),
):
    torch.library.define(f"schedcast::{_name}", _schema)
    torch.library.impl(f"schedcast::{_name}", "CompositeExplicitAutograd")(_kernel)
    torch.library.register_fake(f"schedcast::{_name}")(_fake)
torch.library.register_autograd("schedcast::cross_entropy", _gradient, setup_context=_keep)


def fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of logits [R, V] over labels [R], each of which is a class; in float32 at least."""
    picked, sums = torch.ops.schedcast.cross_entropy(logits, labels)
    return (sums - picked).sum() / labels.numel()
