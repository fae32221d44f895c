"""The product of two transposed Jacobians, or of a Jacobian and a gradient: the steps of a back-propagation scan.

"BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), sections 3.1 and 3.3.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator

from simulator.plan.bodies.csr.product import ProductPattern, Recipe
from simulator.plan.bodies.csr.rules import ElementwiseRule, LinearRule
from simulator.plan.keys import geometry
from simulator.plan.task import Body, Operand, Task, Work


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
    def sparse(self) -> bool:
        """Whether both factors are in CSR form."""
        return not isinstance(self.left, Full) and not isinstance(self.right, Full | Gradient)

    @property
    def result(self) -> Recipe | Full | Gradient:
        """The format of the product."""
        if isinstance(self.right, Gradient):
            return Gradient(self.left.rows)
        if self.sparse and not self.full:
            return ProductPattern(self.left, self.right)
        return Full(self.left.rows, self.right.cols)

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
        """How many samples each factor holds; 1 if all samples share it. Raises ValueError for operands of another shape."""
        left, right = task.reads
        return _samples(self.left, left), _samples(self.right, right)

    @property
    def terms(self) -> int:
        """Products of two entries, per sample."""
        if self.sparse:
            return ProductPattern(self.left, self.right).terms
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
    """How many samples an operand holds."""
    extents = operand.shape
    if isinstance(form, Full):
        samples, per_sample = (extents[0], extents[1:]) if len(extents) == 3 else (1, extents)
    else:
        samples, per_sample = extents[-1], (*extents[:-1], 1)
    if per_sample != shape(form, 1):
        raise ValueError(f"operand {operand.value} is {extents}; its format needs {shape(form, 1)} per sample")
    return samples
