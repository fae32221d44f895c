"""The product left · right for every pair of formats. Each function compiles one pair and returns a function of the two tensors.

Shapes: sparse values [nnz, V], gradients [n, B], full matrices [rows, cols] or [B, rows, cols]; see `simulator.plan.bodies.csr`.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from executors.kernels.csr.full import to_full
from executors.kernels.csr.indices import on_device
from executors.kernels.csr.sums import sum_products, weighted_sums
from simulator.plan.bodies.csr.pattern import Pattern, pointers
from simulator.plan.bodies.csr.product import ProductPattern, Recipe
from simulator.plan.bodies.jacobian_product import Full, Gradient, JacobianProduct

Multiply = Callable[[Tensor, Tensor], Tensor]


def compile_product(body: JacobianProduct, samples: tuple[int, int], device: torch.device) -> Multiply:
    """A function that multiplies the left and the right tensor. `samples`: the number of samples in each of them."""
    left, right = body.left, body.right
    if isinstance(left, Full):
        if isinstance(right, Gradient):
            return _full_gradient
        return torch.matmul if isinstance(right, Full) else _full_sparse(right.pattern(), samples, device)
    if isinstance(right, Gradient):
        return _sparse_gradient(left.pattern(), samples, device)
    if isinstance(right, Full):
        return _sparse_full(left.pattern(), samples, device)
    multiply = sparse_sparse(left, right, samples, device)
    if not body.full:
        return multiply
    full = to_full(ProductPattern(left, right).pattern(), device)
    return lambda a, b: full(multiply(a, b))


def sparse_sparse(left: Recipe, right: Recipe, samples: tuple[int, int], device: torch.device) -> Multiply:
    """Multiplies CSR values by CSR values. The result has the values of the product's pattern."""
    terms = ProductPattern(left, right).symbolic()
    factors = (terms.left, left.nnz), (terms.right, right.nnz)
    i, j = (None if _is_identity(index, extent) else index for index, extent in factors)
    return sum_products(terms.indptr, i, j, samples, device)


def _is_identity(index: np.ndarray, extent: int) -> bool:
    """Whether an index is 0, 1, ..., extent − 1."""
    return len(index) == extent and bool((index == np.arange(extent)).all())


def _sparse_gradient(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> Multiply:
    right = None if pattern.diagonal else pattern.indices
    return sum_products(pattern.indptr, None, right, samples, device)


def _full_gradient(matrix: Tensor, gradient: Tensor) -> Tensor:
    if matrix.dim() == 2:
        return matrix @ gradient
    return (matrix @ gradient.t().unsqueeze(2)).squeeze(2).t().contiguous()


def _sparse_full(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> Multiply:
    if pattern.diagonal:
        return lambda values, matrix: matrix * _per_row(values, samples[0])
    indptr, index = _stacked(pattern, samples, device)

    def multiply(values: Tensor, matrix: Tensor) -> Tensor:
        width = matrix.shape[-1]
        out = weighted_sums(_stacked_values(values, samples), matrix.reshape(-1, width), index, indptr)
        return _unstack(out, pattern.rows, width, samples)

    return multiply


def _full_sparse(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> Multiply:
    """Multiplies the transposes: (A B)^T = B^T A^T."""
    if pattern.diagonal:
        return lambda matrix, values: matrix * _per_row(values, samples[1]).transpose(-1, -2)
    transposed, order = _transpose(pattern)
    positions, swapped = on_device(order, device), (samples[1], samples[0])
    indptr, index = _stacked(transposed, swapped, device)

    def multiply(matrix: Tensor, values: Tensor) -> Tensor:
        height = matrix.shape[-2]
        weights = _stacked_values(values.index_select(0, positions), swapped)
        rows = matrix.transpose(-1, -2).reshape(-1, height)
        return (
            _unstack(weighted_sums(weights, rows.contiguous(), index, indptr), transposed.rows, height, samples)
            .transpose(-1, -2)
            .contiguous()
        )

    return multiply


def _transpose(pattern: Pattern) -> tuple[Pattern, np.ndarray]:
    """The transposed pattern, and for each of its entries the position of its value in the original pattern."""
    order = np.argsort(pattern.indices, kind="stable").astype(np.int32)
    indptr = pointers(np.bincount(pattern.indices, minlength=pattern.cols))
    return Pattern(pattern.cols, pattern.rows, indptr, pattern.entry_rows[order]), order


def _stacked(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row pointers and columns of the samples' sparse matrices, stacked vertically.

    The columns refer to the rows of the right factor: one matrix that all samples share, or the samples' matrices stacked vertically.
    """
    copies = max(samples)
    indptr = pointers(np.tile(pattern.row_lengths, copies))
    shift = np.arange(copies, dtype=np.int32)[:, None] * np.int32(pattern.cols if samples[1] > 1 else 0)
    index = (pattern.indices + shift).reshape(-1)
    return torch.from_numpy(indptr).to(device), torch.from_numpy(index).to(device)


def _stacked_values(values: Tensor, samples: tuple[int, int]) -> Tensor:
    """The values of all samples as one vector [copies · nnz], sample by sample."""
    return values.t().expand(max(samples), -1).reshape(-1)


def _unstack(out: Tensor, rows: int, width: int, samples: tuple[int, int]) -> Tensor:
    return out.view(-1, rows, width) if max(samples) > 1 else out


def _per_row(values: Tensor, samples: int) -> Tensor:
    """A diagonal's values as factors of rows: [n, 1], or [V, n, 1] for several samples."""
    return values.t().contiguous().unsqueeze(2) if samples > 1 else values
