"""Bytes that each pair of workers exchanges over an edge, for all pairs of configurations of its two layers at once.

A box is a product of ranges, and so is what two boxes have in common. A range of what a reader needs depends on its position along one
dimension alone: h decides which rows, c which channels of the weights. So the overlaps are computed dimension by dimension, for each
position of each degree, and multiplied for each pair of workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.plan.task import DTYPE_BYTES
from simulator.shards.boxes import Box, overlap, whole
from simulator.shards.configuration import Configuration
from simulator.shards.network import Edge, Network

_DIMENSIONS = 4
#: Numbers that are computed at a time: 3 MB.
_BLOCK = 400_000


class Some(NamedTuple):
    """Some configurations of a layer by number, and the most workers that any of them has."""

    configurations: np.ndarray
    workers: int


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of the workers of some configurations along each of n, c, h and w.

    `degrees`: by dimension, the degrees that occur; a dimension has a position for each place of each degree, and a last one that is empty.
    `places`: [dimension, configuration, worker], the number of the worker's position; of workers that do not exist, the last one.
    `workers`: the number of each configuration's workers.
    """

    degrees: tuple[tuple[int, ...], ...]
    places: np.ndarray
    workers: np.ndarray

    @staticmethod
    def of(options: Sequence[Configuration], workers: int) -> "Positions":
        """The positions of up to `workers` workers."""
        degrees = tuple(tuple(sorted(set(own))) for own in zip(*(configuration.degrees for configuration in options), strict=True))
        first = [dict(zip(own, (0, *accumulate(own)), strict=False)) for own in degrees]
        places = np.empty((_DIMENSIONS, len(options), workers), int)
        places[:] = np.array([sum(own) for own in degrees])[:, None, None]
        for row, configuration in enumerate(options):
            start = [first[dimension][degree] for dimension, degree in enumerate(configuration.degrees)]
            places[:, row, : configuration.workers] = np.indices(configuration.degrees).reshape(_DIMENSIONS, -1) + np.array(start)[:, None]
        return Positions(degrees, places, np.array([configuration.workers for configuration in options]))

    def by_workers(self, most_places: float = inf) -> Iterator[Some]:
        """Yield all configurations: those with up to half of the largest number of workers, and the others.

        `most_places`: as many at a time as have so many workers together, but at least one.
        """
        few = self.workers <= self.workers.max() // 2
        for own in (few, ~few):
            if own.any():
                workers, numbers = int(self.workers[own].max()), np.flatnonzero(own)
                step = int(max(1, min(most_places / workers, len(numbers))))
                yield from (Some(numbers[at : at + step], workers) for at in range(0, len(numbers), step))

    def along(self, dimension: int) -> Iterator[tuple[int, int]]:
        """Yield (degree, place) of each position along a dimension."""
        return ((degree, place) for degree in self.degrees[dimension] for place in range(degree))


