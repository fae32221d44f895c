"""A back-propagation scan over a chain of layers, whose Jacobians differ in shape and pattern, as tasks of a plan: one a product."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from simulator.bodies.csr.product import ProductPattern, Recipe
from simulator.bodies.csr.rules import LinearRule
from simulator.bodies.jacobian_product import Full, Gradient, JacobianProduct, shape
from simulator.bodies.jacobian_values import JacobianValues
from simulator.bodies.opcall import OpCall
from simulator.build import PlanBuilder
from simulator.plan.task import Body, Operand, Task
from simulator.plan.views import contiguous, transposed
from simulator.scan.algorithm import exclusive_scan, full_level
from simulator.scan.chain import Link, layer_chain
from simulator.scan.shapes import shaped
from traces.errors import StepcastError

#: A product of sparse matrices with at least this share of entries is kept as a full one, which batched products are faster at.
FULL_FROM = 0.25
#: The lists of what is multiplied with what take 8 bytes a term.
MOST_TERMS = 2**27
#: Column and source of an entry, int32, for the values' task and again for the products'.
_INDEX_BYTES = 16
_CLONE = OpCall("aten.clone.default", '[{"$":0}]', '{"memory_format":{"memory_format":"contiguous_format"}}')


@dataclass(frozen=True)
class _Element:
    """The gradient, a link's transposed Jacobian, or a product: of the links `first` to `last`, the gradient being number 0.

    `operand` is in `form`; `lane`: the worker that has it.
    """

    form: Recipe | Full | Gradient
    operand: Operand
    samples: int
    lane: int
    first: int
    last: int


class LayerScan:
    """The chain of one micro-batch's backward tasks."""

    def __init__(self, build: PlanBuilder, backward: Sequence[Task], jacobian: str, most_terms: int = MOST_TERMS):
        """`jacobian`: dense, csr or auto. Raises StepcastError where the backward pass is no chain."""
        self._build, self._backward, self._jacobian, self._most_terms = build, backward, jacobian, most_terms
        self._links = layer_chain(build, backward)
        self._seed = self._links[0].gradient
        self._samples = self._seed.shape[0]
        self._tasks: list[Task] = []
        self._workers = 1
        self.elements = len(self._links) + 1

    @property
    def full_level(self) -> int:
        """Of Blelloch's scan."""
        return full_level(self.elements)

    @property
    def jacobian_bytes(self) -> int:
        """Of all Jacobians, without their products and without those that are a weight itself; of sparse ones with their index arrays."""
        found = 0
        for link in self._links:
            if not _is_weight(link):
                found += prod(self._shape(link)) * self._seed.bytes // self._seed.elements
                found += 0 if isinstance(self._form(link), Full) else _INDEX_BYTES * link.rule.nnz
        return found

    def tasks(self, level: int, workers: int) -> tuple[list[Task], list[Task]]:
        """(Jacobians, the backward tasks with the chain's own replaced by its scan), in issue order."""
        self._tasks, self._workers = [], workers
        jacobians = [self._jacobian_of(number, link) for number, link in enumerate(self._links, start=1)]
        values, self._tasks = self._tasks, []
        found = exclusive_scan([self._gradient(), *jacobians], level, self._product)
        links = {link.task.name: link for link in self._links}
        read = {operand.value for task in self._backward if task.name not in links for operand in task.inputs}
        asked = {link.task.name: element for link, element in zip(self._links, found[1:], strict=True) if link.result.value in read}
        scan = _needed(self._tasks, {element.operand.value for element in asked.values()})
        used = {operand.value for task in scan for operand in task.inputs}
        done: list[Task] = []
        for task in self._backward:
            if task.name == self._links[0].task.name:
                done += scan
            if task.name in asked:
                done.append(_as_it_was(links[task.name], asked[task.name]))
            elif task.name not in links:
                done.append(task)
        return [task for task in values if task.writes[0].value in used], done

    def _form(self, link: Link) -> Recipe | Full:
        dense = self._jacobian == "dense" or _is_weight(link)
        return Full(link.rule.rows, link.rule.cols) if dense else link.rule

    def _samples_of(self, link: Link) -> int:
        """How many samples its Jacobian's values are of: 1 where all share them."""
        return 1 if link.rule.shared else self._samples

    def _shape(self, link: Link) -> tuple[int, ...]:
        return shape(self._form(link), self._samples_of(link))

    def _jacobian_of(self, number: int, link: Link) -> _Element:
        """A link's Jacobian; a linear layer's is its weight. Workers have successive links."""
        lane = (number - 1) * self._workers // len(self._links)
        form, samples = self._form(link), self._samples_of(link)
        if _is_weight(link):
            return _Element(form, transposed(link.reads[0]), samples, lane, number, number)
        made = self._build.scratch(f"{link.task.name}/jacobian", self._shape(link), link.result.dtype)
        body = JacobianValues(link.rule, full=isinstance(form, Full))
        self._add(link.task, "jacobian", body, lane, link.reads, made)
        return _Element(form, made, samples, lane, number, number)

    def _gradient(self) -> _Element:
        """The gradient that the chain begins with, a column per sample."""
        rows = self._seed.elements // self._samples
        made = self._build.scratch(f"{self._links[0].task.name}/first", (rows, self._samples), self._seed.dtype)
        flat = shaped(self._seed, (self._samples, rows))
        self._add(self._links[0].task, "first", _CLONE, 0, (transposed(flat),), made)
        return _Element(Gradient(rows), made, self._samples, 0, 0, 0)

    def _product(self, later: _Element, earlier: _Element) -> _Element:
        """Of two elements, made where the later one is."""
        body, samples = self._body(later, earlier), max(later.samples, earlier.samples)
        name, like = f"product{earlier.first}-{later.last}", self._links[later.last - 1].task
        made = self._build.scratch(f"{like.name}/{name}", shape(body.result, samples), earlier.operand.dtype)
        self._add(like, name, body, later.lane, (later.operand, earlier.operand), made)
        return _Element(body.result, made, samples, later.lane, earlier.first, later.last)

    def _body(self, later: _Element, earlier: _Element) -> JacobianProduct:
        """The product, of sparse matrices as a full one where that pays."""
        body = JacobianProduct(later.form, earlier.form)
        if not body.sparse:
            return body
        found = ProductPattern(later.form, earlier.form)
        if found.terms > self._most_terms:
            raise StepcastError(
                f"bppsa: a product of sparse Jacobians from {self._links[later.last - 1].task.name} on has {found.terms} terms;"
                f" expected at most {self._most_terms}; choose a lower level"
            )
        if self._jacobian == "csr":
            return body
        return replace(body, full=found.nnz >= FULL_FROM * found.rows * found.cols)

    def _add(self, like: Task, name: str, body: Body, lane: int, reads: Sequence[Operand], made: Operand) -> None:
        self._tasks.append(replace(like, name=f"{like.name}/{name}", body=body, stream=lane, reads=tuple(reads), writes=(made,)))


def _as_it_was(link: Link, element: _Element) -> Task:
    """Writes what the link's op wrote: one sample after another, laid out as before."""
    plain = link.result.strides == contiguous(link.result.shape)
    kwargs = json.dumps({"memory_format": {"memory_format": "contiguous_format" if plain else "channels_last"}}, separators=(",", ":"))
    reads = (shaped(transposed(element.operand), link.result.shape),)
    return replace(link.task, body=replace(_CLONE, kwargs=kwargs), reads=reads, stream=0)


def _is_weight(link: Link) -> bool:
    return isinstance(link.rule, LinearRule) and link.rule.mask is None


def _needed(tasks: Sequence[Task], wanted: set[str]) -> list[Task]:
    """The tasks that lead to `wanted` values, in order."""
    kept = []
    for task in reversed(tasks):
        if task.writes[0].value in wanted:
            kept.append(task)
            wanted = wanted | {operand.value for operand in task.inputs}
    return kept[::-1]
