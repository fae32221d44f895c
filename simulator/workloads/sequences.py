"""Synthetic sequences for the recurrent classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020)."""

from functools import cache
from typing import TYPE_CHECKING

from simulator.workloads.data import Batches, generator, stacked

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

#: Length and features per step of the paper's sets S, M and L.
_SETS = ((259, 38), (517, 24), (1034, 12))
#: Further samples of each set, on which accuracy is measured.
HELD_OUT = 500


def bit_streams(batch: int, image_size: int, seed: int) -> Batches:
    """Return the paper's 32,000 random bit streams [n, image_size, 1] of 10 classes.

    A bit of class c is 1 with probability 0.05 + 0.1 c.
    """
    import numpy as np
    import torch

    def make(numbers: "np.ndarray") -> "tuple[tuple[Tensor, ...], Tensor]":
        bits, labels = [], []
        for number in numbers:
            draw = generator(seed, "sample", number)
            labels.append(int(draw.integers(10)))
            bits.append(draw.random((image_size, 1), np.float32) < np.float32(0.05 + 0.1 * labels[-1]))
        return (stacked(bits).float(),), torch.tensor(labels)

    return Batches(f"bit streams of {image_size:,} bits, 32,000 samples of 10 classes", 32_000, batch, seed, make, HELD_OUT)


def features_of(steps: int) -> int:
    """Return the features per step of the paper's shortest set whose sequences have at least `steps` steps; beyond all of them, set L's."""
    return next((features for length, features in _SETS if steps <= length), _SETS[-1][1])


def audio_clips(batch: int, image_size: int, seed: int) -> Batches:
    """Return 6,705 synthetic clips [n, image_size, features] of 11 classes: as many samples as the paper's data set has.

    Every feature of a class oscillates about a mean, with an amplitude and a frequency of that class; each clip adds random phases and
    noise. Features have a mean of about 0 and a standard deviation of about 1.3.
    """
    import numpy as np
    import torch

    features = features_of(image_size)
    time = np.arange(image_size)[:, None] / image_size

    @cache
    def of_class(label: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        draw = generator(seed, "class", label)
        return draw.normal(0, 0.5, features), draw.uniform(0, 1, features), draw.integers(1, 9, features)

    def make(numbers: np.ndarray) -> "tuple[tuple[Tensor, ...], Tensor]":
        clips, labels = [], []
        for number in numbers:
            draw = generator(seed, "sample", number)
            labels.append(int(draw.integers(11)))
            means, amplitudes, waves = of_class(labels[-1])
            oscillation = amplitudes * np.sin(2 * np.pi * (waves * time + draw.random(features)))
            clips.append((means + oscillation + draw.standard_normal((image_size, features))).astype(np.float32))
        return (stacked(clips),), torch.tensor(labels)

    return Batches(f"synthetic clips of {image_size}x{features} features, 6,705 samples of 11 classes", 6_705, batch, seed, make, HELD_OUT)
