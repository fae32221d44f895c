"""The product of two Jacobians in CSR form. Its pattern and its terms are computed once, before the first step."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Discriminator

from simulator.plan.bodies.csr.rules import Rule
from simulator.plan.bodies.csr.sparse_rule import MOST_ENTRIES, store
from traces.errors import SchedcastError

if TYPE_CHECKING:
    from simulator.plan.bodies.csr.patterns import Pattern, Terms


@dataclass(frozen=True, slots=True)
class ProductPattern:
    """The pattern of left · right. Each factor is a rule or another product."""

    left: Annotated["Recipe", Discriminator("of")]
    right: Annotated["Recipe", Discriminator("of")]
    of: Literal["product"] = "product"

    def __post_init__(self):
        """Raise ValueError if the factors' extents differ."""
        if self.left.cols != self.right.rows:
            raise ValueError(f"{self.left.rows}x{self.left.cols} cannot be multiplied by {self.right.rows}x{self.right.cols}")

    @property
    def rows(self) -> int:
        """Rows of the left factor."""
        return self.left.rows

    @property
    def cols(self) -> int:
        """Columns of the right factor."""
        return self.right.cols

    @property
    def shared(self) -> bool:
        """Whether all samples have the same values."""
        return self.left.shared and self.right.shared

    @property
    def key(self) -> str:
        """A hash of both factors' keys, and the extents."""
        return f"{self.rows}x{self.cols}.{digest(self)}"

    @property
    def nnz(self) -> int:
        """Entries that may differ from zero."""
        return self.pattern().nnz

    @property
    def terms(self) -> int:
        """Scalar products of a left and a right entry, over all entries.

        Computed from the factors' patterns, or from the other factor's size if one factor is a diagonal.
        """
        for diagonal, other in ((self.left, self.right), (self.right, self.left)):
            if diagonal.of == "elementwise":
                return other.nnz
        left, right = self.left.pattern(), self.right.pattern()
        return int(right.row_lengths[left.indices].sum(dtype="int64"))

    def pattern(self) -> "Pattern":
        """The entries with at least one term."""
        return self.symbolic().pattern

    def symbolic(self) -> "Terms":
        """Which entries of the factors each entry is the sum of. Raises SchedcastError if int32 cannot number the terms."""
        from simulator.plan.bodies.csr import patterns

        def compute() -> "Terms":
            if self.terms > MOST_ENTRIES:
                raise SchedcastError(
                    f"a product of sparse Jacobians {self.rows}x{self.left.cols} by {self.left.cols}x{self.cols} has {self.terms} terms;"
                    f" expected at most {MOST_ENTRIES}; use full matrices, or a scan of fewer levels"
                )
            return patterns.multiply(self.left.pattern(), self.right.pattern())

        return store.get(self, compute)


Recipe = Rule | ProductPattern


@lru_cache(4096)
def digest(recipe: ProductPattern) -> str:
    """A short hash of a product's recipe."""
    return blake2b(f"{recipe.left.key}@{recipe.right.key}".encode(), digest_size=8).hexdigest()
