"""Bytes that each pair of workers exchanges over an edge, for all pairs of configurations of its two layers at once.

A box is a product of ranges, and so is what two boxes have in common. A range of what a reader needs depends on its position along one
dimension alone: h decides which rows, c which channels of the weights. So the overlaps are computed dimension by dimension, for each
position of each degree, and multiplied for each pair of workers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.plan.task import DTYPE_BYTES
from simulator.shards.boxes import Box, overlap, whole
from simulator.shards.configuration import Configuration
from simulator.shards.network import Edge, Network

_DIMENSIONS = 4


@dataclass(frozen=True, eq=False)
class Parts:
    """The positions of all degrees along one of n, c, h, w.

    `ranges`: [positions, dimensions of the value, (first, end)]; a last position is empty. `first`: the first position of each degree.
    """

    ranges: np.ndarray
    first: dict[int, int]


@dataclass(frozen=True, eq=False)
class Flows:
    """What moves over an edge, for all pairs of configurations of its two layers: [of source, of target, ...].

    `lengths`: by dimension of the value, the extent that [positions of owners, positions of readers] have in common; for both sides, the
    positions of [configurations, workers], and the first position and the number of positions of each configuration's degree.
    `separable`: whether every dimension of the value belongs to another one of n, c, h and w, on both sides.
    """

    lengths: tuple["_Lengths", ...]
    element_bytes: int
    separable: bool

    @cached_property
    def matrix(self) -> np.ndarray:
        """[..., workers of source, of target]: bytes that the one owns and the other needs; the diagonal is 0."""
        elements = np.float32(self.element_bytes)
        for each in self.lengths:
            elements = elements * each.table[each.owners[:, None, :, None], each.readers[None, :, None, :]]
        return elements * (1 - np.eye(elements.shape[-1], dtype=np.float32))

    @cached_property
    def sent(self) -> tuple[np.ndarray, np.ndarray]:
        """[..., workers of source]: bytes that each sends to others, and to how many."""
        if not self.separable:
            return self.matrix.sum(axis=-1), np.sign(self.matrix).sum(axis=-1)
        return self._others(lambda each, table: each.by_owner(table))

    @cached_property
    def received(self) -> tuple[np.ndarray, np.ndarray]:
        """[..., workers of target]: bytes that each receives of others, and from how many."""
        if not self.separable:
            return self.matrix.sum(axis=-2), np.sign(self.matrix).sum(axis=-2)
        return self._others(lambda each, table: each.by_reader(table))

    def _others(self, summed: Callable[["_Lengths", np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Sums over the other side's workers, without what a worker has in common with itself. Sums of products are products of sums."""
        own, copies, every = self._of_itself, np.float32(1), np.float32(self.element_bytes)
        for each in self.lengths:
            every = every * summed(each, each.table)
            copies = copies * summed(each, np.sign(each.table))
        return every - own, copies - np.sign(own)

    @cached_property
    def _of_itself(self) -> np.ndarray:
        """[..., workers]: bytes that a worker owns and needs."""
        own = np.float32(self.element_bytes)
        for each in self.lengths:
            own = own * each.table[each.owners[:, None, :], each.readers[None, :, :]]
        return own


@dataclass(frozen=True, eq=False)
class _Lengths:
    """One dimension of a value; see `Flows.lengths`."""

    table: np.ndarray
    owners: np.ndarray
    readers: np.ndarray
    of_owners: np.ndarray
    of_readers: np.ndarray

    def by_owner(self, table: np.ndarray) -> np.ndarray:
        """[configurations of source, of target, workers]: the sum over the positions of the target's degree."""
        sums = np.concatenate([np.zeros((len(table), 1), np.float32), table.cumsum(axis=1)], axis=1)
        of_degree = sums[:, self.of_readers[:, 0] + self.of_readers[:, 1]] - sums[:, self.of_readers[:, 0]]
        return of_degree[self.owners].transpose(0, 2, 1)

    def by_reader(self, table: np.ndarray) -> np.ndarray:
        """[configurations of source, of target, workers]: the sum over the positions of the source's degree."""
        sums = np.concatenate([np.zeros((1, table.shape[1]), np.float32), table.cumsum(axis=0)])
        of_degree = sums[self.of_owners[:, 0] + self.of_owners[:, 1]] - sums[self.of_owners[:, 0]]
        return of_degree[:, self.readers]


