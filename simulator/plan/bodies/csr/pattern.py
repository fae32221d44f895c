"""Static sparsity patterns, and the patterns of combined matrices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


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
    source = outer.source[of_outer] * np.int32(span) + inner.source[of_inner]
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
