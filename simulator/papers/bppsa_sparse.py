"""Sparse transposed Jacobians of VGG-11 on 32x32 images in the BPPSA paper: their sparsity, memory, and the FLOPs of a scan over them.

The scan is over the convolutional layers of a pruned network (section 4.3), by static analysis: the hybrid scan of figure 10, which sweeps
two levels up and down and is linear in between. FLOPs are counted for one sample: two for every product of two entries. The critical path
is the longest in FLOPs, with an unlimited number of workers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.registry import line
from simulator.plan.bodies.csr.product import ProductPattern, Recipe
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule, Rule
from simulator.strategies.scan.algorithm import exclusive_scan
from simulator.strategies.scan.jacobian_of import jacobian_of
from traces.documents.reproduction import Chart, Check, Panel, Table

PAPER = registry.get("bppsa")
#: The first convolution, ReLU and max-pooling of VGG-11; table 1.
FIRST: Mapping[str, ConvolutionRule | ElementwiseRule | MaxPoolRule] = {
    "convolution": ConvolutionRule(3, 32, 32, 64, (3, 3), padding=(1, 1)),
    "ReLU": ElementwiseRule(64 * 32 * 32, "aten.threshold_backward.default", '[{"$":0},0]'),
    "max-pooling": MaxPoolRule(64, 32, 32, (16, 16), (2, 2), (2, 2)),
}
_FLOAT, _MIB = 4, 2**20
#: Steps that differ by less than this factor count as similar, because the paper's figure is logarithmic.
_ALIKE = 10.0
MODEL, LAYERS = "vgg11_pruned", "features."
#: Shares of the weights that a trained and pruned network retains, by convolution, as `reproduce bppsa --measure` finds them.
KEPT: Mapping[str, float] = MappingProxyType(PAPER.cases["kept"])
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
    """One product. `span`: the layers whose Jacobians it combines; for a matrix times a gradient, the layers of the matrix.

    `kind`: the paper's name of the product: mm of two matrices, mv of a matrix and a gradient.
    """

    span: str
    kind: str
    flops: float
    dense_flops: float
    critical: bool = False


@dataclass(frozen=True)
class _Element:
    """A gradient (no recipe) or a Jacobian; `step`: the number of the product that made it."""

    recipe: Recipe | None
    first: str
    last: str
    step: int | None = None


def operators(shares: Mapping[str, float] = KEPT) -> list[Operator]:
    """Return the convolutional layers, from the last one to the first one whose input has a gradient.

    `shares`: of the weights that a convolution retains, by layer; without one, that of the built-in model, the same for every layer.
    """
    graph = Job(MODEL, 1).graph()
    layers = []
    for op in graph.backward_ops:
        if op.layer.startswith(LAYERS) and op.gradient == "dX":
            rule, _ = jacobian_of(op, graph)
            layer = op.layer.removeprefix(LAYERS)
            if isinstance(rule, ConvolutionRule) and rule.mask is not None and layer in shares:
                rule = replace(rule, mask=replace(rule.mask, keep=shares[layer]))
            layers.append(Operator(layer, rule, max(op.body.flops, float(rule.rows))))
    return layers


def steps(chain: Sequence[Operator], level: int = LEVEL) -> list[ScanStep]:
    """Return every product of the scan over `chain`, in the order in which a single worker computes them."""
    trace = _Trace()
    elements = [_Element(None, chain[0].layer, chain[0].layer), *(_Element(each.rule, each.layer, each.layer) for each in chain)]
    exclusive_scan(elements, level, trace.product)
    critical = trace.longest()
    return [replace(step, critical=number in critical) for number, step in enumerate(trace.steps)]


class _Trace:
    """Records the products of a scan. `_before`: the product that ends last of those that one waits for; `_ends`: FLOPs up to its end."""

    def __init__(self):
        self.steps: list[ScanStep] = []
        self._before: list[int | None] = []
        self._ends: list[float] = []
        self._entries: dict[Recipe, int] = {}

    def product(self, later: _Element, earlier: _Element) -> _Element:
        """Record the product `later` times `earlier`, and return its result."""
        matrix = later.recipe
        assert matrix is not None, "the gradient, which is the first element, is never the later one"
        if earlier.recipe is None:
            kind, recipe, columns, span = "mv", None, 1, (later.last, later.first)
            if matrix not in self._entries:
                self._entries[matrix] = entries(matrix)
            flops = 2.0 * self._entries[matrix]
        else:
            recipe = ProductPattern(matrix, earlier.recipe)
            kind, columns, span, flops = "mm", earlier.recipe.cols, (later.last, earlier.first), 2.0 * recipe.terms
        dense = 2.0 * matrix.rows * matrix.cols * columns
        before = max((each.step for each in (later, earlier) if each.step is not None), key=self._ends.__getitem__, default=None)
        self._before.append(before)
        self._ends.append(flops + (0.0 if before is None else self._ends[before]))
        self.steps.append(ScanStep(" to ".join(dict.fromkeys(span)), kind, flops, dense))
        return _Element(recipe, earlier.first, later.last, len(self.steps) - 1)

    def longest(self) -> set[int]:
        """Return the numbers of the products on the longest path."""
        path: set[int] = set()
        last = max(range(len(self._ends)), key=self._ends.__getitem__, default=None)
        while last is not None:
            path.add(last)
            last = self._before[last]
        return path


def entries(recipe: Recipe) -> int:
    """Return the number of entries that may differ from zero. Those of a product are counted some rows at a time, to save memory."""
    if not isinstance(recipe, ProductPattern):
        return recipe.nnz
    from scipy.sparse import csr_array

    left, right = (
        csr_array((np.ones(p.nnz, bool), p.indices, p.indptr), (p.rows, p.cols)) for p in (recipe.left.pattern(), recipe.right.pattern())
    )
    return sum((left[row : row + _ROWS] @ right).nnz for row in range(0, recipe.rows, _ROWS))


def critical_flops(scan: Sequence[ScanStep]) -> float:
    """Return the FLOPs of the longest path."""
    return sum(step.flops for step in scan if step.critical)


def by_kind(scan: Sequence[ScanStep]) -> Mapping[str, list[ScanStep]]:
    """Group the products by kind (mm, mv), on and off the critical path."""
    groups: dict[str, list[ScanStep]] = {}
    for step in scan:
        groups.setdefault(f"{step.kind}{', critical' if step.critical else ''}", []).append(step)
    return dict(sorted(groups.items()))


def tables(scan: Sequence[ScanStep], chain: Sequence[Operator]) -> tuple[Table, ...]:
    """Return table 1 from exact patterns, the memory of section 3.3, and figure 10: the scan's steps, and the gradient operators."""
    sparsity = ((_labels(name, rule), [rule.pattern().sparsity], [PAPER.values("sparsity")[name]]) for name, rule in FIRST.items())
    operators = (({"layer": each.layer, "op": each.rule.of}, (each.flops, each.sparse_flops)) for each in reversed(chain))
    return (
        PAPER.table("sparsity", sparsity),
        PAPER.table("memory", _memory()),
        PAPER.table("scan-steps", _steps(scan), critical=critical_flops(scan)),
        PAPER.table("gradient-operators", operators),
    )


