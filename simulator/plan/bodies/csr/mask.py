"""Pruning masks as recipes, which give the same mask on every machine and in every process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Mask:
    """Keep exactly round(keep · n) of a weight's n elements, at positions drawn from `seed` and the weight's shape. The others are zero."""

    keep: float
    seed: int = 0

    def __post_init__(self):
        """Raise ValueError for a share or a seed out of range."""
        if not 0 <= self.keep <= 1:
            raise ValueError(f"a pruning mask keeps a share of {self.keep}; expected a number from 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"a pruning mask has seed {self.seed}; expected a whole number of at least 0")

    @property
    def key(self) -> str:
        """The mask's part of a cost key."""
        return f"keep{self.keep:g}.{self.seed}"

    def kept(self, shape: tuple[int, ...]) -> "np.ndarray":
        """Flat positions of the retained elements in ascending order, int64."""
        import numpy as np

        elements = int(np.prod(shape))
        # Raw draws, because numpy guarantees their sequence across versions, but not that of its shuffles.
        drawn = np.random.PCG64([self.seed, *shape]).random_raw(elements)
        return np.sort(np.argsort(drawn, kind="stable")[: round(self.keep * elements)])
