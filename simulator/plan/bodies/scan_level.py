"""One level of a back-propagation scan over a batch of equal dense Jacobians (Wang et al., "BPPSA", algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

from simulator.plan.keys import geometry
from simulator.plan.task import Body, Task, Work

#: The widest layer, in units, whose levels (and Jacobians) run on CUDA as one hand-written kernel each. In a wider layer, one SM holds so
#: small a block of each matrix that a library's batched products are faster, although they take several kernels.
FUSED_WIDTH = 128


@dataclass(frozen=True, slots=True)
class ScanLevel(Body):
    """A level of m = `elements` elements in the order of `ops.recurrent.scan_order`: transposed Jacobians [m, B, H, H], gradients [B, H].

    up      multiplies pairs into the elements of the level above; reads the Jacobians, writes [m // 2, B, H, H]
    linear  reads the Jacobians and the gradient before them; writes every prefix, [m + 1, B, H] in the order of `prefix_order`
    down    reads the Jacobians at even positions (and the last) and the prefixes of the level above; writes its own prefixes, like linear

    With `leftmost`, the first element is a gradient: it is the task's last operand, not part of the Jacobians. Then there is one matrix and
    one prefix less, and an up-sweep also writes the gradient that is the first element of the level above.
    """

    direction: Literal["up", "linear", "down"]
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
