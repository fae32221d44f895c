"""Static sparsity patterns, and the patterns of combined matrices."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.plan.bodies.csr.mask import Mask


@dataclass(frozen=True, eq=False)
class Pattern:
    """Entries of a [rows, cols] matrix that may differ from zero, sorted by row and by column within a row (CSR, int32).

    `source`: per entry, where its value comes from, in the numbering of the rule that made the pattern; None if entry k has value k.
    """

    rows: int
    cols: int
    indptr: np.ndarray
    indices: np.ndarray
    source: np.ndarray | None = None

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return len(self.indices)

    @property
    def sparsity(self) -> float:
        """Share of the matrix that is always zero."""
        return 1.0 - self.nnz / (self.rows * self.cols)

    @property
    def sources(self) -> np.ndarray:
        """`source`, or the number of every entry."""
        return np.arange(self.nnz, dtype=np.int32) if self.source is None else self.source

    @property
    def bytes(self) -> int:
        """Bytes of the index arrays."""
        return self.indptr.nbytes + self.indices.nbytes + (0 if self.source is None else self.source.nbytes)

    @property
    def row_lengths(self) -> np.ndarray:
        """Entries of every row."""
        return np.diff(self.indptr)

    @property
    def entry_rows(self) -> np.ndarray:
        """The row of every entry, int32."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), self.row_lengths)

    @cached_property
    def diagonal(self) -> bool:
        """Whether the entries are exactly the diagonal of a square matrix."""
        if not self.rows == self.cols == self.nnz:
            return False
        return bool((self.indices == np.arange(self.nnz)).all() and (self.row_lengths == 1).all())


def identity(extent: int) -> Pattern:
    """The diagonal of a square matrix."""
    indptr = np.arange(extent + 1, dtype=np.int32)
    return Pattern(extent, extent, indptr, indptr[:-1], np.zeros(extent, np.int32))


def blocks(groups: int, rows: int, cols: int) -> Pattern:
    """`groups` full blocks [rows, cols] along the diagonal. Source: the flat position in a weight [groups · cols, rows]."""
    indptr = np.arange(groups * rows + 1, dtype=np.int32) * np.int32(cols)
    first = np.repeat(np.arange(groups, dtype=np.int32) * np.int32(cols), rows)
    indices = first[:, None] + np.arange(cols, dtype=np.int32)
    source = indices * np.int32(rows) + np.tile(np.arange(rows, dtype=np.int32), groups)[:, None]
    return Pattern(groups * rows, groups * cols, indptr, indices.reshape(-1), source.reshape(-1))


def kron(outer: Pattern, inner: Pattern, span: int) -> Pattern:
    """The Kronecker product. Source: outer source · `span` + inner source."""
    lengths = (outer.row_lengths[:, None].astype(np.int64) * inner.row_lengths).reshape(-1)
    row_outer, row_inner = np.divmod(np.arange(len(lengths)), inner.rows)
    # Per entry of the product: its position within its row, and from that the entries of both factors.
    indptr = pointers(lengths)
    within = np.arange(indptr[-1], dtype=np.int32) - np.repeat(indptr[:-1], lengths)
    width = np.repeat(inner.row_lengths[row_inner], lengths)
    of_outer, of_inner = np.divmod(within, width)
    of_outer += np.repeat(outer.indptr[row_outer], lengths)
    of_inner += np.repeat(inner.indptr[row_inner], lengths)
    indices = outer.indices[of_outer] * np.int32(inner.cols) + inner.indices[of_inner]
    source = outer.sources[of_outer] * np.int32(span) + inner.sources[of_inner]
    return Pattern(outer.rows * inner.rows, outer.cols * inner.cols, indptr, indices, source)


def pointers(lengths: np.ndarray) -> np.ndarray:
    """Row pointers for rows of these lengths: 0 and the running sums, int32."""
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def from_entries(rows: int, cols: int, row: np.ndarray, col: np.ndarray, source: np.ndarray) -> Pattern:
    """The pattern of distinct entries (row[k], col[k]), given in any order."""
    order = np.argsort(row.astype(np.int64) * cols + col)
    indptr = pointers(np.bincount(row, minlength=rows))
    return Pattern(rows, cols, indptr, col[order].astype(np.int32), source[order].astype(np.int32))


# Patterns of ops that slide windows: the Kronecker product of the channels' pattern and of both axes' patterns.


