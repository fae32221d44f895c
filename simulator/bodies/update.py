"""An optimizer update of some parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from simulator.plan.keys import geometry
from simulator.plan.task import Work
from traces.errors import StepcastError, UnknownNameError

if TYPE_CHECKING:
    from simulator.plan.task import Task


#: Names of the per-parameter state tensors, as torch.optim calls them, in the order of the operands.
STATE: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adagrad": ("sum", "step"),
    "rmsprop": ("square_avg", "step"),
    "adadelta": ("square_avg", "acc_delta", "step"),
    "adam": ("exp_avg", "exp_avg_sq", "step"),
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
})  # fmt: skip

#: Hyper-parameters that may be set, with their defaults: torch.optim's, but weight decay as in the optimizer-fusion paper (none for sgd)
#: and the learning rate of sgd and momentum at 0.01.
DEFAULTS: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "sgd": MappingProxyType({"lr": 0.01, "weight_decay": 0.0}),
    "momentum": MappingProxyType({"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}),
    "adagrad": MappingProxyType({"lr": 0.01, "eps": 1e-10, "weight_decay": 5e-4}),
    "rmsprop": MappingProxyType({"lr": 0.01, "alpha": 0.99, "eps": 1e-8, "weight_decay": 5e-4}),
    "adadelta": MappingProxyType({"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 5e-4}),
    "adam": MappingProxyType({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 5e-4}),
    "adamw": MappingProxyType({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2}),
})  # fmt: skip

FORMS = ("for", "foreach", "fused")
_WITHOUT_FUSED = frozenset({"rmsprop", "adadelta"})

#: Kernel launches on CUDA with weight decay: per parameter in the for-loop form, per call in the foreach and fused forms.
_LAUNCHES: Mapping[str, tuple[int, int, int]] = MappingProxyType({
    "sgd": (2, 2, 1),
    "momentum": (4, 4, 1),
    "adagrad": (6, 7, 2),
    "rmsprop": (7, 7, 0),
    "adadelta": (13, 13, 0),
    "adam": (20, 18, 2),
    "adamw": (20, 18, 2),
})  # fmt: skip


def forms(optimizer: str) -> tuple[str, ...]:
    """The forms that PyTorch has of `optimizer`."""
    if optimizer not in STATE:
        raise UnknownNameError("optimizer", optimizer, tuple(STATE))
    return FORMS[:2] if optimizer in _WITHOUT_FUSED else FORMS


def check_form(optimizer: str, form: str) -> None:
    """Refuse an optimizer that does not exist, and a form that PyTorch lacks."""
    known = forms(optimizer)
    if form not in FORMS:
        raise UnknownNameError("optimizer form", form, known)
    if form not in known:
        raise StepcastError(f"PyTorch has no {form} form of {optimizer}: use {' or '.join(f'{optimizer}:{name}' for name in known)}")


def hyper_parameters(optimizer: str, **given: float) -> tuple[tuple[str, float], ...]:
    """The defaults of `optimizer` with `given` in place of some, as Update.hyper holds them."""
    forms(optimizer)
    defaults = DEFAULTS[optimizer]
    for name in given:
        if name not in defaults:
            raise UnknownNameError(f"hyper-parameter of {optimizer}", name, tuple(defaults))
    return tuple({**defaults, **given}.items())


def state_shape(optimizer: str, name: str, shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the state tensor `name` of a parameter of `shape` and `dtype`: the step count is one float32 number."""
    if name not in STATE[optimizer]:
        raise KeyError(f"{optimizer} keeps no {name!r}; it keeps {STATE[optimizer]}")
    return ((), "float32") if name == "step" else (shape, dtype)


@dataclass(frozen=True, slots=True)
class Update:
    """Update `parameters` with `optimizer` in one of PyTorch's forms.

    Operands: `reads` are the gradients, in the order of `parameters`; `mutates` are, parameter by parameter, the parameter followed by
    its state tensors in the order of `STATE[optimizer]`. `hyper` is a tuple of (name, number) pairs; what it leaves out has its default.
    """

    optimizer: str
    form: str
    parameters: tuple[str, ...]
    hyper: tuple[tuple[str, float], ...] = ()
    kind: Literal["update"] = "update"

    @property
    def launches(self) -> int:
        """Kernel launches: the for-loop form has its own for each parameter (PyTorch splits the other forms' beyond some 100 tensors)."""
        per_parameter, foreach, fused = _LAUNCHES[self.optimizer]
        if self.form == "fused":
            return fused
        spared = 0 if self._all_hyper()["weight_decay"] else 1
        return (per_parameter - spared) * len(self.parameters) if self.form == "for" else foreach - spared

    def _all_hyper(self) -> dict[str, float]:
        return {**DEFAULTS[self.optimizer], **dict(self.hyper)}

    def key(self, task: "Task") -> str:
        """Optimizer, form, which hyper-parameters are in use (their values do not change the time), and the gradients' geometry."""
        used = "+".join(name for name, value in self._all_hyper().items() if value)
        shapes = [geometry(o) for o in task.reads]
        text = shapes[0] if len(shapes) == 1 else f"{len(shapes)}x{blake2b('|'.join(shapes).encode(), digest_size=8).hexdigest()}"
        return f"update.{self.optimizer}:{self.form}|{text}|{used}"

    def work(self, task: "Task") -> Work:
        """Bytes of one pass over gradients, parameters and state; other forms than fused make several (learned as their efficiency)."""

        moved = sum(o.bytes for o in task.reads) + 2 * sum(o.bytes for o in task.mutates)
        return Work(f"update.{self.optimizer}:{self.form}", float(sum(o.elements for o in task.reads)) * 4, float(moved))
