"""Data sets of built-in models: which samples are in which batch. Samples are generated from their numbers; nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

#: Makes samples from their numbers: `((input [n, ...], ...), target [n])`.
Make = Callable[[np.ndarray], tuple[tuple[Tensor, ...], Tensor]]


@dataclass(frozen=True)
class Batches:
    """The batches of a data set by iteration: `batches[i]` is `((input [batch, ...], ...), target [batch])`, the same for equal fields.

    Every epoch has all samples once, in an order of its own; a batch may hold the end of one epoch and the beginning of the next.
    `name` says in words what the data are.
    """

    name: str
    samples: int
    batch: int
    seed: int
    make: Make

    def __getitem__(self, iteration: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """The batch of an iteration, counted from 0."""
        return self.make(self.numbers(iteration))

    def numbers(self, iteration: int) -> np.ndarray:
        """Which samples are in the batch of an iteration."""
        if iteration < 0:
            raise IndexError(f"iteration {iteration}: they are counted from 0")
        epochs, places = np.divmod(np.arange(iteration * self.batch, (iteration + 1) * self.batch), self.samples)
        return np.concatenate([_order(self.samples, self.seed, int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)])


@lru_cache(maxsize=4)
def _order(samples: int, seed: int, epoch: int) -> np.ndarray:
    return generator(seed, "order", epoch).permutation(samples)


#: What random numbers are for: streams of the same seed must not be alike.
_PURPOSES = ("order", "sample", "class")


def generator(seed: int, purpose: str, number: int) -> np.random.Generator:
    """Random numbers that depend on nothing but the arguments. `purpose`: order (of an epoch), sample or class."""
    return np.random.default_rng((seed, _PURPOSES.index(purpose), number))


def stacked(arrays: list[np.ndarray]) -> Tensor:
    """Arrays of one shape as a tensor [n, ...]."""
    return torch.from_numpy(np.stack(arrays))
