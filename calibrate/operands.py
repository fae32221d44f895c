"""Random operands for timing one task: floats from a normal distribution, integers in the range that the op accepts; never zeros.

Some ops need more: indices in range, masks that select as many elements as expected. A recurrent layer repeats a product T times; its
operands are so small that neither states nor gradients overflow.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch

from executors.binding import op_tasks
from simulator.model.ops.aten_json import resolve
from simulator.plan.bodies.op_class import op_class
from simulator.plan.ops import row
from simulator.plan.plan import Plan
from simulator.plan.task import OPTIMIZER_STATE, Operand, Task, Value

#: The arguments of an op by the names of its schema, and its results by the name "". A tensor is its `Operand`.
Arguments = dict[str, Any]


class Elements(NamedTuple):
    """The elements of an operand.

    Integers are at least 0, less than `below`, and in order if they are `increasing` from 0. `total`: the sum of all elements, of whatever
    type, and so the number of those that a mask selects; None if it does not matter. `ends`: of equal groups of this many rows, in order;
    0: they are not ends.
    """

    below: int = 2
    increasing: bool = False
    total: float | None = None
    ends: int = 0


#: Pairs of an operand and what its elements are.
Indices = list[tuple[Operand, Elements]]


def elements_of(task: Task) -> dict[str, Elements]:
    """By value that the task reads or changes, what its elements must be."""
    known: dict[str, Elements] = {}
    for op in op_tasks(task):
        for operand, elements in _indices(op) if op.body.op else ():
            former = known.get(operand.value, elements)
            known[operand.value] = former if former.total is not None else min(elements, former, key=lambda each: each.below)
    return {operand.value: known.get(operand.value, Elements()) for operand in task.inputs}


def _arguments(op: Task) -> Arguments:
    """The arguments of an op, without those that are not given and have defaults."""

    def placed(item: Any) -> Any:
        if isinstance(item, list):
            return [placed(i) for i in item]
        return op.inputs[item["$"]] if isinstance(item, dict) and "$" in item else item

    names = (argument.name for argument in resolve(op.body.target)._schema.arguments)
    given = dict(zip(names, placed(json.loads(op.body.args)), strict=False))
    return given | {name: placed(item) for name, item in json.loads(op.body.kwargs).items()} | {"": op.writes}


def _indices(op: Task) -> Iterator[tuple[Operand, Elements]]:
    """What the operands of an op must hold, by its row in the table of ops."""
    holds = row(op.body.op).holds
    given = _arguments(op) if holds else {}
    if holds in _RULES:
        yield from _RULES[holds](given)
        return
    for term in filter(None, holds.split(", ")):
        match = _TERM.fullmatch(term)
        assert match is not None, f"a row says that {op.body.op} holds {term!r}"
        how, name, extent = match.groups()
        sized = _extent(given, extent)
        elements = {"sum": Elements(total=sized), "ends": Elements(ends=sized)}.get(how, Elements(sized, increasing=how == "sorted"))
        operands = given[name] if isinstance(given[name], list) else [given[name]]
        yield from ((operand, elements) for operand in operands)


#: A term of `holds` of a row of the table of ops: `sum self = result[0]`, `index < self[dim]`, `sorted offsets < indices`.
_TERM = re.compile(r"(?:(sum|ends|sorted) )?(\w+) [<=] (\w+(?:\[[\w:-]+\])?)")


def _extent(given: Arguments, text: str) -> int:
    """The extent that a term states: that of a tensor in a dimension, the number of its elements, or an argument that is a number."""
    name, _, dim = text.rstrip("]").partition("[")
    stated = given[""][0] if name == "result" else given[name]
    if not isinstance(stated, Operand):
        return stated
    shape = stated.shape
    if dim.endswith(":"):
        return prod(shape[int(dim[:-1]) :])
    if not dim or not shape:
        return prod(shape)
    return shape[: int(dim) + 1][-1] if dim.isdecimal() else shape[given[dim]]


def _of_list(given: Arguments) -> Indices:
    """Indexing by a list: each index is one into the dimension at its place.

    A mask selects as many elements as the op returns or writes.
    """
    shape, chosen, dim = given["self"].shape, given["values"].shape if "values" in given else given[""][0].shape, 0
    indices = []
    for index in given["indices"]:
        masks = index is not None and index.dtype in ("bool", "uint8")
        if masks:
            indices.append((index, Elements(total=chosen[dim] if dim < len(chosen) else 1)))
        elif index is not None:
            indices.append((index, Elements(shape[dim])))
        dim += len(index.shape) if masks else 1
    return indices


def _masked(given: Arguments) -> Indices:
    """Selection by a mask, which may be repeated along dimensions, or its reverse, with as many elements at least."""
    mask, selected = given["mask"], prod((given["source"] if "source" in given else given[""][0]).shape)
    repeated = prod(max(pair) for pair in zip_longest(given["self"].shape[::-1], mask.shape[::-1], fillvalue=1)) // max(1, prod(mask.shape))
    return [(mask, Elements(total=selected // max(1, repeated)))]


def _of_groups(given: Arguments) -> Indices:
    """Products of groups of rows: [R, K] x [G, K, N], or [K, R] x [R, N] in the gradient of the matrices."""
    if given.get("offs") is None:
        return []
    rows = given["self"].shape[0 if len(given["mat2"].shape) == 3 else 1]
    return [(given["offs"], Elements(ends=rows))]


#: The rules of rows whose `holds` is one word.
_RULES: dict[str, Callable[[Arguments], Indices]] = {"indexed": _of_list, "masked": _masked, "groups": _of_groups}


#: Optimizer states that are sums of squares, which are never negative.
_SQUARES = frozenset({"sum", "square_avg", "acc_delta", "exp_avg_sq"})

RECTIFIED = "rectified"
#: Uniform within 1 / sqrt(last extent) of zero, as PyTorch initializes the weights of recurrent layers; states are then in (-1, 1).
BOUNDED = "bounded"


class OperandPool:
    """Tensors by geometry, shared between keys so that calibrating a large plan takes little memory.

    A tensor that a task changes in place is never shared with one that tasks only read.
    """

    def __init__(self, seed: int = 0, device: torch.device | str = "cpu"):
        self._tensors: dict[tuple, torch.Tensor] = {}
        self._device = torch.device(device)
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def tensor(self, value: Value, elements: Elements, role: str, number: int = 0) -> torch.Tensor:
        """A tensor with the value's geometry and such `elements`; floats are random unless their total is given.

        `number` distinguishes tensors that one task uses together.
        """
        key = (value.shape, value.strides, value.dtype, elements, role, number)
        if key not in self._tensors:
            self._tensors[key] = self._make(value, elements, role)
        return self._tensors[key]

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())

    def _make(self, value: Value, elements: Elements, role: str) -> torch.Tensor:
        dtype = getattr(torch, value.dtype)
        tensor = torch.empty_strided(value.shape, value.strides, dtype=dtype, device=self._device)
        if elements.total is not None:
            return _with_total(tensor, elements.total)
        if role == "step":  # a count: with a negative one the bias correction would be complex
            return tensor.fill_(10)
        if dtype.is_floating_point or dtype.is_complex:
            if role == BOUNDED:
                bound = value.shape[-1] ** -0.5
                return tensor.uniform_(-bound, bound, generator=self._generator)
            tensor.normal_(generator=self._generator)
            return tensor.abs_() if role == "squares" else tensor.relu_() if role == RECTIFIED else tensor
        if dtype == torch.bool:
            return tensor.bernoulli_(0.5, generator=self._generator)
        if elements.ends:
            return tensor.copy_((torch.arange(1, tensor.numel() + 1) * elements.ends // tensor.numel()).view(value.shape))
        if elements.increasing:
            return tensor.copy_((torch.arange(tensor.numel()) * elements.below // max(1, tensor.numel())).view(value.shape))
        return tensor.random_(0, max(1, elements.below), generator=self._generator)


def _with_total(tensor: torch.Tensor, total: float) -> torch.Tensor:
    """Fill a tensor so that its sum is `total`, as evenly as its type allows."""
    count = max(1, tensor.numel())
    ends = (torch.arange(count + 1, dtype=torch.float64) * total / count).round() if not tensor.is_floating_point() else None
    shares = ends.diff() if ends is not None else torch.full((count,), total / count)
    return tensor.copy_(shares[: tensor.numel()].view(tensor.shape))


def geometries(task: Task, plan: Plan) -> dict[str, tuple]:
    """By value, what identifies the pooled tensor of an operand: geometry, role, and its number among operands that share both."""
    changed, non_negative = {operand.value for operand in task.mutates}, rectified(plan)
    recurrent = any(op_class(op.body.target) == "recurrent" for op in op_tasks(task))
    seen: dict[tuple, int] = {}
    geometry_of: dict[str, tuple] = {}
    for name in dict.fromkeys(operand.value for operand in task.inputs):
        value = plan.values[name]
        like = (value.shape, value.strides, value.dtype, BOUNDED if recurrent else _role(value, name in changed, name in non_negative))
        geometry_of[name] = (*like, seen.setdefault(like, 0))
        seen[like] += 1
    return geometry_of


def rectified(plan: Plan) -> set[str]:
    """Values that are a ReLU's result. A max-pool takes less time on them than on normal numbers, since its branches are predictable."""
    tasks = [task for task in plan.tasks if row(getattr(task.body, "target", "")).rectifies]
    return {operand.value for task in tasks for operand in (*task.writes, *task.mutates)}


