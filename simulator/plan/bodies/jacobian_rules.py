"""Rules: how the transposed Jacobian dx_i/dx_(i-1) of an op follows from its weights and saved values.

A rule is plain data with a tag `of`. It has `key` (its part of a cost key), `launches` (kernels on CUDA), `calls` (op calls on a CPU) and
`flops(task)`. The rules with a static pattern are in `csr.rules`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from simulator.plan.bodies.csr.rules import Rule as StaticRule
from simulator.plan.task import Task


@dataclass(frozen=True, slots=True)
class RnnSteps:
    """The Jacobians of `m` successive steps of a vanilla RNN: W_hh^T diag(f'(h_t)), with f' computed from the step's output.

    Reads: the steps' states [m, B, H] in time order, W_hh [H, H]. Writes [m, B, H, H] in the order of `ops.recurrent.scan_order`: the scan
    begins with the last step. With `leftmost`, element 0 of the scan is the gradient, which is no Jacobian, and the m states give elements
    1 to m.
    """

    nonlinearity: Literal["tanh", "relu"]
    leftmost: bool
    of: Literal["rnn"] = "rnn"

    launches: ClassVar[int] = 1
    calls: ClassVar[int] = 2

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
    calls: ClassVar[int] = 14

    @property
    def key(self) -> str:
        """Cell, and whether the scan's first element is the gradient."""
        return f"gru{'.leftmost' if self.leftmost else ''}"

    def flops(self, task: Task) -> float:
        """Three products and sums per entry, and about 12 operations per state for their factors."""
        return 6.0 * task.writes[0].elements + 12.0 * task.reads[0].elements


Rule = RnnSteps | GruSteps | StaticRule
