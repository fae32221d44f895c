"""Data sets of built-in models: which samples are in which batch. Samples are made from their numbers; nothing is downloaded.

`digits.csv.gz` is the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI Machine Learning Repository, 1998,
CC BY 4.0), which scikit-learn has too: by row, 64 pixels from 0 to 16 and the digit. The synthetic sequences are for the recurrent
classifiers of "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    #: Makes samples from their numbers: `((input [n, ...], ...), target [n])`.
    Make = Callable[[np.ndarray], tuple[tuple[Tensor, ...], Tensor]]

#: Uses of random numbers. Each has separate streams, so that equal seeds do not give correlated numbers.
_PURPOSES = ("order", "sample", "class")
#: Length and features per step of BPPSA's sets S, M and L.
_SETS = ((259, 38), (517, 24), (1034, 12))
#: Further samples of each set, on which accuracy is measured.
_HELD_OUT = 500


@dataclass(frozen=True)
class Batches:
    """The batches of a data set, indexed by iteration: `batches[i]` is `((input [batch, ...], ...), target [batch])`.

    Objects with equal fields have equal batches. Every epoch contains all samples once, in its own order; one batch may contain the end of
    one epoch and the beginning of the next. `name` describes the data set in words. `samples` are trained on, from number 0 on; `held_out`
    more, the next numbers, are in no batch: accuracy is measured on them.
    """

    name: str
    samples: int
    batch: int
    seed: int
    make: "Make"
    held_out: int = 0

    def __getitem__(self, iteration: int) -> "tuple[tuple[Tensor, ...], Tensor]":
        """Return the batch of an iteration, counted from 0."""
        return self.make(self.numbers(iteration))

    def numbers(self, iteration: int) -> "np.ndarray":
        """Return the numbers of the samples in the batch of an iteration. Raises IndexError for a negative iteration."""
        import numpy as np

        if iteration < 0:
            raise IndexError(f"iteration is {iteration}; expected at least 0: iterations are counted from 0")
        epochs, positions = np.divmod(np.arange(iteration * self.batch, (iteration + 1) * self.batch), self.samples)
        return np.concatenate([_order(self.samples, self.seed, int(epoch))[positions[epochs == epoch]] for epoch in np.unique(epochs)])

    def parts(self, numbers: range, most: int) -> "Iterator[tuple[tuple[Tensor, ...], Tensor]]":
        """Yield the samples with these numbers, in order, at most `most` at a time."""
        import numpy as np

        for first in range(numbers.start, numbers.stop, most):
            yield self.make(np.arange(first, min(first + most, numbers.stop)))


@lru_cache(maxsize=4)
def _order(samples: int, seed: int, epoch: int) -> "np.ndarray":
    return _generator(seed, "order", epoch).permutation(samples)


def _generator(seed: int, purpose: str, number: int) -> "np.random.Generator":
    """Return a generator that depends only on the arguments. `purpose`: order (of an epoch), sample or class."""
    import numpy as np

    return np.random.default_rng((seed, _PURPOSES.index(purpose), number))


def _stacked(arrays: "list[np.ndarray]") -> "Tensor":
    """Stack arrays of one shape to a tensor [n, ...]."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(arrays))


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


