"""Matrix products of experts, and products that are added to a sum.

Products of groups of rows, each with its own matrix, are `aten._grouped_mm`, which takes no float64. Shapes: R rows sorted by group, G
groups, [R, K] x [G, K, N] -> [R, N]; of gradients of matrices, [K, R] x [R, N] -> [G, K, N].

`schedcast::add_mm` adds [M, K] x [K, N] to a sum [M, N], whose type may be float32 where the product is of 16 bits. Megatron-LM sums the
gradients of weights this way, by a custom kernel (`--gradient-accumulation-fusion`).
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows [R, K] times the matrices [G, K, N] of their groups, which end before the rows `ends` [G], of type int32.

    float64 is multiplied group by group, which waits for the ends; on fake tensors it is one op, as the plan has it.
    """
    if rows.dtype == torch.float64 and not isinstance(rows, FakeTensor):
        return by_group(rows, matrices, ends)
    return functional.grouped_mm(rows, matrices, offs=ends)


def by_group(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """The result of `aten._grouped_mm`, of two dimensions on the left and two or three on the right, by a product for each group."""
    last = [int(end) for end in ends]
    groups = list(zip([0, *last[:-1]], last, strict=True))
    if right.dim() == 3:
        return torch.cat([left[first:end] @ matrix for (first, end), matrix in zip(groups, right, strict=True)])
    return torch.stack([left[:, first:end] @ right[first:end] for first, end in groups])


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left` x `right` to `total`. On a GPU, cuBLAS adds a product of 16 bits to a sum in float32 before it is rounded."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda and total.dtype == torch.float32 and total.is_contiguous():
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.add_(left @ right)


torch.library.define("schedcast::add_mm", "(Tensor(a!) total, Tensor left, Tensor right) -> ()")
torch.library.impl("schedcast::add_mm", "CompositeExplicitAutograd")(add_product)
torch.library.register_fake("schedcast::add_mm")(lambda total, left, right: None)
