"""The symbolic part of a sparse product, which does not depend on the values and is computed once."""

from dataclasses import dataclass

import numpy as np

from simulator.plan.bodies.csr import pattern as patterns
from simulator.plan.bodies.csr.pattern import Pattern


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
    begin = patterns.pointers(lengths)
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
    pattern = Pattern(a.rows, b.cols, patterns.pointers(np.bincount(row[starts], minlength=a.rows)), col[starts])
    return Terms(pattern, indptr, left[order], right[order])


def _by_row_and_column(indptr: np.ndarray, col: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The order that sorts terms, already grouped by row, by column within each row. Two counting sorts, which are stable."""
    from scipy.sparse import csr_matrix

    numbered = csr_matrix((np.arange(len(col), dtype=np.int32), col, indptr), (rows, cols), copy=False)
    return numbered.tocsc().tocsr().data
