"""Sums of products of gathered rows: what every sparse product comes down to.

    out[k] = sum of left[i[t]] * right[j[t]] over the terms t from indptr[k] to indptr[k + 1]

with left [n, V] and right [m, W], V = W or one of them 1. Where all samples share one side, `torch.embedding_bag` does it in one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executors.kernels.csr.indices import on_device

#: Elements of a scratch tensor: on a CPU what stays in the second-level cache with its twin; on a GPU what is worth a launch.
_SCRATCH = {"cpu": 2**17, "cuda": 2**26}


def weighted(weights: Tensor, rows: Tensor, index: Tensor, indptr: Tensor) -> Tensor:
    """Sums [len(indptr) − 1, W] of weights[t] · rows[index[t]]; weights [terms], rows [n, W]."""
    return torch.embedding_bag(rows, index, indptr, False, 0, False, weights, True)[0]


@dataclass(frozen=True, slots=True)
class Side:
    """How the rows of one factor are gathered: by an index, or with None in their order, one per term."""

    index: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        """One row per term."""
        return rows if self.index is None else rows.index_select(0, self.index)


def sum_products(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: tuple[int, int], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of left [n, V] and right [m, W] that gives the sums [len(indptr) − 1, max(V, W)]; `samples` are V and W."""
    terms = int(indptr[-1])
    sides = [Side(None if index is None else on_device(index, device)) for index in (left, right)]
    single = terms == len(indptr) - 1
    if single and samples[0] == samples[1]:
        return _one_by_one(*sides)
    if min(samples) > 1:
        return _by_sample(indptr, left, right, max(samples), device)
    ends = on_device(indptr, device)
    factor, summed = sides if samples[0] == 1 else reversed(sides)
    index = summed.index if summed.index is not None else torch.arange(terms, dtype=torch.int32, device=device)
    if samples[0] == 1:
        return lambda a, b: weighted(factor(a.reshape(-1)), b, index, ends)
    return lambda a, b: weighted(factor(b.reshape(-1)), a, index, ends)


def _one_by_one(left: Side, right: Side) -> Callable[[Tensor, Tensor], Tensor]:
    """Every sum is of one product, and both factors hold as many samples. Of one sample as vectors, whose gather is five times as fast."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] == 1:
            return (left(a.reshape(-1)) * right(b.reshape(-1))).unsqueeze(1)
        return left(a) * right(b)

    return multiply


def _by_sample(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """Both factors differ from sample to sample: gather and multiply as many terms as the scratch holds, sum them, and go on."""
    limit = max(1, _SCRATCH.get(device.type, _SCRATCH["cuda"]) // samples)
    spans = []
    for begin, end in _spans(indptr, limit):
        first, last = int(indptr[begin]), int(indptr[end])
        indices = [slice(first, last) if index is None else on_device(index, device)[first:last] for index in (left, right)]
        ends = torch.from_numpy(indptr[begin : end + 1] - indptr[begin]).to(device)
        spans.append((begin, end, last - first, *indices, ends))
    most = max((span[2] for span in spans), default=0)
    every = torch.arange(most, dtype=torch.int32, device=device)
    entries = len(indptr) - 1

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty(entries, samples)
        scratch, other = a.new_empty(most, samples), a.new_empty(most, samples)
        for begin, end, count, i, j, ends in spans:
            product = scratch[:count]
            factor = a[i] if isinstance(i, slice) else torch.index_select(a, 0, i, out=product)
            second = b[j] if isinstance(j, slice) else torch.index_select(b, 0, j, out=other[:count])
            torch.mul(factor, second, out=product)
            out[begin:end] = torch.embedding_bag(product, every[:count], ends, False, 0, False, None, True)[0]
        return out

    return multiply


def _spans(indptr: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Ranges of entries with at most `limit` terms each, but at least one entry."""
    found, begin, entries = [], 0, len(indptr) - 1
    while begin < entries:
        end = int(np.searchsorted(indptr, indptr[begin] + limit, "right")) - 1
        end = min(max(end, begin + 1), entries)
        found.append((begin, end))
        begin = end
    return found
