"""Sums of products of gathered rows, to which every sparse product reduces:

    out[k] = sum of left[i[t]] * right[j[t]] over the terms t from indptr[k] to indptr[k + 1]

with left [n, V] and right [m, W], where V = W or one of them is 1. If one factor is shared by all samples, `torch.embedding_bag` computes
the sums in one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executors.kernels.csr.indices import on_device

#: Elements of a scratch tensor. On a CPU two of them fit into the second-level cache; on a GPU one is large enough to be worth a launch.
_SCRATCH = {"cpu": 2**17, "cuda": 2**26}


def weighted_sums(weights: Tensor, rows: Tensor, index: Tensor, indptr: Tensor) -> Tensor:
    """Sums of weights[t] · rows[index[t]], [len(indptr) − 1, W]. `weights`: [terms]. `rows`: [n, W]."""
    return torch.embedding_bag(rows, index, indptr, False, 0, False, weights, True)[0]


@dataclass(frozen=True, slots=True)
class Gather:
    """Gathers the rows of one factor, one row per term. `index`: [terms]; None if the rows are already in the order of the terms."""

    index: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns the rows [terms, V] of `rows` [n, V]."""
        return rows if self.index is None else rows.index_select(0, self.index)


def sum_products(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: tuple[int, int], device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from left [n, V] and right [m, W] to the sums [len(indptr) − 1, max(V, W)]. `samples`: (V, W)."""
    terms = int(indptr[-1])
    gathers = [Gather(None if index is None else on_device(index, device)) for index in (left, right)]
    single = terms == len(indptr) - 1
    if single and samples[0] == samples[1]:
        return _elementwise_products(*gathers)
    if min(samples) > 1:
        return _by_sample(indptr, left, right, max(samples), device)
    ends = on_device(indptr, device)
    factor, summed = gathers if samples[0] == 1 else reversed(gathers)
    index = summed.index if summed.index is not None else torch.arange(terms, dtype=torch.int32, device=device)
    if samples[0] == 1:
        return lambda a, b: weighted_sums(factor(a.reshape(-1)), b, index, ends)
    return lambda a, b: weighted_sums(factor(b.reshape(-1)), a, index, ends)


def _elementwise_products(left: Gather, right: Gather) -> Callable[[Tensor, Tensor], Tensor]:
    """The case in which every sum has one term and both factors have the same number of samples.

    A single sample is gathered from vectors, which is five times as fast as from [n, 1].
    """

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[1] == 1:
            return (left(a.reshape(-1)) * right(b.reshape(-1))).unsqueeze(1)
        return left(a) * right(b)

    return multiply


def _by_sample(
    indptr: np.ndarray, left: np.ndarray | None, right: np.ndarray | None, samples: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """The case in which both factors differ between samples: gathers, multiplies and sums as many terms at a time as the scratch holds."""
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
            out[begin:end] = torch.embedding_bag(product, positions[:count], ends, False, 0, False, None, True)[0]
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
