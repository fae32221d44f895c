"""Bytes that each pair of workers exchanges over an edge, for all pairs of configurations of its two layers at once.

A box is a product of ranges, and so is what two boxes have in common. A range of what a reader needs depends on its position along one
dimension alone: h decides which rows, c which channels of the weights. So the overlaps are computed dimension by dimension, for each
position of each degree, and multiplied for each pair of workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


class Sides:
    """What workers own and need of the values between layers. Layers of equal shape, and ops with equal arguments, are computed once."""

    def __init__(self, network: Network, configurations: Sequence[tuple[Configuration, ...]], workers: int):
        """`workers`: the size of the matrices of `moved_bytes`."""
        self._network, self._configurations, self._workers = network, configurations, workers
        self._places: dict[tuple[Configuration, ...], np.ndarray] = {}
        self._needed: dict[tuple, list[Parts]] = {}
        self._matrices: dict[tuple, np.ndarray] = {}

    def moved_bytes(self, edge: Edge) -> np.ndarray:
        """[configurations of source, of target, workers, workers]: bytes of the value that a worker owns and another needs.

        The diagonal has what a worker needs of its own part. The array is shared between equal edges; do not change it.
        """
        network, graph = self._network, self._network.graph
        value = graph.values[graph.ops[edge.reader].inputs[edge.position].value]
        owners, readers = self._configurations[edge.source], self._configurations[edge.target]
        if not value.shape:  # a scalar
            return np.zeros((len(owners), len(readers), self._workers, self._workers), np.float32)
        needed = self._needed_parts(edge, readers)
        key = (value.shape, value.dtype, owners, readers, network.layers[edge.source].shape, *(parts.ranges.tobytes() for parts in needed))
        if key not in self._matrices:
            owned = self._owned_parts(network.layers[edge.source].shape, value.shape, owners)
            self._matrices[key] = DTYPE_BYTES[value.dtype] * self._overlaps(owned, owners, needed, readers)
        return self._matrices[key]

    def _overlaps(
        self, owned: list[Parts], owners: tuple[Configuration, ...], needed: list[Parts], readers: tuple[Configuration, ...]
    ) -> np.ndarray:
        """Elements that pairs of workers have in common."""
        own_places, read_places = self._worker_places(owners, owned), self._worker_places(readers, needed)
        elements = np.ones((len(owners), len(readers), self._workers, self._workers), np.float32)
        for dimension in range(owned[0].ranges.shape[1]):
            own, read = min(dimension, _DIMENSIONS - 1), _decided_by(needed, dimension)
            a, b = owned[own].ranges[:, dimension], needed[read].ranges[:, dimension]
            lengths = np.minimum(a[:, None, 1], b[None, :, 1]) - np.maximum(a[:, None, 0], b[None, :, 0])
            lengths = np.maximum(lengths, 0).astype(np.float32)
            elements *= lengths[own_places[own][:, None, :, None], read_places[read][None, :, None, :]]
        return elements

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
                        region = network.needed(edge.reader, tuple(box))[edge.position]
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
