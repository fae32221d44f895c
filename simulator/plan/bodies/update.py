"""An optimizer update of some parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

from simulator.plan.keys import geometry
from simulator.plan.task import Body, Operand, Task, Work
from traces.errors import SchedcastError, UnknownNameError

#: Names of the state tensors of a parameter, as torch.optim calls them, in the order of the operands.
STATE: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "nesterov": ("momentum_buffer",),
    "adagrad": ("sum", "step"),
    "rmsprop": ("square_avg", "step"),
    "adadelta": ("square_avg", "acc_delta", "step"),
    "adam": ("exp_avg", "exp_avg_sq", "step"),
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
})  # fmt: skip

#: Hyper-parameters that may be set, with their defaults. They are torch.optim's, except for weight decay, which is that of the
#: optimizer-fusion paper (none for sgd), and the learning rate of sgd, momentum and nesterov, which is 0.01.
DEFAULTS: Mapping[str, Mapping[str, float]] = MappingProxyType({
    "sgd": MappingProxyType({"lr": 0.01, "weight_decay": 0.0}),
    "momentum": MappingProxyType({"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}),
    "nesterov": MappingProxyType({"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}),
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
    "nesterov": (5, 5, 1),
    "adagrad": (6, 7, 2),
    "rmsprop": (7, 7, 0),
    "adadelta": (13, 13, 0),
    "adam": (20, 18, 2),
    "adamw": (20, 18, 2),
})  # fmt: skip
#: The same with step counts on the host, as PyTorch's own loop keeps them unless the form is fused.
_HOST_COUNT_LAUNCHES: Mapping[str, tuple[int, int, int]] = MappingProxyType({
    **_LAUNCHES,
    "adagrad": (5, 6, 2),
    "rmsprop": (6, 6, 0),
    "adadelta": (12, 12, 0),
    "adam": (8, 8, 2),
    "adamw": (8, 8, 2),
})  # fmt: skip
#: Launches of PyTorch 1.6 beyond those, per parameter: `zero_grad` sets each gradient to zero, and Adam multiplies and adds where it
#: interpolates now (torch/optim of release 1.6.0).
MORE_LAUNCHES_1_6: Mapping[str, int] = MappingProxyType({**dict.fromkeys(_LAUNCHES, 1), "adam": 2, "adamw": 2})
#: Temporary tensors of a gradient's size that a step makes, in addition to the sum of gradient and weight decay (torch.optim's sources,
#: 2.13).
_MADE: Mapping[str, int] = MappingProxyType({
    "sgd": 0, "momentum": 0, "nesterov": 1, "adagrad": 1, "rmsprop": 1, "adadelta": 2, "adam": 1, "adamw": 1,
})  # fmt: skip
#: Temporary tensors of a gradient's size that exist at a time during a step, without and with weight decay (the same sources, which delete
#: some): in the for-loop form, for one parameter, plus what is still allocated for the previous parameter; in the foreach form, for each
#: parameter.
_HELD: Mapping[str, tuple[tuple[int, int], int, tuple[int, int]]] = MappingProxyType({
    "sgd": ((0, 1), 0, (0, 1)),
    "momentum": ((0, 1), 0, (0, 1)),
    "nesterov": ((1, 2), 0, (1, 1)),
    "adagrad": ((1, 2), 1, (2, 2)),
    "rmsprop": ((1, 2), 1, (1, 2)),
    "adadelta": ((2, 3), 1, (2, 3)),
    "adam": ((2, 3), 1, (1, 1)),
    "adamw": ((2, 2), 1, (1, 1)),
})  # fmt: skip


def forms(optimizer: str) -> tuple[str, ...]:
    """The forms in which PyTorch offers `optimizer`. Raises UnknownNameError for an unknown optimizer."""
    if optimizer not in STATE:
        raise UnknownNameError("optimizer", optimizer, tuple(STATE))
    return FORMS[:2] if optimizer in _WITHOUT_FUSED else FORMS


def check_form(optimizer: str, form: str) -> None:
    """Raise UnknownNameError for an optimizer or a form that does not exist, SchedcastError for a form that PyTorch lacks."""
    offered = forms(optimizer)
    if form not in FORMS:
        raise UnknownNameError("optimizer form", form, offered)
    if form not in offered:
        raise SchedcastError(f"PyTorch has no {form} form of {optimizer}: use {' or '.join(f'{optimizer}:{name}' for name in offered)}")


def hyper_parameters(optimizer: str, **values: float) -> tuple[tuple[str, float], ...]:
    """The defaults of `optimizer`, with `values` in place of some of them, in the form of `Update.hyper`.

    Raises UnknownNameError for an optimizer, or a hyper-parameter of it, that does not exist.
    """
    forms(optimizer)
    defaults = DEFAULTS[optimizer]
    for name in values:
        if name not in defaults:
            raise UnknownNameError(f"hyper-parameter of {optimizer}", name, tuple(defaults))
    return tuple({**defaults, **values}.items())


def rate_at(rates: Sequence[tuple[int, float]], iteration: int) -> float | None:
    """The learning rate of an iteration among `rates`, as in `Update.rates`; None before the first of them."""
    return next((rate for first, rate in reversed(rates) if first <= iteration), None)


def state_shape(optimizer: str, name: str, shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the state tensor `name` of a parameter of `shape` and `dtype`. The step count is a float32 scalar."""
    if name not in STATE[optimizer]:
        raise KeyError(f"{optimizer} keeps no {name!r}; it keeps {STATE[optimizer]}")
    return ((), "float32") if name == "step" else (shape, dtype)


