"""Units of sharded parameters: which are gathered together, when, and how their shards lie in one flat tensor.

A unit is a block of the model, as FSDP2 wraps a transformer's blocks; the parameters outside of blocks are units by module. Each parameter
is cut along its first dimension into as many equal parts as there are devices; the last ones may be shorter, or empty (FSDP2,
`fully_shard`: "dim-0 per-parameter sharding"). Fewer experts than devices are cut along their second dimension, as torchtitan does. Under
autocast a unit gathers what its ops read: the cast parameters.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import prod

from simulator.model.division.experts import parameters_of_experts
from simulator.model.graph import TrainingGraph
from simulator.plan.task import BACKWARD, Operand
from simulator.plan.tensors import contiguous, part, seen_as, viewed
from traces.errors import Code, SchedcastError


@dataclass(frozen=True)
class Weight:
    """A parameter in the type in which ops read it. `names`: the values of the graph that it stands in for; `shape` without devices."""

    parameter: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """While a unit is gathered: from its first to its last use among the positions of a step's ops."""

    unit: str
    first: int
    last: int
    backward: bool


#: The unit of the whole model, with what belongs to no other.
ROOT = "root"


def unit_of(path: str, rest: str = "") -> str:
    """The unit of a module path: up to the number of a block, as in `layers.3` of `layers.3.attention.query`; else the first name.

    `rest`: the unit of paths without a block, if that is one.
    """
    names = path.split(".")
    if rest and not any(name.isdecimal() for name in names):
        return rest
    number = next((at for at, name in enumerate(names) if name.isdecimal()), 0)
    return ".".join(names[: number + 1]) or ROOT


class Units:
    """The units of a graph, with what each gathers and where it is used."""

    def __init__(
        self,
        strategy: str,
        graph: TrainingGraph,
        parameters: Sequence[str] = (),
        ops: Collection[int] = (),
        apart: Collection[str] = (),
        whole: bool = False,
        rest: str = "",
    ):
        """`parameters`: those that are in shards; `ops`: those that run where they are gathered (default: all). `apart`: parameters that
        are units by module, such as experts that other devices share than the rest of their block. `whole`: the others are one unit.
        `rest`: the name of one unit for all parameters outside of blocks.

        Raise SchedcastError if the memory of a parameter is not contiguous.
        """
        self.graph, self.trained = graph, tuple(parameters or graph.parameters)
        self._apart, self._experts, self._whole = frozenset(apart), frozenset(parameters_of_experts(graph)), whole
        self._rest = rest
        trained = frozenset(self.trained)
        for name in self.trained:
            value = graph.values[name]
            if value.strides != contiguous(value.shape):
                raise SchedcastError(f"{strategy} cuts contiguous parameters, and {name} is not; use --layout nchw", Code.MODEL)
        #: Ops that only cast a whole parameter: its shards are cast instead.
        self.casts = {
            index: name
            for index, name in graph.casts.items()
            if name in trained and not graph.ops[index].reads[0].views and (not ops or index in ops)
        }
        read = {o.value for index, op in enumerate(graph.ops) if index not in self.casts for o in op.inputs}
        names: dict[tuple[str, str], list[str]] = {(p, graph.values[p].dtype): [p] for p in self.trained if p in read}
        for index, parameter in self.casts.items():
            made = graph.ops[index].writes[0]
            names.setdefault((parameter, made.dtype), []).append(made.value)
        #: By unit, its weights, those of one type in a row.
        self.weights: dict[str, list[Weight]] = {}
        for parameter in self.trained:
            for (own, dtype), stands_for in names.items():
                if own == parameter:
                    weight = Weight(own, dtype, graph.values[own].shape, tuple(stands_for))
                    self.weights.setdefault(self.unit(own), []).append(weight)
        for weights in self.weights.values():
            weights.sort(key=lambda weight: weight.dtype)
        self._unit_of_value = {name: unit for unit, weights in self.weights.items() for weight in weights for name in weight.names}

    def flat(self, parameters: Iterable[str], ranks: int) -> "Flat":
        """How the parts of parameters lie one after another."""
        own = tuple(parameters)
        return Flat(tuple(self.graph.values[name].shape for name in own), ranks, tuple(self.blocks(name, ranks) for name in own))

    def blocks(self, parameter: str, ranks: int) -> int:
        """Of how many blocks a parameter consists, of each of which a device has a part: experts, or those of a product in divided layers.

        0 if it is cut along its first dimension as a whole.
        """
        value = self.graph.values[parameter]
        apart = parameter in self._experts or (value.source is not None and seen_as(value.source) is not None)
        return value.shape[0] if apart and value.shape[0] < ranks and value.shape[1] % ranks == 0 else 0

    def unit(self, parameter: str) -> str:
        """The unit of a parameter."""
        path = self.graph.layers[parameter]
        return path if parameter in self._apart else "model" if self._whole else unit_of(path, self._rest)

    @property
    def unit_of(self) -> dict[str, str]:
        """The unit of each trained parameter."""
        return {name: self.unit(name) for name in self.trained}

    @cached_property
    def apart(self) -> frozenset[str]:
        """The units of parameters that are units by module."""
        return frozenset(self.graph.layers[name] for name in self._apart)

    @cached_property
    def parameters(self) -> dict[str, list[str]]:
        """By unit, its trained parameters."""
        units: dict[str, list[str]] = {}
        for name in self.trained:
            units.setdefault(self.unit(name), []).append(name)
        return units

    @cached_property
    def completed(self) -> dict[int, list[str]]:
        """By op, the units whose gradients nothing uses after it."""
        owner = {self.graph.values[o.value].storage: self.unit(name) for name, o in self.graph.gradients.items()}
        last: dict[str, int] = {}
        for index, op in enumerate(self.graph.ops):
            for operand in (*op.inputs, *op.writes):
                unit = owner.get(self.graph.values[operand.value].storage)
                if unit is not None:
                    last[unit] = index
        return {index: [unit for unit, at in last.items() if at == index] for index in sorted(set(last.values()))}

    def spans(self, microbatches: int, reshard: bool) -> list[Span]:
        """When each unit is gathered, in order, if a device runs the graph for this many microbatches.

        With `reshard`, it is gathered for each forward and each backward, but once for both if no other unit is used in between.
        """
        ops, count = self.graph.ops, len(self.graph.ops)
        phases: dict[str, list[list[int]]] = {}  # by unit and phase, the positions of its uses
        for index, op in enumerate(ops):
            for unit in (
                {self._unit_of_value[o.value] for o in op.inputs if o.value in self._unit_of_value} if index not in self.casts else ()
            ):
                phases.setdefault(unit, [[], []])[op.phase == BACKWARD].append(index)
        if not reshard:
            end = (microbatches - 1) * count
            spans = [
                Span(unit, min(forward + backward), end + max(forward + backward), False) for unit, (forward, backward) in phases.items()
            ]
            return sorted(spans, key=lambda span: span.first)
        first_backward = min((uses[1][0] for uses in phases.values() if uses[1]), default=count)
        spans = []
        for unit, (forward, backward) in phases.items():
            others = (at for other, uses in phases.items() if other != unit for at in (*uses[0], *uses[1]))
            joined = forward and backward and not any(forward[-1] < at < backward[0] for at in others)
            for own in [[*forward, *backward]] if joined else filter(None, (forward, backward)):
                spans.append(Span(unit, own[0], own[-1], own[0] >= first_backward))
        spans.sort(key=lambda span: span.first)
        return [
            Span(span.unit, span.first + m * count, span.last + m * count, span.backward) for m in range(microbatches) for span in spans
        ]


