"""Bytes that each pair of workers exchanges over an edge, for all pairs of configurations of its two layers at once.

A box is a product of ranges, and so is what two boxes have in common. A range of what a reader needs depends on its position along one
dimension alone: h decides which rows, c which channels of the weights. So the overlaps are computed dimension by dimension, for each
position of each degree, and multiplied for each pair of workers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import inf
from typing import Self

import numpy as np

from simulator.plan.task import DTYPE_BYTES
from simulator.strategies.sharding.boxes import Box, overlap, whole
from simulator.strategies.sharding.configuration import DIMENSIONS, Configuration
from simulator.strategies.sharding.network import Edge, Network

#: Numbers that are computed at a time: 3 MB.
_BLOCK = 400_000
#: Some configurations of a layer by number, and the most workers that any of them has.
_Some = tuple[np.ndarray, int]


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of the workers of some configurations along each of n, c, h and w.

    `degrees`: by dimension, the degrees that occur; a dimension has a position for each place of each degree, and a last one that is empty.
    `places`: [dimension, configuration, worker], the number of the worker's position; of workers that do not exist, the last one.
    `workers`: the number of each configuration's workers.
    """

    degrees: tuple[np.ndarray, ...]
    places: np.ndarray
    workers: np.ndarray

    @classmethod
    def of_workers(cls, options: Sequence[Configuration], workers: int) -> Self:
        """The positions of up to `workers` workers, of whose positions along n, c, h and w the last one changes fastest."""
        chosen = np.array([configuration.degrees for configuration in options])
        count, numbers = chosen.prod(axis=1), np.arange(workers)
        places, inner = np.empty((len(DIMENSIONS), len(options), workers), int), count.copy()
        degrees = tuple(map(np.unique, chosen.T))
        for own, degree, place in zip(degrees, chosen.T, places, strict=True):
            inner //= degree
            first = (own.cumsum() - own)[np.searchsorted(own, degree)]
            place[:] = np.where(numbers < count[:, None], first[:, None] + numbers // inner[:, None] % degree[:, None], own.sum())
        return cls(degrees, places, count)

    def by_workers(self, most_places: float = inf) -> Iterator[_Some]:
        """Yield all configurations: those with up to half of the largest number of workers, and the others.

        `most_places`: as many at a time as have up to this many workers together, but at least one.
        """
        few = self.workers <= self.workers.max() // 2
        for numbers in map(np.flatnonzero, (few, ~few)):
            workers = int(self.workers[numbers].max(initial=1))
            step = int(max(1, min(most_places / workers, len(numbers))))
            yield from ((numbers[at : at + step], workers) for at in range(0, len(numbers), step))


@dataclass(frozen=True, eq=False)
class Side:
    """What the workers of one side of an edge own or need of a value.

    `ranges`: by one of n, c, h, w, [positions, dimensions of the value, (first, end)]; the last position is empty.
    """

    positions: Positions
    ranges: tuple[np.ndarray, ...]

    def along(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """The ranges along a dimension of the value by position along the one of n, c, h, w that decides them, and the workers' places.

        If none decides, it is the dimension of the same number, or else n.
        """
        deciding = [number for number, own in enumerate(self.ranges) if (own[:-1, dimension] != own[0, dimension]).any()]
        number = (*deciding, dimension if dimension < len(DIMENSIONS) else 0)[0]
        return self.ranges[number][:, dimension], self.positions.places[number]


@dataclass(frozen=True, eq=False)
class _Factor:
    """What positions of owners and readers have in common along some dimensions, [positions, positions], and the workers' positions."""

    table: np.ndarray
    owners: np.ndarray
    readers: np.ndarray

    def between(self, sources: _Some, targets: _Some) -> np.ndarray:
        """[configurations of source, its workers, of target, its workers] for some configurations of both."""
        own, others = (places[some, :workers] for places, (some, workers) in ((self.owners, sources), (self.readers, targets)))
        return self.table.take(own.ravel(), axis=0).take(others.ravel(), axis=1).reshape(*own.shape, *others.shape)

    def times(self, other: "_Factor") -> "_Factor":
        """The product with the factor of other dimensions, whose positions are all pairs of positions that occur."""
        sides = []
        for own, others in ((self.owners, other.owners), (self.readers, other.readers)):
            pairs, places = np.unique(own * (others.max() + 1) + others, return_inverse=True)
            sides.append((*np.divmod(pairs, others.max() + 1), places.reshape(own.shape)))
        (a, b, owners), (c, d, readers) = sides
        return _Factor(self.table[a[:, None], c] * other.table[b[:, None], d], owners, readers)


@dataclass(frozen=True, eq=False)
class Flows:
    """What moves over an edge, for all pairs of configurations of its two layers.

    `factors` multiply to the bytes that a worker of the source owns and a worker of the target needs.
    """

    factors: tuple[_Factor, ...]
    sources: Positions
    targets: Positions

    @classmethod
    def between(cls, owned: Side, needed: Side, element_bytes: int) -> Self:
        """What owners and readers have in common: factors for up to two dimensions of the value each."""
        factors: list[_Factor] = []
        scale = float(element_bytes)
        for dimension in range(owned.ranges[0].shape[1]):
            (a, owners), (b, readers) = owned.along(dimension), needed.along(dimension)
            common = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
            table = np.maximum(common, 0).astype(float)
            if dimension and table.shape == (2, 2):  # one position that is not empty on both sides: the first dimension knows who exists
                scale *= table[0, 0]
            else:
                factors.append(_Factor(table, owners, readers))
        factors[0] = replace(factors[0], table=factors[0].table * scale)
        pairs = (reduce(_Factor.times, factors[at : at + 2]) for at in range(0, len(factors), 2))
        return cls(tuple(pairs), owned.positions, needed.positions)

    def blocks(self) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
        """Yield indices [some configurations of source, of target], and bytes [of source, its workers, of target, its workers].

        What a worker has itself does not move: it counts as 0. Configurations with a small number of workers are processed separately, so
        that little is computed for workers that do not exist.
        """
        for targets in self.targets.by_workers():
            for sources in self.sources.by_workers(_BLOCK // (targets[1] * len(targets[0]))):
                moved = self.factors[0].between(sources, targets)
                for factor in self.factors[1:]:
                    moved *= factor.between(sources, targets)
                diagonal = np.arange(min(sources[1], targets[1]))
                moved[:, diagonal, :, diagonal] = 0
                yield np.ix_(sources[0], targets[0]), moved


class Sides:
    """What workers own and need of the values between layers. Layers of equal shape, and ops with equal arguments, are computed once."""

    def __init__(self, network: Network, configurations: Sequence[tuple[Configuration, ...]], workers: int):
        """`workers`: the number that flows tell apart, at least that of any configuration."""
        self._network, self._configurations = network, configurations
        self._positions = cache(lambda options: Positions.of_workers(options, workers))
        self._sides: dict[tuple, Side] = {}
        self._flows: dict[tuple, Flows] = {}

    def flows(self, edge: Edge) -> Flows | None:
        """What moves over an edge; None of a scalar. Equal edges have one object."""
        network, op = self._network, self._network.graph.ops[edge.reader]
        operand, divided = op.inputs[edge.position], network.layers[edge.source].shape
        value = network.graph.values[operand.value]
        shape, alike = value.shape, value.shape[: len(divided)] == divided
        if not shape:
            return None

        def own(box: Box) -> Box | None:
            """The part of a worker; a value whose shape is not divided is on the first worker as a whole."""
            return (*box, *whole(shape[len(box) :])) if alike else None if any(first for first, _ in box) else whole(shape)

        def read(box: Box) -> Box | None:
            region = network.needed_or_all(edge.reader, edge.position, box)
            return None if region is None else overlap(region, whole(shape))

        owned = self._side(edge.source, shape, own)
        needed = self._side(edge.target, shape, read, op.body.key(op), edge.position, operand.views)
        key = (owned, needed.positions, value.dtype, *(ranges.tobytes() for ranges in needed.ranges))
        if key not in self._flows:
            self._flows[key] = Flows.between(owned, needed, DTYPE_BYTES[value.dtype])
        return self._flows[key]

    def _side(self, layer: int, shape: tuple[int, ...], part: Callable[[Box], Box | None], *kind: object) -> Side:
        """What workers own or need of a value of `shape`. `part`: by a worker's box of its layer; the same function for one `kind`."""
        options = self._configurations[layer]
        key = (options, self._network.layers[layer].shape, shape, *kind)
        if key not in self._sides:
            positions, ranges = self._positions(options), []
            for dimension, degrees in enumerate(positions.degrees):
                divisions = (Configuration.along(dimension, int(degree)) for degree in degrees)
                boxes = [part(box) for division in divisions for box in self._network.boxes(layer, division)]
                ranges.append(_ranges(boxes, dimension, shape))
            self._sides[key] = Side(positions, tuple(ranges))
        return self._sides[key]


def _ranges(boxes: list[Box | None], dimension: int, shape: tuple[int, ...]) -> np.ndarray:
    """[positions, dimensions of the value, (first, end)] of boxes and an empty one.

    In place of None: a box that is empty along a single dimension, where the others differ, or else along `dimension`.
    """
    others = {box for box in boxes if box is not None}
    differ = [d for d in range(len(shape)) if len({box[d] for box in others}) > 1] or [min(dimension, len(shape) - 1)]
    nothing = tuple((0, 0) if d == differ[0] else (0, extent) for d, extent in enumerate(shape))
    return np.array([*(nothing if box is None else box for box in boxes), ((0, 0),) * len(shape)], np.int64)