def axis(extent: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Pattern:
    """[extent, out]: which places of an axis each window covers. Source: the place within the window. Padding has no entries."""
    window, place = np.divmod(np.arange(out * kernel), kernel)
    covered = window * stride - padding + place * dilation
    inside = (covered >= 0) & (covered < extent)
    return from_entries(extent, out, covered[inside], window[inside], place[inside])


def adaptive_axis(extent: int, out: int) -> Pattern:
    """[extent, out]: which places each of `out` bins averages, by PyTorch's definition of the bins. Source: 0."""
    bins = [np.arange(o * extent // out, -(-(o + 1) * extent // out)) for o in range(out)]
    window = np.repeat(np.arange(out), [len(b) for b in bins])
    covered = np.concatenate(bins)
    return from_entries(extent, out, covered, window, np.zeros_like(covered))


def convolution(channels: int, out_channels: int, groups: int, height: Pattern, width: Pattern, kernel: tuple[int, int]) -> Pattern:
    """Rows (channel, y, x) of the input, columns of the output. Source: the flat position in the weight."""
    across = blocks(groups, channels // groups, out_channels // groups)
    return kron(across, kron(height, width, kernel[1]), kernel[0] * kernel[1])


def masked_convolution(
    channels: int, out_channels: int, groups: int, height: Pattern, width: Pattern, kernel: tuple[int, int], mask: "Mask"
) -> Pattern:
    """The entries of `convolution` whose weight is retained. Built only from the retained weights, which are a small share."""
    plane = kron(height, width, kernel[1])
    order = np.argsort(plane.sources, kind="stable")  # entries of the plane by the weight that they multiply
    begin = np.searchsorted(plane.sources[order], np.arange(kernel[0] * kernel[1] + 1))
    kept = mask.kept((out_channels, channels // groups, *kernel))
    pair, place = np.divmod(kept, kernel[0] * kernel[1])
    out_channel, channel = np.divmod(pair, channels // groups)
    channel += out_channel // (out_channels // groups) * (channels // groups)
    lengths = begin[place + 1] - begin[place]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = order[np.repeat(begin[place], lengths) + within]
    row = np.repeat(channel * plane.rows, lengths) + plane.entry_rows[entry]
    col = np.repeat(out_channel * plane.cols, lengths) + plane.indices[entry]
    return from_entries(channels * plane.rows, out_channels * plane.cols, row, col, np.repeat(kept, lengths))


def pooling(channels: int, height: Pattern, width: Pattern, kernel: tuple[int, int]) -> Pattern:
    """Rows (channel, y, x) of the input, columns of the output. Source: the place within the window."""
    return kron(identity(channels), kron(height, width, kernel[1]), 0)


def linear(rows: int, cols: int, mask: "Mask") -> Pattern:
    """The transpose of a pruned weight [cols, rows]. Source: the flat position in the weight."""
    kept = mask.kept((cols, rows))
    col, row = np.divmod(kept, rows)
    return from_entries(rows, cols, row, col, kept)


# The symbolic part of a sparse product, which does not depend on the values and is computed once.


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of C = A B. Entry k of C sums A.values[left[t]] · B.values[right[t]], t from indptr[k] to indptr[k + 1] (int32)."""

    pattern: Pattern
    indptr: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @property
    def bytes(self) -> int:
        """Bytes of all index arrays."""
        return self.pattern.bytes + self.indptr.nbytes + self.left.nbytes + self.right.nbytes


def multiply(a: Pattern, b: Pattern) -> Terms:
    """The terms of A B."""
    if b.diagonal:
        indptr = np.arange(a.nnz + 1, dtype=np.int32)
        return Terms(Pattern(a.rows, b.cols, a.indptr, a.indices), indptr, indptr[:-1], a.indices)
    if a.diagonal:
        indptr = np.arange(b.nnz + 1, dtype=np.int32)
        return Terms(Pattern(a.rows, b.cols, b.indptr, b.indices), indptr, b.entry_rows, indptr[:-1])
    lengths = b.row_lengths[a.indices]
    begin = pointers(lengths)
    left = np.repeat(np.arange(a.nnz, dtype=np.int32), lengths)
    right = np.arange(begin[-1], dtype=np.int32) + np.repeat(b.indptr[a.indices] - begin[:-1], lengths)
    col = b.indices[right]
    row_begin = begin[a.indptr]
    order = _by_row_and_column(row_begin, col, a.rows, b.cols)
    col = col[order]
    row = np.repeat(np.arange(a.rows, dtype=np.int32), np.diff(row_begin))
    first = np.ones(len(col), bool)
    first[1:] = (col[1:] != col[:-1]) | (row[1:] != row[:-1])
    starts = np.flatnonzero(first).astype(np.int32)
    indptr = np.append(starts, np.int32(len(col)))
    pattern = Pattern(a.rows, b.cols, pointers(np.bincount(row[starts], minlength=a.rows)), col[starts])
    return Terms(pattern, indptr, left[order], right[order])


def _by_row_and_column(indptr: np.ndarray, col: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The order that sorts terms, already grouped by row, by column within each row. Two counting sorts, which are stable."""
    from scipy.sparse import csr_matrix

    numbered = csr_matrix((np.arange(len(col), dtype=np.int32), col, indptr), (rows, cols), copy=False)
    return numbered.tocsc().tocsr().data
