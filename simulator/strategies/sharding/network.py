"""The layers of a captured model as DeePa configures them, and the tensors that go from one to another.

A layer here is one op with weights, a pooling, a sum, a concatenation, or the loss, together with the batch-norm, activation and dropout
that follow it on a tensor of the same shape: they are divided the same way, so nothing moves between them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from simulator.model.graph import Op, TrainingGraph
from simulator.plan.task import BUFFER, FORWARD, PARAMETER, Operand
from simulator.plan.views import NotABoxError
from simulator.strategies.sharding.backward import Served, served
from simulator.strategies.sharding.boxes import Box, behind_views, parts, whole
from simulator.strategies.sharding.configuration import DIMENSIONS, Configuration
from simulator.strategies.sharding.regions import divided_dimensions, divided_shape, name_of, needed, output_of, rule_of
from traces.errors import SchedcastError

_CARRIED = (PARAMETER, BUFFER)
_SOFTMAX, _LOSS = "_log_softmax", "nll_loss_forward"
#: Ops with a rule that begin a layer, though they have a single input.
_OWN_LAYERS = frozenset({
    "convolution", "addmm", "mm", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "mean", "cat", _SOFTMAX, _LOSS,
})  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Forward ops that are divided the same way, as indices of the graph's ops. `name`: the module path of the first, numbered if it
    repeats.

    `main`: the op that the layer is named after. `shape`: what is divided among the workers.
    """

    name: str
    ops: tuple[int, ...]
    main: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Edge:
    """Op `reader` of layer `target` reads, at `position` of its inputs, what layer `source` makes."""

    source: int
    target: int
    reader: int
    position: int


