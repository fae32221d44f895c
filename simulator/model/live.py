"""A module that exists already, in a user's own process, as a model: `live:NAME` names it. Nothing of the user's objects changes.

A copy is captured: parameters, gradients, hooks, the mode and all random generators stay as they are, and no op runs.
"""

import copy
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch

from simulator.model.built import mapped, tensors_of
from simulator.model.capture.repetition import PythonDraws
from simulator.model.factory import LIVE, Factory
from simulator.model.user_code import brief
from traces.errors import Code, SchedcastError

#: The factories in use, by name. The module and its factory live as long as the user keeps them.
_FACTORIES: "weakref.WeakValueDictionary[str, Factory]" = weakref.WeakValueDictionary()
_NUMBERS = count(1)


def live_factory(
    module: torch.nn.Module,
    inputs: Any,
    target: Any = None,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    batch: int | None = None,
    step: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
) -> tuple[Factory, int]:
    """Return the factory of a live module, and the samples of its batch. It is the one made before if nothing has changed since.

    `inputs`, `target`: a tensor, or a tuple, mapping or dataclass of them, on any device. `loss(output, target)` is a scalar; by default
    that of `default_loss`. `batch`: the number of samples, by default the most frequent extent of dimension 0. The tensors of another
    batch have as many samples: those of this one, in turn. `step(module, inputs)`, if given, returns the loss.

    Raises SchedcastError if the number of samples is not known.
    """
    samples = _samples(inputs, target) if batch is None else batch
    shapes = tuple((name, tuple(t.shape), t.dtype) for name, t in (*tensors_of(inputs, "input"), *tensors_of(target, "target")))
    facts = (_structure(module), shapes, loss, step, samples)
    for known in list(_FACTORIES.values()):
        if isinstance(known.call, _Copies) and known.call.is_of(module, facts):
            return known, samples
    own_inputs, own_target = mapped((inputs, target), lambda tensor: tensor.detach().cpu())
    call = _Copies(weakref.ref(module), facts, own_inputs, own_target, loss, samples, step)
    factory = Factory(f"{LIVE}{type(module).__name__}-{next(_NUMBERS)}", call, None, repeats=True, kept={})
    factory.returned.set()
    factory.checked.set()
    _FACTORIES[factory.name] = factory
    return factory, samples


def find_live(name: str) -> Factory:
    """Return the factory in use that is called `name`. Raises SchedcastError if there is none."""
    factory = _FACTORIES.get(name)
    if factory is None:
        raise SchedcastError(f"no live model {name!r}; expected one that this process has predicted and still holds", Code.MODEL)
    return factory


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the block a live module may be captured, whatever the user's contexts: with gradients, without autocast, uncompiled.

    At its end all random generators and these contexts are as before.
    """
    drawn, state = PythonDraws(), torch.get_rng_state()
    with ExitStack() as contexts:
        contexts.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                contexts.enter_context(torch.autocast(kind, enabled=False))
        if "torch._dynamo" in sys.modules:
            contexts.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            yield
        finally:
            drawn.repeat()
            torch.set_rng_state(state)


class _Copies:
    """Makes copies of a live module, with its batch or another one."""

    def __init__(
        self, module: Callable[[], torch.nn.Module | None], facts: tuple, inputs: Any, target: Any, loss: Any, samples: int, step: Any
    ):
        self._module, self._facts, self._batch = module, facts, (inputs, target)
        self._loss, self._samples, self._step = loss, samples, step

    def is_of(self, module: torch.nn.Module, facts: tuple) -> bool:
        return self._module() is module and self._facts == facts

    def __call__(self, batch: int) -> tuple:
        module = self._module()
        if module is None:
            raise SchedcastError("the module no longer exists; expected it to live as long as what is asked of it; keep it", Code.MODEL)
        inputs, target = mapped(self._batch, lambda tensor: self._resized(tensor, batch))
        if self._step is not None:
            return _Stepped(_copied(module), self._step), (inputs,), target, lambda loss, _: loss
        return _copied(module), inputs, target, *([] if self._loss is None else [self._loss])

    def _resized(self, tensor: torch.Tensor, batch: int) -> torch.Tensor:
        if batch == self._samples or tensor.shape[:1] != (self._samples,):
            return tensor
        return tensor[torch.arange(batch) % self._samples]


class _Stepped(torch.nn.Module):
    """A module whose forward is a user's step, which returns the loss."""

    def __init__(self, model: torch.nn.Module, step: Callable[[torch.nn.Module, Any], torch.Tensor]):
        super().__init__()
        self.model, self._step = model, step

    def forward(self, batch: Any) -> torch.Tensor:
        """Run the step."""
        return self._step(self.model, batch)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy on the CPU, without gradients. Under fake tensors its tensors are fake and take no memory."""
    memo: dict[int, Any] = {}
    for child in module.modules():
        for tensor in (*child._parameters.values(), *child._buffers.values(), *vars(child).values()):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                alone = tensor.detach().cpu().clone()
                memo[id(tensor)] = torch.nn.Parameter(alone, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else alone
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # what a module holds may refuse to be copied in any way
        raise SchedcastError(f"{type(module).__name__} cannot be copied: {brief(error)}; expected a module for copy.deepcopy") from error


def _samples(inputs: Any, target: Any) -> int:
    extents = Counter(t.shape[0] for _, t in (*tensors_of(inputs, ""), *tensors_of(target, "")) if t.dim())
    if not extents:
        raise SchedcastError("the batch has no tensor with a dimension; expected tensors with samples along dimension 0")
    return extents.most_common(1)[0][0]


def _structure(module: torch.nn.Module) -> tuple:
    """What decides the ops of a module, as far as it can be seen: types, code, plain attributes and shapes, not the numbers in tensors."""
    plain = (bool, int, float, str, type(None))
    return tuple(
        (
            name,
            type(child),
            getattr(type(child).forward, "__code__", None),
            tuple((key, value) for key, value in vars(child).items() if isinstance(value, plain)),
            tuple((key, _kind(tensor)) for key, tensor in (*child._parameters.items(), *child._buffers.items())),
            tuple(map(id, (*child._forward_hooks.values(), *child._forward_pre_hooks.values()))),
        )
        for name, child in module.named_modules()
    )


def _kind(tensor: torch.Tensor | None) -> tuple | None:
    return None if tensor is None else (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)
