"""The training graph: the ops of one training step in program order, as plain data without torch."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from simulator.plan.bodies.opcall import CAST, OpCall
from simulator.plan.json import LARGEST_STORAGE, body_faults, geometry_faults, operand_faults
from simulator.plan.task import AGAIN, BACKWARD, FORWARD, INPUT, KINDS, PARAMETER, Operand, Value
from traces.errors import UnusableFileError
from traces.files import first_fault

#: The op that checks a number on which the course of the step depends.
CHECK = "schedcast.expect.default"


@dataclass(frozen=True, slots=True)
class Op:
    """One aten op of the step.

    `layer` is the module path of the forward op (for a backward op: of the forward op it serves). `gradient` is "dX", "dW" or "dB" for a
    backward op, by the gradients that depend on its results, and "" for a forward op; it is "dX" for one that repeats a forward op.
    `view_calls`: calls that made views since the op before, which are no ops here. Field names are those of Task, so that bodies can read
    both.
    """

    name: str
    body: OpCall
    phase: str
    layer: str = ""
    gradient: str = ""
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()
    view_calls: int = 0

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`, as in Task."""
        return self.reads + self.mutates


def arguments_of(op: Op) -> list:
    """The op's positional arguments. A tensor is {"$": its position among the inputs}."""
    return list(_parsed(op.body.args))


def named_arguments_of(op: Op) -> dict[str, Any]:
    """The op's named arguments."""
    return dict(_parsed(op.body.kwargs))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """The same list, or mapping, for the same text: do not change it, nor what is in it."""
    return json.loads(text)


#: Losses that may be means, the number of `reduction="mean"` in their arguments, and the `ignore_index` that they have by default.
NLL_MEANS, _MEAN, _SKIPPED = frozenset({"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"}), 1, -100


@dataclass(frozen=True, slots=True)
class Count:
    """How the number is made that the parts' losses of a batch are divided by (`simulator.model.whole_mean`).

    `ops` make `counted` of a part's inputs. `of_batch` makes the number of the sum of that over all parts; each call has one tensor.
    """

    ops: tuple[Op, ...]
    counted: Operand
    of_batch: tuple[OpCall, ...]


