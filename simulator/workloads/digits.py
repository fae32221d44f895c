"""Handwritten digits for image classifiers: scikit-learn's 1,797 pictures of 8x8 pixels, enlarged."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from simulator.workloads.data import Batches
from traces.errors import StepcastError


def digits(channels: int) -> Callable[[int, int, int], Batches]:
    """The data of an image classifier with 10 classes or more: `data(batch, image_size, seed)`, images [n, channels, side, side].

    Pictures are enlarged bilinearly; their pixels have mean 0 and standard deviation 1 before that. Every channel is the same.
    """

    def data(batch: int, image_size: int, seed: int) -> Batches:
        images, labels = _pictures()

        def make(numbers: np.ndarray) -> tuple[tuple[Tensor, ...], Tensor]:
            chosen = torch.from_numpy(numbers)
            large = F.interpolate(images[chosen], (image_size, image_size), mode="bilinear", align_corners=False)
            return (large.expand(-1, channels, -1, -1).contiguous(),), labels[chosen]

        name = f"handwritten digits, {len(labels):,} pictures of 8x8 enlarged to {image_size}x{image_size}"
        return Batches(name, len(labels), batch, seed, make)

    return data


@cache
def _pictures() -> tuple[Tensor, Tensor]:
    """Images [1797, 1, 8, 8] and classes [1797]. Raises StepcastError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise StepcastError("the handwritten digits come with scikit-learn, which is not installed; pip install scikit-learn") from error
    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1)
    return (images - images.mean()) / images.std(), torch.from_numpy(found.target).long()
