"""Sparse transposed Jacobians of VGG-11 on 32x32 images in the BPPSA paper: their sparsity, memory, and the FLOPs of a scan over them."""

from collections.abc import Iterator, Mapping, Sequence

from simulator.bodies.csr.rules import ConvolutionRule, ElementwiseRule, MaxPoolRule, Rule
from simulator.reproduce.bppsa_flops import LEVEL, Operator, ScanStep, by_kind, critical_flops
from simulator.reproduce.verdicts import judged
from traces.reproduction import Chart, Check, Figure, Panel, Row, Series, Table

#: The first convolution, ReLU and max-pooling of VGG-11; table 1.
FIRST: Mapping[str, ConvolutionRule | ElementwiseRule | MaxPoolRule] = {
    "convolution": ConvolutionRule(3, 32, 32, 64, (3, 3), padding=(1, 1)),
    "ReLU": ElementwiseRule(64 * 32 * 32, "aten.threshold_backward.default", '[{"$":0},0]'),
    "max-pooling": MaxPoolRule(64, 32, 32, (16, 16), (2, 2), (2, 2)),
}
#: Examples of table 1 and of section 3.3.
SPARSITY = {"convolution": 0.99157, "ReLU": 0.99998, "max-pooling": 0.99994}
_MIB = 2**20
DENSE_BYTES, VALUES_BYTES = {"convolution": 768.0 * _MIB}, {"convolution": 6.5 * _MIB}
_FLOAT = 4
#: Steps that differ by less than this factor count as similar, because the paper's figure is logarithmic.
_ALIKE = 10.0


def sparsity_table() -> Table:
    """Table 1, computed from exact patterns."""
    rows = []
    for name, rule in FIRST.items():
        zeros = Figure(name="guaranteed zeros", unit="share", predicted=rule.pattern().sparsity, published=SPARSITY[name])
        rows.append(Row(labels=_labels(name, rule), figures=(zeros,)))
    return Table(name="sparsity", title="Sparsity of VGG-11's first layers", about="Published: table 1.", rows=tuple(rows))


def memory_table() -> Table:
    """Section 3.3."""
    rows = []
    for name, rule in FIRST.items():
        pattern, values = rule.pattern(), float(_FLOAT * rule.nnz)
        figures = (
            Figure(name="dense", unit="bytes", predicted=float(_FLOAT * rule.rows * rule.cols), published=DENSE_BYTES.get(name)),
            Figure(name="CSR values", unit="bytes", predicted=values, published=VALUES_BYTES.get(name)),
            Figure(name="CSR whole", unit="bytes", predicted=values + pattern.indptr.nbytes + pattern.indices.nbytes),
        )
        rows.append(Row(labels=_labels(name, rule), figures=figures))
    about = "Published: section 3.3, whose 768 MB and 6.5 MB are MiB. Whole: values, and columns and row pointers in int32; one sample."
    return Table(name="memory", title="Memory of their transposed Jacobians", about=about, rows=tuple(rows))


def _labels(name: str, rule: Rule) -> dict[str, str]:
    return {"first": name, "extents": f"{rule.rows} x {rule.cols}"}


def steps_table(steps: Sequence[ScanStep]) -> Table:
    """Figure 10's circles of BPPSA."""
    rows = []
    for number, step in enumerate(steps, start=1):
        figures = (
            Figure(name="FLOPs", unit="count", predicted=step.flops),
            Figure(name="FLOPs if dense", unit="count", predicted=step.dense_flops),
        )
        labels = {"step": str(number), "layers": step.span, "kind": step.kind, "critical": "yes" if step.critical else "no"}
        rows.append(Row(labels=labels, figures=figures))
    about = (
        f"One sample; hybrid scan with {LEVEL} sweeps up and down. mm: two matrices, mv: a matrix and a gradient. Critical: on the path of"
        f" the most FLOPs, {critical_flops(list(steps)):.4g} together. Figure 10 has circles without numbers."
    )
    return Table(name="scan-steps", title="Pruned VGG-11: FLOPs of every step of the scan", about=about, rows=tuple(rows))


def operators_table(chain: Sequence[Operator]) -> Table:
    """Figure 10's circles of the baseline, and the linear scan's steps."""
    rows = []
    for each in reversed(chain):
        figures = (
            Figure(name="gradient operator", unit="count", predicted=each.flops),
            Figure(name="Jacobian x gradient", unit="count", predicted=each.sparse_flops),
        )
        rows.append(Row(labels={"layer": each.layer, "op": each.rule.of}, figures=figures))
    about = "FLOPs of one sample. Gradient operator: the gradient by a layer's input as frameworks compute it; pruning does not help it."
    return Table(name="gradient-operators", title="Pruned VGG-11: FLOPs of every layer's backward", about=about, rows=tuple(rows))


def steps_are_like_operators(steps: Sequence[ScanStep], chain: Sequence[Operator]) -> Check:
    """Judge: because of sparsity, the steps of a scan take about as many FLOPs as gradient operators."""
    heaviest, operator = max(step.flops for step in steps), max(each.flops for each in chain)
    dense = max(step.dense_flops for step in steps)
    name, claim = "sparsity", "in the pruned network, steps of the scan take about as many FLOPs as gradient operators"
    result = f"the heaviest step takes {heaviest:.3g} ({dense:.3g} if dense), the heaviest gradient operator {operator:.3g}"
    figures = {"heaviest step": heaviest, "heaviest dense step": dense, "heaviest operator": operator}
    why = "weights pruned at random leave denser products than those pruned by magnitude"
    return judged(name, claim, heaviest < _ALIKE * operator, result, figures, why)


def chart(steps: Sequence[ScanStep], chain: Sequence[Operator]) -> Chart:
    """Figure 10."""
    series = tuple(_series(steps, chain))
    title = "Pruned VGG-11: predicted FLOPs of every step"
    panels = (Panel(title="", series=series),)
    x_label = "FLOPs if the Jacobians were dense"
    return Chart(name="flops", title=title, x_label=x_label, y_label="FLOPs", panels=panels, log_x=True, log_y=True, joined=False)


def _series(steps: Sequence[ScanStep], chain: Sequence[Operator]) -> Iterator[Series]:
    for kind, group in by_kind(list(steps)).items():
        yield Series(name=kind, x=tuple(step.dense_flops for step in group), y=tuple(step.flops for step in group))
    yield Series(name="gradient operators", x=tuple(each.dense_flops for each in chain), y=tuple(each.flops for each in chain))
