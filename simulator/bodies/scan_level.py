"""One level of a back-propagation scan over a batch of equal dense Jacobians (Wang et al., "BPPSA", algorithm 1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from simulator.plan.keys import geometry
from simulator.plan.task import Work

if TYPE_CHECKING:
    from simulator.plan.task import Task

#: The widest layer, in units, whose levels (and Jacobians) run on CUDA as one hand-written kernel each. Beyond it the blocks of matrices
#: that one SM holds are so small a part that a library's batched products, several kernels, do better.
FUSED_WIDTH = 128


@dataclass(frozen=True, slots=True)
class ScanLevel:
    """A level of `elements` m in the order of `recurrent.scan_order`: transposed Jacobians [m, B, H, H], gradients [B, H].

    up      pairs to the elements of the level above; reads the Jacobians, writes [m // 2, B, H, H]
    linear  reads the Jacobians and the gradient before them; writes every prefix, [m + 1, B, H] in the order of `scan.prefix_order`
    down    reads the Jacobians of even place (and the last) and the prefixes of the level above; writes its own, as linear does

    With `leftmost` the first element is a gradient, the task's last operand, and stands in no matrix: one matrix and one prefix less, and
    an up-sweep also writes the gradient that is the first element above.
    """

    direction: Literal["up", "linear", "down"]
    elements: int
    leftmost: bool
    kind: Literal["scan-level"] = "scan-level"

    def __post_init__(self):
        """Raise ValueError for what is no level."""
        least = 1 if self.direction == "linear" and not self.leftmost else 2
        if self.elements < least:
            raise ValueError(f"a level {self.direction} of {self.elements} elements has no product; expected at least {least}")

    @property
    def launches(self) -> int:
        """One kernel on CUDA, up to FUSED_WIDTH units."""
        return 1

    @property
    def rounds(self) -> int:
        """How often the products of one round wait for those before: on a CPU each round is an op call of its own."""
        return self.elements - int(self.leftmost) if self.direction == "linear" else 1

    @property
    def calls(self) -> int:
        """Op calls on a CPU, views included."""
        return 10 if self.direction != "linear" else self.rounds + 6

    @property
    def products(self) -> tuple[int, int]:
        """(matrix-matrix, matrix-vector) products of one sample."""
        if self.direction == "up":
            return self.elements // 2 - int(self.leftmost), int(self.leftmost)
        count = self.elements if self.direction == "linear" else (self.elements + 1) // 2
        return 0, count - int(self.leftmost)

    def key(self, task: "Task") -> str:
        """Direction, where it stands, and the operands' geometry, which tells the elements."""
        where = ".leftmost" if self.leftmost else ""
        return f"scan.{self.direction}{where}|{self.elements}|{'|'.join(map(geometry, task.inputs))}"

    def grid(self, task: "Task") -> int | None:
        """Blocks of a linear level on CUDA, one a sample; None of others, whose blocks follow from what they write."""
        return self._vector(task)[0] if self.direction == "linear" else None

    def work(self, task: "Task") -> Work:
        """FLOPs of the products; bytes of what is read and written."""
        samples, width = self._vector(task)
        matrices, vectors = self.products
        flops = 2.0 * samples * width * width * (matrices * width + vectors)
        moved = sum(operand.bytes for operand in (*task.inputs, *task.writes))
        return Work(f"scan.{self.direction}", flops, float(moved))

    def _vector(self, task: "Task") -> tuple[int, ...]:
        """(B, H)."""
        return task.writes[-1].shape[-2:] if self.direction != "up" or self.leftmost else task.writes[0].shape[1:3]