@dataclass(frozen=True)
class Flat:
    """How the parts of several tensors lie one after another: equal parts of each for each of `ranks` devices, padded where it ends.

    `blocks`: of how many blocks each consists, of which a device has a part of each (`Units.blocks`).
    """

    shapes: tuple[tuple[int, ...], ...]
    ranks: int
    blocks: tuple[int, ...]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Elements of a device's part of each tensor."""
        return tuple(
            prod(shape) // self.ranks if blocks else rows(shape, self.ranks) * prod(shape[1:])
            for shape, blocks in zip(self.shapes, self.blocks, strict=True)
        )

    @property
    def length(self) -> int:
        """Elements of a device's parts together."""
        return sum(self.lengths)

    def part_of(self, operand: Operand, number: int) -> Operand:
        """The part of tensor `number` in an operand of one dimension, or of two whose rows have the parts of one device each."""
        first = sum(self.lengths[:number])
        return part(operand, first, first + self.lengths[number], dim=len(operand.shape) - 1)


def rows(shape: tuple[int, ...], ranks: int) -> int:
    """Entries along the first dimension that a device has at most; 1 of a scalar."""
    return -(-(shape[0] if shape else 1) // ranks)


def shaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """A contiguous operand seen with another shape of as many elements."""
    if operand.shape == shape:
        return operand
    return viewed(operand, shape, contiguous(shape), "aten.view.default", list(shape))


def without_padding(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """A tensor of `shape` in a contiguous operand that has more entries along the first dimension."""
    if not shape:
        return shaped(part(shaped(operand, (operand.elements,)), 0, 1), ())
    inner = prod(shape[1:])
    return part(shaped(operand, (operand.elements // inner if inner else shape[0], *shape[1:])), 0, shape[0])


def by_dtype(weights: Iterable[Weight]) -> Mapping[str, Sequence[Weight]]:
    """Weights by their type, in which they are gathered together."""
    return {dtype: tuple(own) for dtype, own in groupby(weights, key=lambda weight: weight.dtype)}
