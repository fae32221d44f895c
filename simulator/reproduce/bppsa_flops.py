"""The pruned VGG-11 of the BPPSA paper: FLOPs of every step of a scan over its convolutional layers, by static analysis (section 4.3).

The steps are those of the hybrid scan of figure 10, which sweeps two levels up and down and is linear in between. FLOPs are counted for one
sample: two for every product of two entries. The critical path is the longest in FLOPs, with an unlimited number of workers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simulator.bodies.csr.product import ProductPattern, Recipe
from simulator.job import Job
from simulator.scan.algorithm import exclusive_scan
from simulator.scan.jacobian_of import jacobian_of

MODEL, LAYERS = "vgg11_pruned", "features."
#: Levels of the hybrid scan; figure 10.
LEVEL = 2
#: Rows of a product whose entries are counted at once, so that they need about 100 MB at most.
_ROWS = 1024


@dataclass(frozen=True)
class Operator:
    """A layer of the chain. `flops`: the FLOPs of its gradient by its input, as the framework computes it."""

    layer: str
    rule: Recipe
    flops: float

    @property
    def dense_flops(self) -> float:
        """FLOPs of a dense transposed Jacobian times a gradient."""
        return 2.0 * self.rule.rows * self.rule.cols

    @property
    def sparse_flops(self) -> float:
        """FLOPs of the sparse transposed Jacobian times a gradient: a step of the linear scan."""
        return 2.0 * self.rule.nnz


@dataclass(frozen=True)
class ScanStep:
    """One product. `span`: the layers whose Jacobians it combines; for a matrix times a gradient, the layers of the matrix."""

    span: str
    matrices: bool
    flops: float
    dense_flops: float
    critical: bool = False

    @property
    def kind(self) -> str:
        """The paper's name of the product: mm of two matrices, mv of a matrix and a gradient."""
        return "mm" if self.matrices else "mv"


@dataclass(frozen=True)
class _Element:
    """A gradient (no recipe) or a Jacobian; `step`: the number of the product that made it."""

    recipe: Recipe | None
    first: str
    last: str
    step: int | None = None


def operators() -> list[Operator]:
    """Return the convolutional layers, from the last one to the first one whose input has a gradient."""
    graph = Job(MODEL, 1).graph()
    layers = []
    for op in graph.backward_ops:
        if op.layer.startswith(LAYERS) and op.gradient == "dX":
            rule, _ = jacobian_of(op, graph)
            layers.append(Operator(op.layer.removeprefix(LAYERS), rule, max(op.body.flops, float(rule.rows))))
    return layers


def steps(chain: list[Operator], level: int = LEVEL) -> list[ScanStep]:
    """Return every product of the scan over `chain`, in the order in which a single worker computes them."""
    trace = _Trace()
    elements = [_Element(None, chain[0].layer, chain[0].layer), *(_Element(each.rule, each.layer, each.layer) for each in chain)]
    exclusive_scan(elements, level, trace.product)
    return list(trace.steps())


class _Trace:
    """Records the products of a scan, and the products that each one waits for."""

    def __init__(self):
        self._steps: list[ScanStep] = []
        self._inputs: list[tuple[int, ...]] = []
        self._entries: dict[Recipe, int] = {}

    def product(self, later: _Element, earlier: _Element) -> _Element:
        """Record the product `later` times `earlier`, and return its result."""
        matrices = earlier.recipe is not None
        recipe = ProductPattern(later.recipe, earlier.recipe) if matrices else None
        terms = recipe.terms if matrices else self._count(later.recipe)
        dense = 2.0 * later.recipe.rows * later.recipe.cols * (earlier.recipe.cols if matrices else 1)
        span = later.first if later.first == later.last else f"{later.last} to {later.first}"
        if matrices:
            span = f"{later.last} to {earlier.first}"
        self._steps.append(ScanStep(span, matrices, 2.0 * terms, dense))
        self._inputs.append(tuple(each.step for each in (later, earlier) if each.step is not None))
        return _Element(recipe, earlier.first, later.last, len(self._steps) - 1)

    def _count(self, recipe: Recipe) -> int:
        if recipe not in self._entries:
            self._entries[recipe] = entries(recipe)
        return self._entries[recipe]

    def steps(self) -> Iterator[ScanStep]:
        """Yield the products, with those on the longest path marked as critical."""
        ends: list[float] = []
        before: list[int | None] = []
        for step, inputs in zip(self._steps, self._inputs, strict=True):
            last = max(inputs, key=lambda number: ends[number], default=None)
            before.append(last)
            ends.append(step.flops + (0.0 if last is None else ends[last]))
        critical = set()
        latest = max(range(len(ends)), key=ends.__getitem__, default=None)
        while latest is not None:
            critical.add(latest)
            latest = before[latest]
        for number, step in enumerate(self._steps):
            yield ScanStep(step.span, step.matrices, step.flops, step.dense_flops, number in critical)


def entries(recipe: Recipe) -> int:
    """Return the number of entries that may differ from zero. Those of a product are counted some rows at a time, to save memory."""
    if not isinstance(recipe, ProductPattern):
        return recipe.nnz
    from scipy.sparse import csr_array

    left, right = (
        csr_array((np.ones(p.nnz, bool), p.indices, p.indptr), (p.rows, p.cols)) for p in (recipe.left.pattern(), recipe.right.pattern())
    )
    return sum((left[row : row + _ROWS] @ right).nnz for row in range(0, recipe.rows, _ROWS))


def critical_flops(scan: list[ScanStep]) -> float:
    """Return the FLOPs of the longest path."""
    return sum(step.flops for step in scan if step.critical)


def by_kind(scan: list[ScanStep]) -> Mapping[str, list[ScanStep]]:
    """Group the products by kind (mm, mv), on and off the critical path."""
    groups: dict[str, list[ScanStep]] = {}
    for step in scan:
        groups.setdefault(f"{step.kind}{', critical' if step.critical else ''}", []).append(step)
    return dict(sorted(groups.items()))