def _role(value: Value, changed: bool, non_negative: bool) -> str:
    name = value.name if value.source is None else value.source.value  # as the job calls it: pieces and copies have different names
    state = name.partition("::")[2] if value.kind == OPTIMIZER_STATE else ""
    if state == "step":
        return "step"
    return "squares" if state in _SQUARES else "changed" if changed else RECTIFIED if non_negative else "read"


def fill(task: Task, plan: Plan, pool: OperandPool, cuda: bool = False) -> dict[str, torch.Tensor]:
    """A tensor for every value that the task reads or changes.

    With `cuda`, saved statistics of norms are float32 even if the plan, whose graph is captured on the CPU, has them in half precision.
    """
    elements, statistics = elements_of(task), saved_statistics(task) if cuda else frozenset()

    def value(name: str) -> Value:
        own = plan.values[name]
        return replace(own, dtype="float32") if name in statistics and own.dtype in ("bfloat16", "float16") else own

    return {name: pool.tensor(value(name), elements[name], role, number) for name, (*_, role, number) in geometries(task, plan).items()}


def saved_statistics(task: Task) -> frozenset[str]:
    """The values that a norm's backward op reads as the statistics of its forward op."""
    names = set()
    for op in op_tasks(task):
        positions = row(op.body.target).statistics
        arguments = json.loads(op.body.args) if positions else ()
        names |= {op.inputs[arguments[p]["$"]].value for p in positions if arguments[p] is not None}
    return frozenset(names)
