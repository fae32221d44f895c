"""Sparse values as a full matrix."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from simulator.bodies.csr.pattern import Pattern


def in_full(pattern: Pattern, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that puts values [nnz, V] where they belong in a matrix of zeros, [rows, cols] of V = 1, else [V, rows, cols]."""
    place = torch.from_numpy(pattern.entry_rows * np.int64(pattern.cols) + pattern.indices).to(device)
    elements, extents = pattern.rows * pattern.cols, (pattern.rows, pattern.cols)

    def full(values: Tensor) -> Tensor:
        samples = values.shape[1]
        found = values.new_zeros(samples, elements).index_copy_(1, place, values.t())
        return found.view(samples, *extents) if samples > 1 else found.view(extents)

    return full