class Network:
    """The layers of a graph in forward order, and the edges between them.

    `one_mean`: a loss whose parts would have means of unequal numbers of targets is not divided.
    """

    def __init__(self, graph: TrainingGraph, one_mean: bool = False):
        self.graph, self._undivided = graph, graph.uneven_ops.keys() if one_mean else ()
        maker: dict[str, int] = {}  # by storage: the layer that made or last changed it
        groups: list[list[int]] = []
        before: list[int] = []  # ops that only count, until the op that they belong to
        edges: list[Edge] = []
        for index, op in enumerate(graph.ops):
            if op.phase != FORWARD:
                continue
            if self.only_counts(op):
                before.append(index)
                continue
            sources = {p: maker.get(graph.values[o.value].storage) for p, o in enumerate(op.inputs) if not self._is_carried(o.value)}
            number = self._joined(op, sources, groups)
            if number is None:
                number = len(groups)
                groups.append([])
            groups[number] += [*before, index]
            before = []
            edges += [Edge(source, number, index, position) for position, source in sources.items() if source not in (number, None)]
            for operand in (*op.writes, *op.mutates):
                if not self._is_carried(operand.value):
                    maker[graph.values[operand.value].storage] = number
        self.edges = tuple(edges)
        self.layers = tuple(self._layers(groups))
        #: What `local.shard` has made, by layer, configuration and worker.
        self.shards: dict[tuple[int, Configuration, int], tuple] = {}
        #: The layer of each forward op, and of each op that repeats one.
        self.layer_of = {op: number for number, layer in enumerate(self.layers) for op in layer.ops}
        self.layer_of |= {again: self.layer_of[first] for again, first in graph.repeats.items()}

    def legal(self, layer: int, workers: int) -> Iterator[Configuration]:
        """Yield the configurations of a layer for at most this many workers. One worker is always possible."""
        own = self.layers[layer]
        ops = [self.graph.ops[index] for index in own.ops]
        dimensions = frozenset.intersection(*(divided_dimensions(op) for op in ops if not self.only_counts(op)))
        if len(own.shape) not in (1, 2, 4):
            dimensions &= {0}  # sequences: their other dimensions have no names here
        if name_of(ops[-1]) == _LOSS and ops[-1].writes[0].value != self.graph.loss:
            dimensions = frozenset()  # a loss that other ops read is not the mean of the step's losses, so that one worker must know it
        if own.ops[-1] in self._undivided:
            dimensions = frozenset()
        ranges = [_divisors(e, workers) if d in dimensions else [1] for d, e in enumerate(own.shape)]
        ranges = [
            [degree for degree in degrees if degree == 1 or self._has_boxes(layer, d, degree)] for d, degrees in enumerate(ranges[:4])
        ]
        yield from (Configuration(*degrees) for degrees in product(*ranges) if prod(degrees) <= workers)

    def check(self, layer: int, configuration: Configuration, workers: int) -> None:
        """Raise SchedcastError if a layer cannot have a configuration on at most this many workers."""
        legal = list(self.legal(layer, workers))
        if configuration not in legal:
            raise self.refusal(layer, configuration, legal)

    def refusal(self, layer: int, configuration: Configuration, legal: Sequence[Configuration]) -> SchedcastError:
        """The error that says which degrees a layer can have, whose configurations are `legal`."""
        own = self.layers[layer]
        degrees = (sorted({each.degrees[at] for each in legal}) for at in range(len(DIMENSIONS)))
        offered = "; ".join(f"{dim}: {', '.join(map(str, some))}" for dim, some in zip(DIMENSIONS, degrees, strict=True) if some != [1])
        most = max(each.workers for each in legal)
        known = f"its degrees are {offered}, for at most {most} workers" if offered else "it runs on one worker only"
        return SchedcastError(f"layer {own.name} ({' x '.join(map(str, own.shape))}) cannot be divided into {configuration}: {known}")

    def boxes(self, layer: int, configuration: Configuration) -> list[Box]:
        """By worker, its part of what the layer divides. Raises ValueError if a degree does not divide its extent."""
        shape = self.layers[layer].shape
        degrees = configuration.degrees
        if any(degree > 1 for degree in degrees[len(shape) :]):
            raise ValueError(f"{shape} has no dimension for {configuration}")
        return parts(shape, (*degrees[: len(shape)], *(1,) * (len(shape) - 4)))

    def parameters(self, layer: int) -> list[tuple[int, int, Operand]]:
        """(op, position among its inputs, operand) of each trained parameter that a layer reads, once."""
        graph = self.graph
        known: dict[str, tuple[int, int, Operand]] = {}
        for op in self.layers[layer].ops:
            for position, operand in enumerate(graph.ops[op].inputs):
                if graph.values[operand.value].kind == PARAMETER and operand.value in graph.gradients:
                    known.setdefault(operand.value, (op, position, operand))
        return list(known.values())

    @cached_property
    def served(self) -> dict[int, Served]:
        """What each backward op serves."""
        return served(self.graph)

    @cached_property
    def repeated(self) -> list[list[int]]:
        """By layer, the ops that repeat its forward ops in backward."""
        repeated: list[list[int]] = [[] for _ in self.layers]
        for index in self.graph.repeats:
            repeated[self.layer_of[index]].append(index)
        return repeated

    @cached_property
    def backward(self) -> list[list[int]]:
        """By layer, its backward ops: those that serve its forward ops."""
        backward: list[list[int]] = [[] for _ in self.layers]
        for index, what in self.served.items():
            backward[self.layer_of[what.forward]].append(index)
        return backward

    def of_op(self, op: int, box: Box) -> Box:
        """The part of an op's output in `box` of its layer. A softmax is divided with the loss that follows: by images."""
        return (*box, *whole(divided_shape(self.graph.ops[op])[len(box) :]))

    def needed(self, op: int, box: Box) -> list[Box | None]:
        """By input of a forward op, the box of the value, without views, that `box` of its layer needs; None: nothing of it.

        Raises NotABoxError if views make it more than a box.
        """
        own = self.graph.ops[op]
        return [self._behind(operand, wanted) for operand, wanted in zip(own.inputs, needed(own, self.of_op(op, box)), strict=True)]

    def needed_or_all(self, op: int, position: int, box: Box) -> Box | None:
        """What one input of a forward op needs, as `needed` says; all of the value if what it needs is no box."""
        own = self.graph.ops[op]
        try:
            return self._behind(own.inputs[position], needed(own, self.of_op(op, box))[position])
        except NotABoxError:
            return whole(self.graph.values[own.inputs[position].value].shape)

    def _behind(self, operand: Operand, wanted: Box | None) -> Box | None:
        return None if wanted is None else behind_views(operand, self.graph.values[operand.value].shape, wanted)[0]

    def _has_boxes(self, layer: int, dimension: int, degree: int) -> bool:
        """Whether every worker's inputs are boxes, also behind views, if the layer is divided along one dimension.

        Then they are boxes in every combination of such divisions, since a range of an input depends on the position along one dimension.
        """
        ops = {index: self.graph.ops[index] for index in self.layers[layer].ops}
        viewing = [index for index, op in ops.items() if not self.only_counts(op) and any(operand.views for operand in op.inputs)]
        try:
            for box in self.boxes(layer, Configuration.along(dimension, degree)) if viewing else ():
                for index in viewing:
                    self.needed(index, box)
        except NotABoxError:
            return False
        return True

    def _joined(self, op: Op, sources: dict[int, int | None], groups: list[list[int]]) -> int | None:
        """The layer whose output is the op's one input, if the op is divided like it; None if the op begins a layer."""
        made = {source for source in sources.values() if source is not None}
        if len(made) != 1:
            return None
        (number,) = made
        name, first = name_of(op), self.graph.ops[groups[number][-1]]
        if name == _LOSS:
            return number if name_of(first) == _SOFTMAX else None
        data = [op.inputs[position] for position in sources]
        if rule_of(op) is None or name in _OWN_LAYERS or len(data) != 1 or data[0].views:
            return None
        return number if data[0].shape == output_of(op).shape == divided_shape(first) else None

    def only_counts(self, op: Op) -> bool:
        """Whether an op only changes a buffer without reading anything else, as batch-norm counts batches."""
        return not op.writes and all(self._is_carried(operand.value) for operand in op.inputs)

    def _is_carried(self, value: str) -> bool:
        return self.graph.values[value].kind in _CARRIED

    def _layers(self, groups: list[list[int]]) -> Iterator[Layer]:
        seen: Counter[str] = Counter()
        for group in groups:
            ops = [index for index in group if not self.only_counts(self.graph.ops[index])]
            path = self.graph.ops[ops[0]].layer or "model"
            seen[path] += 1
            name = path if seen[path] == 1 else f"{path}#{seen[path]}"
            yield Layer(name, tuple(group), ops[0], divided_shape(self.graph.ops[ops[-1]]))


def _divisors(extent: int, most: int) -> list[int]:
    """The degrees that divide an extent, at most `most`. An empty dimension, as of an empty cache, has the degree 1 alone."""
    return [d for d in range(1, max(1, min(extent, most)) + 1) if extent % d == 0]
