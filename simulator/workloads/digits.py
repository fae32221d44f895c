"""Handwritten digits for image classifiers: 1,797 pictures of 8x8 pixels, enlarged.

`digits.csv.gz` is the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI Machine Learning Repository, 1998,
CC BY 4.0), which scikit-learn has too: by row, 64 pixels from 0 to 16 and the digit.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.workloads.data import Batches

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def digits(channels: int, batch: int, image_size: int, seed: int) -> Batches:
    """Return the batches of an image classifier with at least 10 classes: images [batch, channels, image_size, image_size] and labels.

    Pixels have mean 0 and standard deviation 1; then the pictures are enlarged bilinearly. All channels are equal. One picture in five, the
    same ones for every seed, is held out.
    """
    import torch
    from torch.nn import functional as F

    images, labels = _pictures()

    def make(numbers: "np.ndarray") -> "tuple[tuple[Tensor, ...], Tensor]":
        chosen = torch.from_numpy(numbers)
        large = F.interpolate(images[chosen], (image_size, image_size), mode="bilinear", align_corners=False)
        return (large.expand(-1, channels, -1, -1).contiguous(),), labels[chosen]

    held_out = len(labels) // 5
    name = f"handwritten digits, {len(labels) - held_out:,} pictures of 8x8 enlarged to {image_size}x{image_size}"
    return Batches(name, len(labels) - held_out, batch, seed, make, held_out)


@cache
def _pictures() -> "tuple[Tensor, Tensor]":
    """Images [1797, 1, 8, 8] and labels [1797], shuffled: neighbors in the collection are by one writer."""
    import numpy as np
    import torch

    rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
    return ((images - images.mean()) / images.std())[order], torch.from_numpy(rows[:, -1]).long()[order]