class Sides:
    """What workers own and need of the values between layers. Layers of equal shape, and ops with equal arguments, are computed once."""

    def __init__(self, network: Network, configurations: Sequence[tuple[Configuration, ...]], workers: int):
        """`workers`: the number that flows tell apart, at least that of any configuration."""
        self._network, self._configurations, self._workers = network, configurations, workers
        self._needed: dict[tuple, list[Parts]] = {}
        self._flows: dict[tuple, Flows] = {}

    def flows(self, edge: Edge) -> Flows | None:
        """What moves over an edge; None of a scalar. Equal edges have one object."""
        network, graph = self._network, self._network.graph
        value = graph.values[graph.ops[edge.reader].inputs[edge.position].value]
        if not value.shape:
            return None
        owners, readers = self._configurations[edge.source], self._configurations[edge.target]
        needed = self._needed_parts(edge, readers)
        divided = network.layers[edge.source].shape
        key = (value.shape, value.dtype, owners, readers, divided, *(parts.ranges.tobytes() for parts in needed))
        if key not in self._flows:
            owned = self._owned_parts(divided, value.shape, owners)
            rank = len(value.shape)
            decided = [_decided_by(needed, dimension) for dimension in range(rank)]
            separable = _covers(range(rank), owners) and _covers(decided, readers)
            self._flows[key] = Flows(tuple(self._lengths(owned, owners, needed, readers)), DTYPE_BYTES[value.dtype], separable)
        return self._flows[key]

    def _lengths(
        self, owned: list[Parts], owners: tuple[Configuration, ...], needed: list[Parts], readers: tuple[Configuration, ...]
    ) -> Iterator[_Lengths]:
        own_places, read_places = self._worker_places(owners, owned), self._worker_places(readers, needed)
        of_owners, of_readers = _degree_places(owners, owned), _degree_places(readers, needed)
        for dimension in range(owned[0].ranges.shape[1]):
            own, read = min(dimension, _DIMENSIONS - 1), _decided_by(needed, dimension)
            a, b = owned[own].ranges[:, dimension], needed[read].ranges[:, dimension]
            common = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
            table = np.maximum(common, 0).astype(np.float32)
            yield _Lengths(table, own_places[own], read_places[read], of_owners[own], of_readers[read])

    def _worker_places(self, options: tuple[Configuration, ...], parts: list[Parts]) -> list[np.ndarray]:
        """By dimension, [configurations, workers]: the number of each worker's position; of workers that do not exist, the last one."""
        result = []
        for dimension in range(_DIMENSIONS):
            places = np.full((len(options), self._workers), len(parts[dimension].ranges) - 1)
            for row, configuration in enumerate(options):
                positions = np.unravel_index(np.arange(configuration.workers), configuration.degrees)[dimension]
                places[row, : configuration.workers] = parts[dimension].first[configuration.degrees[dimension]] + positions
            result.append(places)
        return result

    def _owned_parts(self, divided: tuple[int, ...], shape: tuple[int, ...], options: tuple[Configuration, ...]) -> list[Parts]:
        """The parts of a value of a layer that divides `divided`. A value of another shape lies with the first worker as a whole."""
        alike = shape[: len(divided)] == divided
        result = []
        for dimension, degrees in enumerate(_degrees(options)):
            boxes: list[tuple[int, Box]] = []
            for degree in degrees:
                for place in range(degree):
                    box = list(whole(shape))
                    if dimension < len(divided) and alike:
                        step = divided[dimension] // degree
                        box[dimension] = (place * step, (place + 1) * step)
                    elif place:
                        box = [(0, 0)] * len(shape)
                    boxes.append((degree, tuple(box)))
            result.append(_parts(boxes, shape))
        return result

    def _needed_parts(self, edge: Edge, options: tuple[Configuration, ...]) -> list[Parts]:
        network, graph, layer = self._network, self._network.graph, self._network.layers[edge.target]
        op = graph.ops[edge.reader]
        operand = op.inputs[edge.position]
        shape = graph.values[operand.value].shape
        key = (op.body.key(op), edge.position, shape, operand.views, layer.shape, options)
        if key not in self._needed:
            result = []
            for dimension, degrees in enumerate(_degrees(options)):
                boxes: list[tuple[int, Box | None]] = []
                for degree in degrees:
                    for place in range(degree):
                        box = list(whole(layer.shape))
                        if dimension < len(box):
                            step = layer.shape[dimension] // degree
                            box[dimension] = (place * step, (place + 1) * step)
                        region = network.needed_or_all(edge.reader, edge.position, tuple(box))
                        inner = None if region is None else overlap(region, whole(shape))
                        boxes.append((degree, inner))
                result.append(_parts(_with_nothing(boxes, dimension, shape), shape))
            self._needed[key] = result
        return self._needed[key]


