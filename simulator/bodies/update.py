"""An optimizer update of some parameters."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from .work import Work, geometry

if TYPE_CHECKING:
    from ..plan import Task


#: Per optimizer: names of the per-parameter state tensors (same shape as the parameter unless it is `step`, a scalar),
#: and (reads, writes) of parameter-sized tensors per element in one pass, gradient and parameter included.
STATE = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq", "step"),
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
}
FORMS = ("for", "foreach", "fused")


@dataclass(frozen=True, slots=True)
class Update:
    """Update `parameters` with `optimizer` in one of PyTorch's forms.

    Operands: `reads` are the gradients, in the order of `parameters`; `mutates` are, parameter by parameter, the parameter followed by
    its state tensors in the order of `STATE[optimizer]`. `hyper` is a tuple of (name, number) pairs.
    """

    optimizer: str
    form: str
    parameters: tuple[str, ...]
    hyper: tuple[tuple[str, float], ...] = ()
    kind: Literal["update"] = "update"

    @property
    def launches(self) -> int:
        """Kernel launches: for-loop forms launch every pass per parameter; foreach every pass once; fused one."""
        passes = {"sgd": 2, "momentum": 4, "adam": 11, "adamw": 12}[self.optimizer]
        return {"for": passes * len(self.parameters), "foreach": passes, "fused": 1}[self.form]

    def key(self, task: "Task") -> str:
        """Optimizer, form, which hyper-parameters are in use (their values do not change the time), and the gradients' geometry."""
        used = "+".join(name for name, value in self.hyper if value)
        shapes = [geometry(o) for o in task.reads]
        text = shapes[0] if len(shapes) == 1 else f"{len(shapes)}x{blake2b('|'.join(shapes).encode(), digest_size=8).hexdigest()}"
        return f"update.{self.optimizer}:{self.form}|{text}|{used}"

    def work(self, task: "Task") -> Work:
        """Bytes of one pass over gradients, parameters and state; other forms than fused make several (learned as their efficiency)."""

        moved = sum(o.bytes for o in task.reads) + 2 * sum(o.bytes for o in task.mutates)
        return Work(f"update.{self.optimizer}:{self.form}", float(sum(o.elements for o in task.reads)) * 4, float(moved))
