"""A back-propagation scan over a chain of layers as tasks of a plan, one per product. The Jacobians differ in shape and pattern.

The layers may be on several devices. An element is on the device of the last layer that it spans, which computes it; operands from other
devices are sent there for one product. So a device stores one element for each of its layers and receives a small number at a time, however
many devices there are (the paper, section 3.6).
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from simulator.engine.collectives.tasks import Sender
from simulator.model.layers import DX
from simulator.plan.bodies.csr.product import Recipe
from simulator.plan.bodies.csr.rules import LinearRule, Rule
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.scan import Full, Gradient, JacobianProduct, JacobianValues, shape
from simulator.plan.task import PARAMETER, SCRATCH, TRANSFER, Body, Operand, Task
from simulator.plan.tensors import contiguous, transposed, viewed
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.scan.algorithm import exclusive_scan, full_level
from simulator.strategies.scan.jacobian_of import jacobian_of
from traces.errors import Code, SchedcastError


def reshaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """`operand` viewed in `shape`. Raises RuntimeError if `Tensor.view` does not allow it without a copy."""
    if shape == operand.shape:
        return operand
    strides = _view_strides(operand.shape, operand.strides, shape)
    return viewed(operand, shape, strides, "aten.view.default", list(shape))


def _view_strides(old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    return torch.empty_strided(old, strides, device="meta").view(new).stride()


#: Capture's name for the layer of the loss, whose ops compute the chain's first gradient.
_LOSS = "loss"
#: View steps that keep the order of a sample's elements.
_RESHAPES = frozenset(f"aten.{name}.default" for name in ("view", "_unsafe_view", "unsqueeze")) | {"aten.squeeze.dim", "aten.squeeze.dims"}


@dataclass(frozen=True)
class Link:
    """One op of the chain: it computes `result`, the gradient by an activation, from `gradient`, that by the next activation.

    `rule`: the rule of its transposed Jacobian. `reads`: the operands from which the Jacobian's values are computed.
    """

    task: Task
    gradient: Operand
    result: Operand
    rule: Rule
    reads: tuple[Operand, ...]


def layer_chain(build: PlanBuilder, backward: Sequence[Task]) -> list[Link]:
    """The links in the order of the backward pass. Ops before the first one with a Jacobian rule compute the chain's first gradient.

    Raises SchedcastError if there is no op with a rule, if an op after the first link has no rule, or if gradients branch or meet.
    """
    gradients = {operand.value for task in backward for operand in task.writes}
    origin = {task.writes[0].value: task.reads[0].value for task in backward if task.phase == TRANSFER}
    links: list[Link] = []
    refusals: list[SchedcastError] = []
    for task in backward:
        index, role = build.served.get(task.name, (0, ""))
        if role != DX:
            continue
        read = [operand for operand in task.reads if operand.value in gradients]
        if links:
            _check_continuation(task, [replace(o, value=origin.get(o.value, o.value)) for o in read], links[-1])
        op = build.graph.ops[index]
        try:
            rule, reads = jacobian_of(op, build.graph)
        except SchedcastError as error:
            if links:
                raise SchedcastError(f"bppsa: {error}", Code.MODEL) from error
            refusals += [error] if task.layer != _LOSS else []
            continue
        links.append(Link(task, read[0], task.writes[0], rule, tuple(task.inputs[op.inputs.index(operand)] for operand in reads)))
    if not links:
        reason = refusals[-1] if refusals else "the model is a single layer; expected a chain of at least two"
        raise SchedcastError(f"bppsa: {reason}", Code.MODEL)
    return links


def _check_continuation(task: Task, read: Sequence[Operand], last: Link) -> None:
    """Raise SchedcastError if `read`, the gradients that a task reads, is not just the result of the last link in unchanged order."""
    if len(read) != 1 or read[0].value != last.result.value:
        raise SchedcastError(
            f"bppsa: gradients branch or meet at {task.name}; expected a chain of layers, each read by the next alone", Code.MODEL
        )
    if not all(view.target in _RESHAPES for view in read[0].views):
        raise SchedcastError(
            f"bppsa: the gradient is rearranged before {task.name}; expected layers that keep the order of elements", Code.MODEL
        )


#: A product of sparse matrices with at least this fraction of nonzero entries is stored as a full matrix, whose products are faster.
FULL_FROM = 0.25
#: Most terms in a product of sparse Jacobians. The lists of index pairs take 8 bytes per term.
MOST_TERMS = 2**27
#: Bytes of indices per entry: column and source as int32, for the task of the values and again for that of the products.
_INDEX_BYTES = 16
_CLONE = OpCall("aten.clone.default", '[{"$":0}]', '{"memory_format":{"memory_format":"contiguous_format"}}')


@dataclass(frozen=True)
class _Element:
    """An element of the scan: the gradient (number 0), a link's transposed Jacobian, or the product of the elements `first` to `last`.

    `form`: the matrix format of `operand`. `samples`: its number of samples. `lane`: the worker that has it.
    """

    form: Recipe | Full | Gradient
    operand: Operand
    samples: int
    lane: int
    first: int
    last: int


class LayerScan:
    """The chain of one microbatch's backward tasks, all of whose layers are scanned."""

    not_scanned: tuple[str, ...] = ()

    def __init__(
        self, build: PlanBuilder, backward: Sequence[Task], jacobian: str, most_terms: int = MOST_TERMS, sender: Sender | None = None
    ):
        """`jacobian`: dense, csr or auto. `sender`: for layers on several devices. Raises SchedcastError if backward is not a chain."""
        self._build, self._backward, self._jacobian, self._most_terms = build, backward, jacobian, most_terms
        self._sender = sender
        self._copies: dict[tuple[str, str], str] = {}
        self._links = layer_chain(build, backward)
        self._seed = self._links[0].gradient
        self._samples = self._seed.shape[0]
        self._tasks: list[Task] = []
        self._workers = 1
        self.elements = len(self._links) + 1

    @property
    def full_level(self) -> int:
        """Level of Blelloch's scan."""
        return full_level(self.elements)

    @property
    def jacobian_bytes(self) -> int:
        """Bytes of all Jacobians on one device and of the index arrays of sparse ones, without products and Jacobians that are a weight.

        Of several devices, the one with the most counts.
        """
        total: Counter[str] = Counter()
        for link in self._links:
            if not _is_weight(link):
                total[link.task.device] += prod(self._shape(link)) * self._seed.bytes // self._seed.elements
                total[link.task.device] += 0 if isinstance(self._form(link), Full) else _INDEX_BYTES * link.rule.nnz
        return max(total.values(), default=0)

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(tasks of the Jacobians, backward tasks with those of the chain replaced by the scan), in issue order."""
        self._tasks, self._workers, self._copies = [], workers, {}
        jacobians = [self._jacobian_of(number, link) for number, link in enumerate(self._links, start=1)]
        value_tasks, self._tasks = self._tasks, []
        prefixes = exclusive_scan([self._gradient(), *jacobians], level, self._product)
        links = {link.task.name: link for link in self._links}
        others = [task for task in self._backward if task.name not in links]
        wanted = {operand.value for task in others if task.phase != TRANSFER for operand in task.inputs}
        unused = {task.name for task in others if task.phase == TRANSFER and task.writes[0].value not in wanted}
        read = {operand.value for task in others if task.name not in unused for operand in task.inputs}
        results = {link.task.name: element for link, element in zip(self._links, prefixes[1:], strict=True) if link.result.value in read}
        scan = _needed(self._tasks, {element.operand.value for element in results.values()})
        used = {operand.value for task in scan for operand in task.inputs}
        backward: list[Task] = []
        for task in self._backward:
            if task.name == self._links[0].task.name:
                backward += scan
            if task.name in results:
                backward.append(_original_result(links[task.name], results[task.name]))
            elif task.name not in links and task.name not in unused:
                backward.append(task)
        return [task for task in value_tasks if task.writes[0].value in used], backward

    def _form(self, link: Link) -> Recipe | Full:
        dense = self._jacobian == "dense" or _is_weight(link)
        return Full(link.rule.rows, link.rule.cols) if dense else link.rule

    def _samples_of(self, link: Link) -> int:
        """Number of samples in the values of a link's Jacobian; 1 if all samples share them."""
        return 1 if link.rule.shared else self._samples

    def _shape(self, link: Link) -> tuple[int, ...]:
        return shape(self._form(link), self._samples_of(link))

    def _jacobian_of(self, number: int, link: Link) -> _Element:
        """The Jacobian of a link; that of a linear layer is its weight. Each worker has successive links."""
        lane = (number - 1) * self._workers // len(self._links)
        form, samples = self._form(link), self._samples_of(link)
        if _is_weight(link):
            return _Element(form, transposed(link.reads[0]), samples, lane, number, number)
        jacobian = self._scratch(f"{link.task.name}/jacobian", self._shape(link), link.result.dtype, link.task)
        body = JacobianValues(link.rule, full=isinstance(form, Full))
        self._add(link.task, "jacobian", body, lane, link.reads, jacobian)
        return _Element(form, jacobian, samples, lane, number, number)

    def _gradient(self) -> _Element:
        """The gradient at the start of the chain, with one column per sample."""
        rows = self._seed.elements // self._samples
        gradient = self._scratch(f"{self._links[0].task.name}/first", (rows, self._samples), self._seed.dtype, self._links[0].task)
        flat = reshaped(self._seed, (self._samples, rows))
        self._add(self._links[0].task, "first", _CLONE, 0, (transposed(flat),), gradient)
        return _Element(Gradient(rows), gradient, self._samples, 0, 0, 0)

    def _product(self, later: _Element, earlier: _Element) -> _Element:
        """The product of two elements, computed by the worker of the later one."""
        body, samples = self._body(later, earlier), max(later.samples, earlier.samples)
        name, like = f"product{earlier.first}-{later.last}", self._links[later.last - 1].task
        product = self._scratch(f"{like.name}/{name}", shape(body.result, samples), earlier.operand.dtype, like)
        self._add(like, name, body, later.lane, (later.operand, self._brought(earlier.operand, like)), product)
        return _Element(body.result, product, samples, later.lane, earlier.first, later.last)

    def _scratch(self, name: str, shape: tuple[int, ...], dtype: str, like: Task) -> Operand:
        return self._build.tensors.scratch(name, shape, dtype, like.device)

    def _brought(self, operand: Operand, to: Task) -> Operand:
        """The operand on the device of a task, sent there once if it is on another one."""
        held = self._build.tensors.values[operand.value]
        if held.device == to.device:
            return operand
        assert self._sender is not None  # otherwise all are on one device
        copy = self._copies.get((held.name, to.device))
        if copy is None:
            copy = self._copies[held.name, to.device] = f"{to.name}/{held.name}@{to.device}"
            sent = self._build.tensors.add(replace(held, name=copy, device=to.device, storage=copy, kind=SCRATCH, source=None))
            name, changed = f"send {copy}", held.kind == PARAMETER
            microbatch = self._links[0].task.microbatch
            reads, writes = (held.operand(),), (sent.operand(),)
            self._tasks.append(self._sender.send(name, held.device, to.device, reads, writes, changed=changed, microbatch=microbatch))
        return replace(operand, value=copy)

    def _body(self, later: _Element, earlier: _Element) -> JacobianProduct:
        """The body of a product; one of sparse matrices is stored as a full matrix if that is faster."""
        assert not isinstance(later.form, Gradient)  # the scan begins with it
        body = JacobianProduct(later.form, earlier.form)
        pattern = body.sparse
        if pattern is None:
            return body
        if pattern.terms > self._most_terms:
            raise SchedcastError(
                f"bppsa: a product of sparse Jacobians from {self._links[later.last - 1].task.name} on has {pattern.terms} terms;"
                f" expected at most {self._most_terms}; choose a lower level",
                Code.MODEL,
            )
        if self._jacobian == "csr":
            return body
        return replace(body, full=pattern.nnz >= FULL_FROM * pattern.rows * pattern.cols)

    def _add(self, like: Task, name: str, body: Body, lane: int, reads: Sequence[Operand], result: Operand) -> None:
        self._tasks.append(replace(like, name=f"{like.name}/{name}", body=body, stream=lane, reads=tuple(reads), writes=(result,)))


def _original_result(link: Link, element: _Element) -> Task:
    """The task that writes the result of the link's op from an element of the scan, in the original layout (one sample after another)."""
    plain = link.result.strides == contiguous(link.result.shape)
    kwargs = json.dumps({"memory_format": {"memory_format": "contiguous_format" if plain else "channels_last"}}, separators=(",", ":"))
    reads = (reshaped(transposed(element.operand), link.result.shape),)
    return replace(link.task, body=replace(_CLONE, kwargs=kwargs), reads=reads, stream=0)


def _is_weight(link: Link) -> bool:
    return isinstance(link.rule, LinearRule) and link.rule.mask is None


def _needed(tasks: Sequence[Task], wanted: set[str]) -> list[Task]:
    """The tasks that contribute to the `wanted` values, in order."""
    needed = []
    for task in reversed(tasks):
        if task.writes[0].value in wanted:
            needed.append(task)
            wanted = wanted | {operand.value for operand in task.inputs}
    return needed[::-1]