@dataclass(frozen=True, eq=False)
class Side:
    """What the workers of one side of an edge own or need of a value.

    `ranges`: by one of n, c, h, w, [positions, dimensions of the value, (first, end)]; the last position is empty.
    """

    positions: Positions
    ranges: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class _Factor:
    """What positions of owners and readers have in common along some dimensions, [positions, positions], and the workers' positions."""

    table: np.ndarray
    owners: np.ndarray
    readers: np.ndarray

    def between(self, sources: Some, targets: Some) -> np.ndarray:
        """[configurations of source, its workers, of target, its workers] for some configurations of both."""
        own, others = (places[some.configurations, : some.workers] for places, some in ((self.owners, sources), (self.readers, targets)))
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

    def blocks(self) -> Iterator[tuple[Some, Some, np.ndarray]]:
        """Yield some configurations of the source and of the target, and bytes [of source, its workers, of target, its workers].

        What a worker has itself does not move: it counts as 0. Configurations with few workers are apart, so that little is computed of
        workers that do not exist.
        """
        for targets in self.targets.by_workers():
            for sources in self.sources.by_workers(_BLOCK // (targets.workers * len(targets.configurations))):
                moved = self.factors[0].between(sources, targets)
                for factor in self.factors[1:]:
                    moved *= factor.between(sources, targets)
                diagonal = np.arange(min(sources.workers, targets.workers))
                moved[:, diagonal, :, diagonal] = 0
                yield sources, targets, moved

    @property
    def shape(self) -> tuple[int, int]:
        """How many configurations the source and the target have."""
        return len(self.sources.workers), len(self.targets.workers)


class Sides:
    """What workers own and need of the values between layers. Layers of equal shape, and ops with equal arguments, are computed once."""

    def __init__(self, network: Network, configurations: Sequence[tuple[Configuration, ...]], workers: int):
        """`workers`: the number that flows tell apart, at least that of any configuration."""
        self._network, self._configurations, self._workers = network, configurations, workers
        self._positions: dict[tuple[Configuration, ...], Positions] = {}
        self._owned: dict[tuple, Side] = {}
        self._needed: dict[tuple, Side] = {}
        self._flows: dict[tuple, Flows] = {}

    def flows(self, edge: Edge) -> Flows | None:
        """What moves over an edge; None of a scalar. Equal edges have one object."""
        network, graph = self._network, self._network.graph
        value = graph.values[graph.ops[edge.reader].inputs[edge.position].value]
        if not value.shape:
            return None
        needed = self._needed_side(edge)
        owned = self._owned_side(network.layers[edge.source].shape, value.shape, self._configurations[edge.source])
        key = (owned, needed.positions, value.dtype, *(ranges.tobytes() for ranges in needed.ranges))
        if key not in self._flows:
            factors = _factors(owned, needed, len(value.shape), DTYPE_BYTES[value.dtype])
            self._flows[key] = Flows(factors, owned.positions, needed.positions)
        return self._flows[key]

    def _positions_of(self, options: tuple[Configuration, ...]) -> Positions:
        if options not in self._positions:
            self._positions[options] = Positions.of(options, self._workers)
        return self._positions[options]

    def _owned_side(self, divided: tuple[int, ...], shape: tuple[int, ...], options: tuple[Configuration, ...]) -> Side:
        """The parts of a value of a layer that divides `divided`. A value of another shape lies with the first worker as a whole."""
        key = (divided, shape, options)
        if key not in self._owned:
            positions = self._positions_of(options)
            alike, all_of_it, nothing = shape[: len(divided)] == divided, whole(shape), ((0, 0),) * len(shape)
            ranges = []
            for dimension in range(_DIMENSIONS):
                boxes: list[Box] = []
                for degree, place in positions.along(dimension):
                    if dimension < len(divided) and alike:
                        boxes.append(_cut(all_of_it, dimension, degree, place))
                    else:
                        boxes.append(nothing if place else all_of_it)
                ranges.append(_ranges(boxes, shape))
            self._owned[key] = Side(positions, tuple(ranges))
        return self._owned[key]

    def _needed_side(self, edge: Edge) -> Side:
        network, graph, layer = self._network, self._network.graph, self._network.layers[edge.target]
        op, options = graph.ops[edge.reader], self._configurations[edge.target]
        operand = op.inputs[edge.position]
        shape = graph.values[operand.value].shape
        key = (op.body.key(op), edge.position, shape, operand.views, layer.shape, options)
        if key not in self._needed:
            positions, result = self._positions_of(options), []
            for dimension in range(_DIMENSIONS):
                boxes: list[Box | None] = []
                for degree, place in positions.along(dimension):
                    box = whole(layer.shape)
                    if degree > 1:
                        box = _cut(box, dimension, degree, place)
                    region = network.needed_or_all(edge.reader, edge.position, box)
                    boxes.append(None if region is None else overlap(region, whole(shape)))
                result.append(_ranges(_with_nothing(boxes, dimension, shape), shape))
            self._needed[key] = Side(positions, tuple(result))
        return self._needed[key]


def _cut(box: Box, dimension: int, degree: int, place: int) -> Box:
    """One of `degree` equal parts of a box that starts at 0 along a dimension."""
    step = box[dimension][1] // degree
    return (*box[:dimension], (place * step, (place + 1) * step), *box[dimension + 1 :])


def _factors(owned: Side, needed: Side, rank: int, element_bytes: int) -> tuple[_Factor, ...]:
    """The bytes that owners and readers have in common: factors for up to two dimensions of the value each."""
    divided: list[_Factor] = []
    scale = float(element_bytes)
    for dimension in range(rank):
        own, read = min(dimension, _DIMENSIONS - 1), _decided_by(needed, dimension)
        a, b = owned.ranges[own][:, dimension], needed.ranges[read][:, dimension]
        common = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
        table = np.maximum(common, 0).astype(float)
        if dimension and table.shape == (2, 2):  # one position that is not empty on both sides: the first dimension knows who exists
            scale *= table[0, 0]
        else:
            divided.append(_Factor(table, owned.positions.places[own], needed.positions.places[read]))
    divided[0] = replace(divided[0], table=divided[0].table * scale)
    return tuple(reduce(_Factor.times, divided[at : at + 2]) for at in range(0, len(divided), 2))


def _with_nothing(boxes: list[Box | None], dimension: int, shape: tuple[int, ...]) -> list[Box]:
    """The boxes with one that is empty along a single dimension in place of None: where the others differ, or else along `dimension`."""
    others = {box for box in boxes if box is not None}
    differ = [d for d in range(len(shape)) if len({box[d] for box in others}) > 1] or [min(dimension, len(shape) - 1)]
    nothing = tuple((0, 0) if d == differ[0] else (0, extent) for d, extent in enumerate(shape))
    return [nothing if box is None else box for box in boxes]


def _ranges(boxes: list[Box], shape: tuple[int, ...]) -> np.ndarray:
    return np.array([*boxes, ((0, 0),) * len(shape)], np.int64).reshape(len(boxes) + 1, len(shape), 2)


def _decided_by(needed: Side, dimension: int) -> int:
    """The one of n, c, h, w whose positions determine the range along a dimension of the value; n if none does."""
    for number, own in enumerate(needed.ranges):
        ranges = own[:-1, dimension]
        if len(ranges) > 1 and (ranges != ranges[0]).any():
            return number
    return dimension if dimension < _DIMENSIONS else 0