def _degrees(options: tuple[Configuration, ...]) -> list[list[int]]:
    """The degrees along n, c, h and w that occur."""
    return [sorted({configuration.degrees[dimension] for configuration in options}) for dimension in range(_DIMENSIONS)]


def _with_nothing(boxes: list[tuple[int, Box | None]], dimension: int, shape: tuple[int, ...]) -> list[tuple[int, Box]]:
    """The boxes with one that is empty along a single dimension in place of None: where the others differ, or else along `dimension`."""
    others = {box for _, box in boxes if box is not None}
    differ = [d for d in range(len(shape)) if len({box[d] for box in others}) > 1] or [min(dimension, len(shape) - 1)]
    nothing = tuple((0, 0) if d == differ[0] else (0, extent) for d, extent in enumerate(shape))
    return [(degree, nothing if box is None else box) for degree, box in boxes]


def _covers(dimensions: Sequence[int], options: tuple[Configuration, ...]) -> bool:
    """Whether no dimension is there twice, and none that any configuration divides is missing."""
    others = [dimension for dimension in range(_DIMENSIONS) if dimension not in dimensions]
    once = len(set(dimensions)) == len(dimensions) and max(dimensions) < _DIMENSIONS
    return once and all(configuration.degrees[dimension] == 1 for configuration in options for dimension in others)


def _degree_places(options: tuple[Configuration, ...], parts: list[Parts]) -> list[np.ndarray]:
    """By dimension, [configurations, 2]: the first position of the configuration's degree, and how many it has."""
    return [
        np.array([(parts[dimension].first[c.degrees[dimension]], c.degrees[dimension]) for c in options])
        for dimension in range(_DIMENSIONS)
    ]


def _parts(boxes: list[tuple[int, Box]], shape: tuple[int, ...]) -> Parts:
    first: dict[int, int] = {}
    for number, (degree, _) in enumerate(boxes):
        first.setdefault(degree, number)
    rows = [box for _, box in boxes] + [((0, 0),) * len(shape)]
    return Parts(np.array(rows, np.int64).reshape(len(rows), len(shape), 2), first)


def _decided_by(needed: list[Parts], dimension: int) -> int:
    """The one of n, c, h, w whose positions determine the range along a dimension of the value; n if none does."""
    for number, parts in enumerate(needed):
        ranges = parts.ranges[:-1, dimension]
        if len(ranges) > 1 and (ranges != ranges[0]).any():
            return number
    return dimension if dimension < _DIMENSIONS else 0
