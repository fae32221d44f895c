"""The transposed Jacobian of an op, or of several steps of a recurrent op: the elements of a back-propagation scan.

"BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), section 3.4 and appendix E.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator

from simulator.plan.bodies.jacobian_rules import Rule
from simulator.plan.keys import geometry
from simulator.plan.task import Body, Task, Work


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
