"""Products left · right of sparse Jacobians, for every pair of formats. Each function compiles one pair.

Shapes: sparse values [nnz, V], gradients [n, B], full matrices [rows, cols] or [B, rows, cols]; see `simulator.plan.bodies.csr`.

Every sparse product is a sum of products of gathered rows:

    out[k] = sum of left[i[t]] * right[j[t]] over the terms t from indptr[k] to indptr[k + 1]

with left [n, V] and right [m, W], where V = W or one of them is 1. If one factor is shared by all samples, `torch.embedding_bag` computes
the sums in one pass.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from simulator.plan.bodies.csr.patterns import Pattern, pointers
from simulator.plan.bodies.csr.product import ProductPattern, Recipe
from simulator.plan.bodies.scan import Full, Gradient, JacobianProduct

_cache: WeakValueDictionary[tuple[int, torch.device], Tensor] = WeakValueDictionary()


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """`array` as a tensor on `device`. All callers share one tensor, which is freed when no caller references it any more."""
    key = (id(array), device)
    tensor: Any = _cache.get(key)
    if tensor is None:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
        tensor.source_array = array  # keeps the array alive, so that no other array gets its id while the tensor is in use
        _cache[key] = tensor
    return tensor


#: Elements of a scratch tensor. On a CPU two of them fit into the second-level cache; on a GPU one is large enough to be worth a launch.
_SCRATCH = {"cpu": 2**17, "cuda": 2**26}
#: The mode of `torch.embedding_bag` that adds rows.
_SUM = 0


def weighted_sums(weights: Tensor, rows: Tensor, index: Tensor, indptr: Tensor) -> Tensor:
    """Sums of weights[t] · rows[index[t]], [len(indptr) − 1, W]. `weights`: [terms]. `rows`: [n, W]."""
    return torch.embedding_bag(rows, index, indptr, mode=_SUM, per_sample_weights=weights, include_last_offset=True)[0]


def _gathered(rows: Tensor, index: Tensor | None) -> Tensor:
    """The rows of one factor, one row per term. `index`: [terms]; None if the rows are already in the order of the terms."""
    return rows if index is None else rows.index_select(0, index)


def sum_products(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: tuple[int, int], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from left [n, V] and right [m, W] to the sums [len(indptr) − 1, max(V, W)]. `samples`: (V, W)."""
    terms = int(indptr[-1])
    i, j = (None if index is None else on_device(index, device) for index in (left, right))
    single = terms == len(indptr) - 1
    if single and samples[0] == samples[1]:
        return _elementwise_products(i, j)
    if min(samples) > 1:
        return _by_sample(indptr, left, right, max(samples), device)
    ends = on_device(indptr, device)
    factor, summed = (i, j) if samples[0] == 1 else (j, i)
    index = summed if summed is not None else torch.arange(terms, dtype=torch.int32, device=device)
    if samples[0] == 1:
        return lambda a, b: weighted_sums(_gathered(a.reshape(-1), factor), b, index, ends)
    return lambda a, b: weighted_sums(_gathered(b.reshape(-1), factor), a, index, ends)


