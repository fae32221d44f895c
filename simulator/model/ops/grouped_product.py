"""Products of groups of rows, each with a matrix of its own: what experts compute. `aten._grouped_mm`, which takes no float64.

Shapes: R rows sorted by group, G groups, [R, K] x [G, K, N] -> [R, N]; of gradients of matrices, [K, R] x [R, N] -> [G, K, N].
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
