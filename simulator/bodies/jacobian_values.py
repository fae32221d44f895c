"""The transposed Jacobian of an op, or of many steps of one: the elements of a back-propagation scan.

"BPPSA: Scaling Back-propagation by Parallel Scan Algorithm" (Wang et al., 2020), section 3.4 and appendix E.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .jacobian_rules import Rule
from .work import Work, geometry

if TYPE_CHECKING:
    from ..plan import Task


@dataclass(frozen=True, slots=True)
class JacobianValues:
    """Compute the values of the transposed Jacobians that `rule` describes from the task's reads; the pattern is the rule's own."""

    rule: Rule
    kind: Literal["jacobian-values"] = "jacobian-values"

    @property
    def launches(self) -> int:
        """One kernel on CUDA, up to the width of `scan_level.FUSED_WIDTH`; a CPU's op calls are the rule's `calls`."""
        return 1

    def key(self, task: "Task") -> str:
        """The rule and its operands' geometry."""
        return f"jacobian.{self.rule.key}|{'|'.join(map(geometry, task.inputs))}"

    def work(self, task: "Task") -> Work:
        """FLOPs by the rule; bytes of what is read and written."""
        moved = sum(operand.bytes for operand in (*task.inputs, *task.writes))
        return Work("jacobian", self.rule.flops(task), float(moved))