def cluttered_digits(channels: int, batch: int, image_size: int, seed: int) -> Batches:
    """Return a harder task than `digits`: each picture is at a random place and size, in a random color, between pieces of others.

    Images [batch, channels, image_size, image_size] with about mean 0 and standard deviation 1. There are several of each picture. Those of
    the held-out pictures are held out, and pieces in them come from held-out pictures too; all are the same for every seed.
    """
    import numpy as np
    import torch
    from torch.nn import functional as F

    images, labels = _pictures()
    inks = (images - images.min()) / (images.max() - images.min())
    kept = len(labels) - len(labels) // 5
    samples, held_out = _EACH[0] * kept, _EACH[1] * (len(labels) - kept)
    pieces, draws = 1 + _PIECES, _draws(samples + held_out)

    def make(numbers: "np.ndarray") -> "tuple[tuple[Tensor, ...], Tensor]":
        shares = draws[numbers]
        trained, place = numbers < samples, torch.from_numpy(shares[:, : 4 * pieces]).view(-1, pieces, 4)
        chosen = np.where(trained, numbers % kept, kept + (numbers - samples) % (len(labels) - kept))
        others = (shares[:, 4 * pieces : 5 * pieces - 1] * np.where(trained, kept, len(labels) - kept)[:, None]).astype(int)
        which = np.concatenate([chosen[:, None], others + np.where(trained, 0, kept)[:, None]], 1)
        drawn = inks[torch.from_numpy(which)].flatten(0, 1)
        drawn[torch.arange(len(drawn)) % pieces > 0, :, _PIECE:] = 0  # of the others, a piece
        sizes = 0.6 + 0.25 * place[..., 0]
        shifts = (2 * place[..., 1:3] - 1) * (1 - torch.where(torch.arange(pieces) == 0, sizes, 0.3))[..., None]
        inverse = torch.zeros(len(numbers), pieces, 2, 3)
        inverse[..., 0, 0] = inverse[..., 1, 1] = 1 / sizes
        inverse[..., 2] = -shifts / sizes[..., None]
        grid = F.affine_grid(inverse.flatten(0, 1), [len(drawn), 1, image_size, image_size], align_corners=False)
        masks = F.grid_sample(drawn, grid, align_corners=False).unflatten(0, (-1, pieces))
        colors = torch.from_numpy(shares[:, 5 * pieces :]).view(-1, pieces + 1, 3)[..., :channels, None, None]
        result = 0.4 * colors[:, -1]
        for number in reversed(range(pieces)):
            result = result + masks[:, number] * ((0.3 if number else 0.5) + 0.5 * colors[:, number] - result)
        return (((result - 0.4) / 0.25).contiguous(),), labels[torch.from_numpy(chosen)]

    name = f"handwritten digits, cluttered and colored, {samples:,} images of {image_size}x{image_size}"
    return Batches(name, samples, batch, seed, make, held_out)


#: Images of each picture that are trained on, and that are held out.
_EACH = (8, 3)
#: Pieces of other pictures in an image, and the rows of each.
_PIECES, _PIECE = 2, 4


@cache
def _draws(count: int) -> "np.ndarray":
    """Numbers from 0 to 1 [count, ...]: by picture or piece 4 of its place and the number of a picture, and all colors."""
    import numpy as np

    pieces = 1 + _PIECES
    return np.random.default_rng(0).random((count, 5 * pieces + 3 * (pieces + 1)), np.float32)


@cache
def _pictures() -> "tuple[Tensor, Tensor]":
    """Images [1797, 1, 8, 8] and labels [1797], shuffled: neighbors in the collection are by one writer."""
    import numpy as np
    import torch

    rows = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8)).float()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
    return ((images - images.mean()) / images.std())[order], torch.from_numpy(rows[:, -1]).long()[order]


def bit_streams(batch: int, image_size: int, seed: int) -> Batches:
    """Return the paper's 32,000 random bit streams [n, image_size, 1] of 10 classes.

    A bit of class c is 1 with probability 0.05 + 0.1 c.
    """
    import numpy as np
    import torch

    def make(numbers: "np.ndarray") -> "tuple[tuple[Tensor, ...], Tensor]":
        bits, labels = [], []
        for number in numbers:
            draw = _generator(seed, "sample", number)
            labels.append(int(draw.integers(10)))
            bits.append(draw.random((image_size, 1), np.float32) < np.float32(0.05 + 0.1 * labels[-1]))
        return (_stacked(bits).float(),), torch.tensor(labels)

    return Batches(f"bit streams of {image_size:,} bits, 32,000 samples of 10 classes", 32_000, batch, seed, make, _HELD_OUT)


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
        draw = _generator(seed, "class", label)
        return draw.normal(0, 0.5, features), draw.uniform(0, 1, features), draw.integers(1, 9, features)

    def make(numbers: "np.ndarray") -> "tuple[tuple[Tensor, ...], Tensor]":
        clips, labels = [], []
        for number in numbers:
            draw = _generator(seed, "sample", number)
            labels.append(int(draw.integers(11)))
            means, amplitudes, waves = of_class(labels[-1])
            oscillation = amplitudes * np.sin(2 * np.pi * (waves * time + draw.random(features)))
            clips.append((means + oscillation + draw.standard_normal((image_size, features))).astype(np.float32))
        return (_stacked(clips),), torch.tensor(labels)

    return Batches(f"synthetic clips of {image_size}x{features} features, 6,705 samples of 11 classes", 6_705, batch, seed, make, _HELD_OUT)