def _elementwise_products(i: Tensor | None, j: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The case in which every sum has one term and both factors have the same number of samples.

    A single sample is gathered from vectors, which is five times as fast as from [n, 1].
    """

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] == 1:
            return (_gathered(a.reshape(-1), i) * _gathered(b.reshape(-1), j)).unsqueeze(1)
        return _gathered(a, i) * _gathered(b, j)

    return multiply


def _by_sample(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """The case in which both factors differ between samples: gathers, multiplies and sums as many terms at a time as fit the scratch."""
    limit = max(1, _SCRATCH.get(device.type, _SCRATCH["cuda"]) // samples)
    spans: list[tuple[int, int, int, slice | Tensor, slice | Tensor, Tensor]] = []
    for begin, end in _spans(indptr, limit):
        first, last = int(indptr[begin]), int(indptr[end])
        i, j = (slice(first, last) if index is None else on_device(index, device)[first:last] for index in (left, right))
        ends = torch.from_numpy(indptr[begin : end + 1] - indptr[begin]).to(device)
        spans.append((begin, end, last - first, i, j, ends))
    longest = max((span[2] for span in spans), default=0)
    positions = torch.arange(longest, dtype=torch.int32, device=device)
    entries = len(indptr) - 1

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty(entries, samples)
        scratch, other = a.new_empty(longest, samples), a.new_empty(longest, samples)
        for begin, end, count, i, j, ends in spans:
            product = scratch[:count]
            first = a[i] if isinstance(i, slice) else torch.index_select(a, 0, i, out=product)
            second = b[j] if isinstance(j, slice) else torch.index_select(b, 0, j, out=other[:count])
            torch.mul(first, second, out=product)
            out[begin:end] = torch.embedding_bag(product, positions[:count], ends, mode=_SUM, include_last_offset=True)[0]
        return out

    return multiply


def _spans(indptr: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Consecutive ranges of entries with at most `limit` terms each. A range has at least one entry, whatever its terms."""
    spans, begin, entries = [], 0, len(indptr) - 1
    while begin < entries:
        end = int(np.searchsorted(indptr, indptr[begin] + limit, "right")) - 1
        end = min(max(end, begin + 1), entries)
        spans.append((begin, end))
        begin = end
    return spans


def to_full(pattern: Pattern, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from values [nnz, V] to the full matrix: [rows, cols] if V = 1, else [V, rows, cols]."""
    positions = torch.from_numpy(pattern.entry_rows * np.int64(pattern.cols) + pattern.indices).to(device)
    elements, extents = pattern.rows * pattern.cols, (pattern.rows, pattern.cols)

    def full(values: Tensor) -> Tensor:
        samples = values.shape[1]
        matrix = values.new_zeros(samples, elements).index_copy_(1, positions, values.t())
        return matrix.view(samples, *extents) if samples > 1 else matrix.view(extents)

    return full


Multiply = Callable[[Tensor, Tensor], Tensor]


def compile_product(body: JacobianProduct, samples: tuple[int, int], device: torch.device) -> Multiply:
    """A function that multiplies the left and the right tensor. `samples`: the number of samples in each of them."""
    left, right = body.left, body.right
    if isinstance(left, Full):
        if isinstance(right, Gradient):
            return _full_gradient
        return torch.matmul if isinstance(right, Full) else _full_sparse(right.pattern(), samples, device)
    if isinstance(right, Gradient):
        pattern = left.pattern()
        return sum_products(pattern.indptr, None, None if pattern.diagonal else pattern.indices, samples, device)
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


def _full_gradient(matrix: Tensor, gradient: Tensor) -> Tensor:
    if matrix.dim() == 2:
        return matrix @ gradient
    return (matrix @ gradient.t().unsqueeze(2)).squeeze(2).t().contiguous()


def _sparse_full(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> Multiply:
    if pattern.diagonal:
        return lambda values, matrix: _scaled(matrix, _per_row(values, samples[0]))
    indptr, index = _stacked(pattern, samples, device)

    def multiply(values: Tensor, matrix: Tensor) -> Tensor:
        width = matrix.shape[-1]
        out = weighted_sums(_stacked_values(values, samples), matrix.reshape(-1, width), index, indptr)
        return _unstack(out, pattern.rows, width, samples)

    return multiply


def _full_sparse(pattern: Pattern, samples: tuple[int, int], device: torch.device) -> Multiply:
    """Multiplies the transposes: (A B)^T = B^T A^T."""
    if pattern.diagonal:
        return lambda matrix, values: _scaled(matrix, _per_row(values, samples[1]).transpose(-1, -2))
    transposed, order = _transpose(pattern)
    positions, swapped = on_device(order, device), (samples[1], samples[0])
    indptr, index = _stacked(transposed, swapped, device)

    def multiply(matrix: Tensor, values: Tensor) -> Tensor:
        height = matrix.shape[-2]
        weights = _stacked_values(values.index_select(0, positions), swapped)
        rows = matrix.transpose(-1, -2).reshape(-1, height)
        sums = weighted_sums(weights, rows.contiguous(), index, indptr)
        return _unstack(sums, transposed.rows, height, samples).transpose(-1, -2).contiguous()

    return multiply


def _scaled(matrix: Tensor, factors: Tensor) -> Tensor:
    """The matrix times factors of its rows or columns, row-major as plans have it: `*` keeps the order of a transposed weight."""
    return torch.mul(matrix, factors, out=matrix.new_empty(torch.broadcast_shapes(matrix.shape, factors.shape)))


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
