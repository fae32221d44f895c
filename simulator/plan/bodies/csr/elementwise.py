"""The Jacobian of element-wise ops."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from simulator.plan.bodies.csr.sparse_rule import SparseRule, check_geometry
from simulator.plan.bodies.csr.store import store
from simulator.plan.task import Task

if TYPE_CHECKING:
    from simulator.plan.bodies.csr.pattern import Pattern

#: Element-wise backward ops: they take a gradient and `ElementwiseRule.args`, and multiply every element of the gradient by a factor.
ELEMENTWISE = frozenset(
    f"aten.{name}.default"
    for name in (
        "threshold_backward", "tanh_backward", "sigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "gelu_backward",
        "silu_backward", "mish_backward", "hardswish_backward", "hardsigmoid_backward", "elu_backward", "softplus_backward",
        "log_sigmoid_backward", "hardshrink_backward", "softshrink_backward", "native_dropout_backward",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ElementwiseRule(SparseRule):
    """An op whose output element i depends on input element i alone. The Jacobian is the diagonal that its backward op makes of ones.

    `target` is the backward op. `args` and `kwargs` are the JSON texts of its arguments after the gradient, where `{"$": i}` stands for
    the task's operand i. Reads: the tensors that the forward op saved, [B, ...]. Values [elements, B].
    """

    elements: int
    target: str
    args: str = "[]"
    kwargs: str = "{}"
    of: Literal["elementwise"] = "elementwise"

    launches: ClassVar[int] = 2
    calls: ClassVar[int] = 2
    shared: ClassVar[bool] = False

    def __post_init__(self):
        """Raise ValueError for an op that is not element-wise."""
        check_geometry("element-wise op", (self.elements,), (self.elements,))
        if self.target not in ELEMENTWISE:
            raise ValueError(f"{self.target!r} is not an element-wise backward op; expected one of {', '.join(sorted(ELEMENTWISE))}")

    @property
    def rows(self) -> int:
        """Elements of a sample."""
        return self.elements

    @property
    def cols(self) -> int:
        """Elements of a sample."""
        return self.elements

    @property
    def nnz(self) -> int:
        """The length of the diagonal."""
        return self.elements

    @property
    def key(self) -> str:
        """Op, size and arguments."""
        return f"{self.target}.{self.elements}{self.args}{'' if self.kwargs == '{}' else self.kwargs}"

    def flops(self, task: Task) -> float:
        """One per entry."""
        self.check_operands(task, *[self.elements] * len(task.reads))
        return float(task.writes[0].elements)

    def pattern(self) -> "Pattern":
        """The diagonal."""
        from simulator.plan.bodies.csr.pattern import identity

        return store.get(self.elements, lambda: identity(self.elements))
