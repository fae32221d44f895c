"""Rules: how the transposed Jacobian dx_i/dx_(i-1) of an op follows from its weights and saved values.

A rule is plain data with a tag `of`. It has `key` (its part of a cost key), `launches` (kernels on CUDA), `calls` (op calls on a CPU) and
`flops(task)`. The rules with a static pattern are in `csr.rules`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator

from simulator.plan.bodies.csr.product import ProductPattern, Recipe
from simulator.plan.bodies.csr.rules import ElementwiseRule, LinearRule
from simulator.plan.bodies.csr.rules import Rule as StaticRule
from simulator.plan.keys import geometry
from simulator.plan.task import Body, Operand, Task, Work


@dataclass(frozen=True, slots=True)
class RnnSteps:
    """The Jacobians of `m` successive steps of a vanilla RNN: W_hh^T diag(f'(h_t)), with f' computed from the step's output.

    Reads: the steps' states [m, B, H] in time order, W_hh [H, H]. Writes [m, B, H, H] in the order of `model.ops.scan_order`: the scan
    begins with the last step. With `leftmost`, element 0 of the scan is the gradient, which is no Jacobian, and the m states give elements
    1 to m.
    """

    nonlinearity: Literal["tanh", "relu"]
    leftmost: bool
    of: Literal["rnn"] = "rnn"

    launches: ClassVar[int] = 1
    calls: ClassVar[int] = 3

    @property
    def key(self) -> str:
        """Cell, and whether the scan's first element is the gradient."""
        return f"rnn.{self.nonlinearity}{'.leftmost' if self.leftmost else ''}"

    def flops(self, task: Task) -> float:
        """One product per entry, and two per state for the slope."""
        return float(task.writes[0].elements) + 2.0 * task.reads[0].elements


@dataclass(frozen=True, slots=True)
class GruSteps:
    """The Jacobians of `m` successive steps of a GRU, by the closed form of Wang et al., appendix E.

    Reads: the states before the steps [m, B, H], reset and update gates [m, B, 2 H], n and W_hn h + b_hn [m, B, H], all in time order,
    and W_hh [3 H, H]. Writes the same as `RnnSteps`.
    """

    leftmost: bool
    of: Literal["gru"] = "gru"

    launches: ClassVar[int] = 1
    calls: ClassVar[int] = 15

    @property
    def key(self) -> str:
        """Cell, and whether the scan's first element is the gradient."""
        return f"gru{'.leftmost' if self.leftmost else ''}"

    def flops(self, task: Task) -> float:
        """Three products and sums per entry, and about 12 operations per state for their factors."""
        return 6.0 * task.writes[0].elements + 12.0 * task.reads[0].elements


Rule = RnnSteps | GruSteps | StaticRule


# The transposed Jacobian of an op, or of several steps of a recurrent op: the elements of a back-propagation scan.
# "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), section 3.4 and appendix E.


@dataclass(frozen=True, slots=True)
class JacobianValues(Body):
    """Compute the values of the transposed Jacobians that `rule` describes from the task's reads, in the rule's sparsity pattern.

    With `full`, write a matrix with all its entries: [rows, cols] if all samples share it, else [B, rows, cols].
    """

    rule: Annotated[Rule, Discriminator("of")]
    full: bool = False
    kind: Literal["jacobian-values"] = "jacobian-values"

    @property
    def launches(self) -> int:
        """Kernels on CUDA: one for recurrent steps of at most `scan_level.FUSED_WIDTH` units."""
        return self.rule.launches + 2 * self.full

    @property
    def calls(self) -> int:
        """Op calls on a CPU."""
        return self.rule.calls + 2 * self.full

    def least_kernels(self, device_kind: str) -> int:
        """Kernels on a GPU, op calls on a CPU."""
        return self.calls if device_kind == "cpu" else self.launches

    def key(self, task: Task) -> str:
        """The rule and its operands' geometry."""
        return f"jacobian.{'full.' if self.full else ''}{self.rule.key}|{'|'.join(map(geometry, task.inputs))}"

    def work(self, task: Task) -> Work:
        """FLOPs by the rule; bytes read and written."""
        moved = sum(operand.bytes for operand in (*task.inputs, *task.writes))
        return Work("jacobian", self.rule.flops(task), float(moved))


# The product of two transposed Jacobians, or of a Jacobian and a gradient: the steps of a back-propagation scan.
# "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), sections 3.1 and 3.3.


@dataclass(frozen=True, slots=True)
class Full:
    """A matrix with all its entries: [rows, cols] if all samples share it, else [B, rows, cols]."""

    rows: int
    cols: int
    of: Literal["full"] = "full"

    @property
    def key(self) -> str:
        """The extents."""
        return f"{self.rows}x{self.cols}"


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient [rows, B], one column per sample."""

    rows: int
    of: Literal["gradient"] = "gradient"

    @property
    def key(self) -> str:
        """The extent."""
        return str(self.rows)


@dataclass(frozen=True, slots=True)
class JacobianProduct(Body):
    """Write reads[0] · reads[1], whose formats are `left` and `right`. A recipe stands for CSR values [nnz, V] with its pattern.

    The product (`result`) is a gradient if `right` is one, CSR values if both factors are, else a full matrix. With `full`, the product of
    two CSR matrices is written as a full matrix.
    """

    left: Annotated[Recipe | Full, Discriminator("of")]
    right: Annotated[Recipe | Full | Gradient, Discriminator("of")]
    full: bool = False
    kind: Literal["jacobian-product"] = "jacobian-product"

    def __post_init__(self):
        """Raise ValueError if the factors do not fit each other."""
        inner = self.left.cols
        if inner != self.right.rows:
            raise ValueError(f"a matrix of {inner} columns cannot be multiplied by {self.right.rows} rows")
        for factor in (self.left, self.right):
            if isinstance(factor, LinearRule) and factor.mask is None:
                raise ValueError(f"{factor.key} is not pruned, so its Jacobian is a full matrix; expected the format Full")
        if self.full and not self.sparse:
            raise ValueError("full is set, but a factor is not in CSR form; expected two sparse factors")

    @property
    def sparse(self) -> ProductPattern | None:
        """The pattern of the product if both factors are in CSR form."""
        if isinstance(self.left, Full) or isinstance(self.right, Full | Gradient):
            return None
        return ProductPattern(self.left, self.right)

    @property
    def result(self) -> Recipe | Full | Gradient:
        """The format of the product."""
        if isinstance(self.right, Gradient):
            return Gradient(self.left.rows)
        return (not self.full and self.sparse) or Full(self.left.rows, self.right.cols)

    @property
    def launches(self) -> int:
        """Kernels on CUDA, op calls on a CPU."""
        if isinstance(self.left, Full) and isinstance(self.right, Full | Gradient):
            return 1
        per_sample = not isinstance(self.left, Full) and not self.left.shared
        return (4 if per_sample and not isinstance(self.left, ElementwiseRule) else 2) + 2 * self.full

    def key(self, task: Task) -> str:
        """Both formats and the operands' geometry."""
        form = "full" if self.full else self.result.of
        return f"jacobian-product.{form}|{self.left.key}@{self.right.key}|{'|'.join(map(geometry, task.inputs))}"

    def work(self, task: Task) -> Work:
        """Exact FLOPs, a multiplication and an addition per term; bytes of values. Raises ValueError for operands of another shape."""
        (write,) = task.writes
        factors, samples = self.samples(task), _samples(self.result, write)
        if max(factors) != samples or min(factors) not in (1, samples):
            raise ValueError(f"factors of {factors[0]} and {factors[1]} samples make a product of {max(factors)}, not of {samples}")
        moved = sum(operand.bytes for operand in (*task.reads, write))
        return Work("jacobian-product", 2.0 * self.terms * samples, float(moved))

    def samples(self, task: Task) -> tuple[int, int]:
        """How many samples each factor has; 1 if all samples share it. Raises ValueError for operands of another shape."""
        left, right = task.reads
        return _samples(self.left, left), _samples(self.right, right)

    @property
    def terms(self) -> int:
        """Products of two entries, per sample."""
        if self.sparse:
            return self.sparse.terms
        rows, cols = self.left.rows, 1 if isinstance(self.right, Gradient) else self.right.cols
        if not isinstance(self.left, Full):
            return self.left.nnz * cols
        if not isinstance(self.right, Full | Gradient):
            return rows * self.right.nnz
        return rows * self.left.cols * cols


def shape(form: Recipe | Full | Gradient, samples: int) -> tuple[int, ...]:
    """The shape of a value of this format for `samples` samples; a value that all samples share counts as one sample.

    A full matrix of one sample has two dimensions.
    """
    if isinstance(form, Gradient):
        return form.rows, samples
    if isinstance(form, Full):
        return (form.rows, form.cols) if samples == 1 else (samples, form.rows, form.cols)
    return form.nnz, samples


def _samples(form: Recipe | Full | Gradient, operand: Operand) -> int:
    """How many samples an operand has."""
    extents = operand.shape
    if isinstance(form, Full):
        samples, per_sample = (extents[0], extents[1:]) if len(extents) == 3 else (1, extents)
    else:
        samples, per_sample = extents[-1], (*extents[:-1], 1)
    if per_sample != shape(form, 1):
        raise ValueError(f"operand {operand.value} is {extents}; its format needs {shape(form, 1)} per sample")
    return samples


# One level of a back-propagation scan over a batch of equal dense Jacobians (Wang et al., "BPPSA", algorithm 1).


#: The widest layer, in units, whose levels (and Jacobians) run on CUDA as one hand-written kernel each. In a wider layer, one SM has room
#: only for such a small block of each matrix that a library's batched products are faster, although they take several kernels.
FUSED_WIDTH = 128


Sweep = Literal["up", "linear", "down"]


@dataclass(frozen=True, slots=True)
class ScanLevel(Body):
    """A level of m = `elements` elements in the order of `model.ops.scan_order`: transposed Jacobians [m, B, H, H], gradients [B, H].

    up      multiplies pairs into the elements of the level above; reads the Jacobians, writes [m // 2, B, H, H]
    linear  reads the Jacobians and the gradient before them; writes every prefix, [m + 1, B, H] in the order of `prefix_order`
    down    reads the Jacobians at even positions (and the last) and the prefixes of the level above; writes its own prefixes, like linear

    With `leftmost`, the first element is a gradient: it is the task's last operand, not part of the Jacobians. Then there is one matrix and
    one prefix less, and an up-sweep also writes the gradient that is the first element of the level above.
    """

    direction: Sweep
    elements: int
    leftmost: bool
    kind: Literal["scan-level"] = "scan-level"

    has_products = True

    def __post_init__(self):
        """Raise ValueError for a level with too few elements."""
        least = 1 if self.direction == "linear" and not self.leftmost else 2
        if self.elements < least:
            raise ValueError(f"a level {self.direction} of {self.elements} elements has no product; expected at least {least}")

    @property
    def loop_length(self) -> int:
        """Products that follow each other. On a CPU each of them is an op call; on CUDA one kernel makes them all (up to FUSED_WIDTH)."""
        return self.elements - int(self.leftmost) if self.direction == "linear" else 1

    @property
    def calls(self) -> int:
        """Op calls on a CPU, views included."""
        return 10 if self.direction != "linear" else self.loop_length + 6

    def least_kernels(self, device_kind: str) -> int:
        """A step of the loop takes as long as a kernel at least, in one kernel or not."""
        return self.loop_length

    @property
    def products(self) -> tuple[int, int]:
        """(matrix-matrix, matrix-vector) products per sample."""
        if self.direction == "up":
            return self.elements // 2 - int(self.leftmost), int(self.leftmost)
        count = self.elements if self.direction == "linear" else (self.elements + 1) // 2
        return 0, count - int(self.leftmost)

    def key(self, task: Task) -> str:
        """Direction, whether it is leftmost, number of elements, and the operands' geometry."""
        leftmost = ".leftmost" if self.leftmost else ""
        return f"scan.{self.direction}{leftmost}|{self.elements}|{'|'.join(map(geometry, task.inputs))}"

    def blocks(self, task: Task) -> int | None:
        """One block per sample for a linear level; None for the others."""
        return self._vector(task)[0] if self.direction == "linear" else None

    def work(self, task: Task) -> Work:
        """FLOPs of the products; bytes read and written."""
        samples, width = self._vector(task)
        matrices, vectors = self.products
        flops = 2.0 * samples * width * width * (matrices * width + vectors)
        moved = sum(operand.bytes for operand in (*task.inputs, *task.writes))
        return Work(f"scan.{self.direction}", flops, float(moved))

    def _vector(self, task: Task) -> tuple[int, ...]:
        """The extents (B, H) of a gradient."""
        return task.writes[-1].shape[-2:] if self.direction != "up" or self.leftmost else task.writes[0].shape[1:3]