@dataclass(frozen=True)
class TrainingGraph:
    """Forward, loss and backward of one (micro-)batch; strategies add the updates.

    `values` holds every tensor; their `device` is empty, because a plan places them. `parameters` are the trainable ones that receive a
    gradient, in module order. `layers` maps each parameter to the module that owns it. `gradients` maps a parameter to the operand with its
    gradient, which has the parameter's strides and a separate storage. `constants` has the tensors that the model stores outside its
    parameters and buffers, as texts (`simulator.model.ops.aten_json`). `assumptions`: what is assumed of values that shapes depend on; a
    graph that assumes something is predicted, and cannot run. `draws`: how often the step draws random numbers, for results that nothing
    needs as well. `checkpoint`: how much of the forward the backward repeats (`simulator.model.checkpoint`), in words; empty for nothing.
    `taken`: assumptions about what the user has not specified, in words; such a graph can run. `counts`: by value that no op makes, and
    that is one for all parts of a batch, how it is counted.

    >>> from simulator.model.job import Job
    >>> graph = Job("lenet5", batch=64).graph()
    >>> [(op.name, op.gradient) for op in graph.ops if op.layer == "classifier.4"]
    [('classifier.4/addmm', ''), ('classifier.4/mm.dX', 'dX'), ('classifier.4/mm.dW', 'dW'), ('classifier.4/sum.dB', 'dB')]
    """

    batch: int
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    storage_bytes: Mapping[str, int]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    layers: Mapping[str, str]
    gradients: Mapping[str, Operand]
    loss: str
    constants: Mapping[str, str] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    draws: int = 0
    checkpoint: str = ""
    taken: tuple[str, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer, consumer) of op indices: the data flow through storages, including in-place changes."""
        last_writer: dict[str, int] = {}
        edges: set[tuple[int, int]] = set()
        for index, op in enumerate(self.ops):
            for operand in op.inputs:
                producer = last_writer.get(self.values[operand.value].storage)
                if producer is not None:
                    edges.add((producer, index))
            for operand in (*op.writes, *op.mutates):
                last_writer[self.values[operand.value].storage] = index
        return tuple(sorted(edges))

    @cached_property
    def repeats(self) -> dict[int, int]:
        """By index of an op that runs again in backward, the index of the one that runs in forward."""
        if not self.checkpoint:
            return {}
        number_of = {op.name: index for index, op in enumerate(self.ops)}
        return {index: number_of[op.name.replace(AGAIN, "")] for index, op in enumerate(self.ops) if AGAIN in op.name}

    @cached_property
    def gradient_ops(self) -> dict[str, int]:
        """The index of the op that completes the gradient, by parameter."""
        owner = {self.values[o.value].storage: parameter for parameter, o in self.gradients.items()}
        last: dict[str, int] = {}
        for index, op in enumerate(self.ops):
            for operand in (*op.writes, *op.mutates):
                parameter = owner.get(self.values[operand.value].storage)
                if parameter is not None:
                    last[parameter] = index
        return last

    @cached_property
    def weights(self) -> frozenset[str]:
        """The values that are parameters, and those that autocast made of parameters by casting them."""
        parameters = {name for name, value in self.values.items() if value.kind == PARAMETER}
        casts = (self.ops[index] for index in self.casts)
        return frozenset(parameters | {op.writes[0].value for op in casts if op.phase == FORWARD})

    @cached_property
    def casts(self) -> dict[int, str]:
        """By index of an op that casts a parameter, the parameter."""
        casts = ((index, op.reads[0].value) for index, op in enumerate(self.ops) if op.body.target == CAST)
        return {index: name for index, name in casts if self.values[name].kind == PARAMETER}

    @cached_property
    def uneven(self) -> tuple[str, bool]:
        """Which targets make the loss a mean over another number of them than the batch has, and whether that is certain.

        Empty if the loss has no such mean. Not certain: a sample has many targets, of which those of -100 are skipped, PyTorch's default.
        """
        said = list(self.uneven_ops.values())
        return next((each for each in said if each[1]), said[-1] if said else ("", False))

    @cached_property
    def uneven_ops(self) -> dict[int, tuple[str, bool]]:
        """The ops of forward that make such means, and what `uneven` says of each."""
        means: dict[int, tuple[str, bool]] = {}
        made_of: dict[str, set[str]] = {}  # storage -> kinds of what it is computed from
        for index, op in enumerate(self.ops):
            if op.phase != FORWARD:
                break
            kinds = [made_of.get(storage) or {self.values[storage].kind} for storage in (self.values[o.value].storage for o in op.inputs)]
            for operand in (*op.writes, *op.mutates):
                made_of.setdefault(self.values[operand.value].storage, set()).update(*kinds)
            is_ratio = op.body.target == "aten.div.Tensor" and [operand.shape for operand in op.reads] == [(), ()]
            if is_ratio and INPUT in kinds[1] and PARAMETER not in kinds[1]:
                means[index] = "what the batch says does not count", True
            if op.body.target in NLL_MEANS:
                _, _, weights, reduction, skipped = _parsed(op.body.args)
                if reduction == _MEAN and weights is not None:
                    means[index] = "classes have weights", True
                elif reduction == _MEAN and skipped != _SKIPPED:
                    means[index] = f"targets of {skipped} are skipped", True
                elif reduction == _MEAN and math.prod(op.reads[1].shape) > self.batch:
                    means[index] = f"targets of {skipped}, if there are any, are skipped", False
        return means

    @property
    def backward_ops(self) -> tuple[Op, ...]:
        """Ops of the backward phase."""
        return tuple(op for op in self.ops if op.phase == BACKWARD)


@cache
def _adapter() -> TypeAdapter:
    return TypeAdapter(TrainingGraph)


def dump(graph: TrainingGraph) -> Any:
    """The graph as JSON data."""
    return _adapter().dump_python(graph, mode="json")


def load(document: Any) -> TrainingGraph:
    """The graph that `dump` wrote. Raises UnusableFileError for any other document."""
    try:
        graph = _adapter().validate_python(document)
    except ValidationError as error:
        raise UnusableFileError(f"the captured graph is damaged {first_fault(error)}; capture it again") from error
    for fault in _faults(graph):
        raise UnusableFileError(f"the captured graph is damaged: {fault}; capture it again")
    return graph


def _faults(graph: TrainingGraph) -> Iterator[str]:
    """Faults that the types alone do not exclude."""
    for name, value in graph.values.items():
        if value.name != name or value.kind not in KINDS or value.storage not in graph.storage_bytes:
            yield f"value {name} has another name, an unknown kind or an unknown storage"
        yield from geometry_faults(value, f"value {name}")
    yield from (f"storage {name} has {size} bytes" for name, size in graph.storage_bytes.items() if not 0 <= size <= LARGEST_STORAGE)
    for op in graph.ops:
        if op.phase not in (FORWARD, BACKWARD):
            yield f"op {op.name} has phase {op.phase!r}"
        for operand in (*op.inputs, *op.writes):
            yield from operand_faults(graph.values, operand, f"op {op.name}")
        yield from body_faults(op, f"op {op.name}")
    named = (*graph.inputs, *graph.parameters, graph.loss, *graph.constants)
    yield from (f"{name!r} is not among its values" for name in named if name not in graph.values)
    if set(graph.parameters) != set(graph.gradients) or not set(graph.parameters) <= set(graph.layers):
        yield "its parameters, gradients and layers do not belong together"
    for name, operand in graph.gradients.items():
        yield from operand_faults(graph.values, operand, f"the gradient of {name}")
    names = {op.name for op in graph.ops}
    if graph.batch < 1 or len(names) < len(graph.ops):
        yield "it has no samples, or two ops of one name"
    yield from (f"op {name} repeats an op that is missing" for name in names if name.replace(AGAIN, "") not in names)
