"""Converts sparse values to a full matrix."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from simulator.plan.bodies.csr.pattern import Pattern


def to_full(pattern: Pattern, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from values [nnz, V] to the full matrix: [rows, cols] if V = 1, else [V, rows, cols]."""
    positions = torch.from_numpy(pattern.entry_rows * np.int64(pattern.cols) + pattern.indices).to(device)
    elements, extents = pattern.rows * pattern.cols, (pattern.rows, pattern.cols)

    def full(values: Tensor) -> Tensor:
        samples = values.shape[1]
        matrix = values.new_zeros(samples, elements).index_copy_(1, positions, values.t())
        return matrix.view(samples, *extents) if samples > 1 else matrix.view(extents)

    return full
