"""Data sets of built-in models: which samples are in which batch. Samples are generated from their numbers; nothing is downloaded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    #: Makes samples from their numbers: `((input [n, ...], ...), target [n])`.
    Make = Callable[[np.ndarray], tuple[tuple[Tensor, ...], Tensor]]


@dataclass(frozen=True)
class Batches:
    """The batches of a data set, indexed by iteration: `batches[i]` is `((input [batch, ...], ...), target [batch])`.

    Objects with equal fields have equal batches. Every epoch contains all samples once, in an order of its own; one batch may hold the end
    of one epoch and the beginning of the next. `name` describes the data set in words. `samples` are trained on, from number 0 on;
    `held_out` more, the next numbers, are in no batch: accuracy is measured on them.
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
    return generator(seed, "order", epoch).permutation(samples)


#: Uses of random numbers. Each has streams of its own, so that equal seeds do not give correlated numbers.
_PURPOSES = ("order", "sample", "class")


def generator(seed: int, purpose: str, number: int) -> "np.random.Generator":
    """Return a generator that depends only on the arguments. `purpose`: order (of an epoch), sample or class."""
    import numpy as np

    return np.random.default_rng((seed, _PURPOSES.index(purpose), number))


def stacked(arrays: "list[np.ndarray]") -> "Tensor":
    """Stack arrays of one shape to a tensor [n, ...]."""
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(arrays))