def _steps(scan: Sequence[ScanStep]) -> Iterator[tuple]:
    for number, step in enumerate(scan, start=1):
        labels = {"step": number, "layers": step.span, "kind": step.kind, "critical": "yes" if step.critical else "no"}
        yield labels, (step.flops, step.dense_flops)


def _memory() -> Iterator[tuple]:
    for name, rule in FIRST.items():
        pattern, dense, values = rule.pattern(), _FLOAT * rule.rows * rule.cols, _FLOAT * rule.nnz
        whole = values + pattern.indptr.nbytes + pattern.indices.nbytes
        yield _labels(name, rule), (dense, values, whole), [_MIB * mib for mib in PAPER.values("memory, MiB").get(name, ())]


def _labels(name: str, rule: Rule) -> dict[str, str]:
    return {"first": name, "extents": f"{rule.rows} x {rule.cols}"}


def steps_are_like_operators(scan: Sequence[ScanStep], chain: Sequence[Operator]) -> Check:
    """Judge: because of sparsity, the steps of a scan take about as many FLOPs as gradient operators."""
    heaviest, operator = max(step.flops for step in scan), max(each.flops for each in chain)
    dense = max(step.dense_flops for step in scan)
    said = f"the heaviest step takes {heaviest:.3g} ({dense:.3g} if dense), the heaviest gradient operator {operator:.3g}"
    figures = {"heaviest step": heaviest, "heaviest dense step": dense, "heaviest operator": operator}
    return PAPER.claim("sparsity").judged(heaviest < _ALIKE * operator, said, figures)


def critical_path_is_shorter(scan: Sequence[ScanStep], chain: Sequence[Operator]) -> Check:
    """Judge: the scan's critical path takes fewer FLOPs than the chain of gradient operators, which follow one another."""
    operators, sparse = sum(each.flops for each in chain), sum(each.sparse_flops for each in chain)
    cases = {"one sample": (critical_flops(scan), operators, sparse)}
    return PAPER.claim("critical path").each(cases, {"one sample": ((None, operators),)})


def counted() -> Iterator[Check]:
    """Judge table 1's shares of zeros, and section 3.3's memory, which follow from the layers' extents."""
    zeros = {name: (rule.pattern().sparsity, PAPER.values("sparsity")[name]) for name, rule in FIRST.items()}
    yield PAPER.claim("guaranteed zeros").each(zeros, {name: ((printed, printed),) for name, (_, printed) in zeros.items()})
    name, rule = next(iter(FIRST.items()))
    mib = [_FLOAT * rule.rows * rule.cols / _MIB, _FLOAT * rule.nnz / _MIB]
    printed = PAPER.values("memory, MiB")[name]
    yield PAPER.claim("sparse memory").each({name: mib}, {name: [(each, each) for each in printed]})


def chart(scan: Sequence[ScanStep], chain: Sequence[Operator]) -> Chart:
    """Figure 10."""
    groups: dict[str, Sequence[ScanStep | Operator]] = {**by_kind(scan), "gradient operators": chain}
    series = tuple(line(name, ((each.dense_flops, each.flops) for each in group)) for name, group in groups.items())
    return PAPER.chart("flops", [Panel(title="", series=series)])