@dataclass(frozen=True, slots=True)
class Update(Body):
    """Update `parameters` with `optimizer` in one of PyTorch's forms.

    Operands: `reads` are the gradients, in the order of `parameters`; `mutates` are, parameter by parameter, the parameter followed by
    its state tensors in the order of `STATE[optimizer]`. `hyper` is a tuple of (name, number) pairs; missing names have their defaults.
    `rates`: learning rates by phase, each with the iteration (from 0) from which on it replaces that of `hyper`, in order.
    `may_skip`: the last of `reads` is not a gradient but a scalar; a step in which it is 1 updates nothing.
    `capturable`: on CUDA in the form that graphs can replay, as executors run it; PyTorch's own loop keeps step counts on the host.
    `call`: the `optimizer.step()` of PyTorch's own loop that runs it: the step's, the same as that of the update before, or a hook's.
    `more_launches`: per parameter, those of an older release of PyTorch beyond those of its for-loop form now.
    """

    optimizer: str
    form: str
    parameters: tuple[str, ...]
    hyper: tuple[tuple[str, float], ...] = ()
    rates: tuple[tuple[int, float], ...] = ()
    capturable: bool = True
    may_skip: bool = False
    call: Literal["step", "same", "hook"] = "step"
    more_launches: int = 0
    kind: Literal["update"] = "update"

    is_update = True

    @property
    def launches(self) -> int:
        """Kernels on CUDA: per parameter in the for-loop form, per call otherwise (PyTorch makes several calls beyond some 100 tensors)."""
        per_parameter, foreach, fused = (_LAUNCHES if self.capturable else _HOST_COUNT_LAUNCHES)[self.optimizer]
        if self.form == "fused":
            return fused
        saved = 0 if self._all_hyper()["weight_decay"] else 1  # the kernel that adds the decay
        if self.optimizer == "nesterov" and self.form == "foreach":
            saved = 0  # instead of the sum with the decay, the gradients are copied: the foreach form changes them
        return (per_parameter - saved + self.more_launches) * len(self.parameters) if self.form == "for" else foreach - saved

    def least_kernels(self, device_kind: str) -> int:
        """The launches; on a CPU, PyTorch's foreach form is a loop over the parameters."""
        return self.launches * (len(self.parameters) if device_kind == "cpu" and self.form == "foreach" else 1)

    def temporaries(self, task: Task) -> list[int]:
        """See `Body`; in the for-loop form, those for the parameter at which they are most."""
        if self.form == "fused":
            return []
        sizes = [operand.bytes for operand in self.gradients(task)]
        own, left, each = _HELD[self.optimizer]
        if self.form == "foreach":
            return each[self._decays] * sizes
        before, largest = max(pairwise([0, *sizes]), key=lambda pair: left * pair[0] + own[self._decays] * pair[1])
        return [size for size in [*own[self._decays] * [largest], *left * [before]] if size]

    def made(self, task: Task) -> list[int]:
        """See `Body`; in the for-loop form, those for the largest gradient, whose memory serves the others."""
        if self.form == "fused":
            return []
        count = _MADE[self.optimizer] + (self._decays and self.optimizer != "adamw")
        sizes = [operand.bytes for operand in self.gradients(task)]
        return count * (sizes if self.form == "foreach" else [max(sizes)])

    @property
    def _decays(self) -> bool:
        return bool(self._all_hyper()["weight_decay"])

    def hyper_at(self, iteration: int) -> tuple[tuple[str, float], ...]:
        """`hyper` with the learning rate of an iteration."""
        rate = rate_at(self.rates, iteration)
        return self.hyper if rate is None else tuple({**dict(self.hyper), "lr": rate}.items())

    def _all_hyper(self) -> dict[str, float]:
        return {**DEFAULTS[self.optimizer], **dict(self.hyper)}

    def key(self, task: Task) -> str:
        """Optimizer, form, which hyper-parameters are in use (their values do not change the time), and the gradients' geometry."""
        used = "+".join(name for name, value in self._all_hyper().items() if value)
        shapes = [geometry(o) for o in self.gradients(task)]
        text = shapes[0] if len(shapes) == 1 else f"{len(shapes)}x{blake2b('|'.join(shapes).encode(), digest_size=8).hexdigest()}"
        older = f"|{self.more_launches}-more" if self.more_launches else ""
        counts = "" if self.capturable else "|host-count"
        return f"update.{self.optimizer}:{self.form}|{text}|{used}{counts}{'|may-skip' * self.may_skip}{older}"

    def work(self, task: Task) -> Work:
        """Bytes of one pass over gradients, parameters and state. Other forms than "fused" make several (`costs.efficiencies.traffic`)."""
        gradients = self.gradients(task)
        moved = sum(o.bytes for o in gradients) + 2 * sum(o.bytes for o in task.mutates)
        return Work(f"update.{self.optimizer}:{self.form}", 4.0 * sum(o.elements for o in gradients), float(moved))

    def gradients(self, task: Task) -> tuple[Operand, ...]:
        """The gradients among the task's reads."""
        return task.reads[: len(self.parameters)]
