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

from simulator.model.built import check_module, mapped, tensors_of
from simulator.model.capture.repetition import PythonDraws
from simulator.model.factory import LIVE, Factory
from simulator.model.fingerprint import content, fingerprint
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
    """Return the factory of a live module, and the samples of its batch.

    It is the earlier one if it is certain that nothing that a capture depends on has changed since then (`simulator.model.fingerprint`).

    `inputs`, `target`: a tensor, or a tuple, mapping or dataclass of them, on any device. `loss(output, target)` is a scalar; by default
    that of `default_loss`. `batch`: the number of samples, by default the most frequent extent of dimension 0. The tensors of another
    batch have as many samples: those of this one, in turn. `step(module, inputs)`, if given, returns the loss.

    Raises SchedcastError if the number of samples is not known, and for a module that cannot be captured.
    """
    check_module(type(module).__name__, module)  # its copies have no hooks on parameters
    samples = _samples(inputs, target) if batch is None else batch
    facts = fingerprint(module, mapped((inputs, target), torch.Tensor.detach), loss, step, samples)
    for known in list(_FACTORIES.values()):
        if isinstance(known.call, _Copies) and known.call.is_of(module, facts, (inputs, target)):
            return known, samples
    own_batch = mapped((inputs, target), lambda tensor: tensor.detach() if tensor.is_meta else tensor.detach().cpu())
    call = _Copies(weakref.ref(module), facts, own_batch, loss, samples, step)
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
        self,
        module: Callable[[], torch.nn.Module | None],
        facts: tuple | None,
        batch: tuple[Any, Any],
        loss: Any,
        samples: int,
        step: Any,
    ):
        """`facts`: what a capture depends on; None if that is not certain."""
        self._module, self._facts, self._batch = module, facts, batch
        self._loss, self._samples, self._step = loss, samples, step
        self._read: bytes | None = None  # a hash of the numbers that a capture may have read

    def is_of(self, module: torch.nn.Module, facts: tuple | None, batch: Any) -> bool:
        """Whether copies of `module` with the numbers of `batch` would be captured as before."""
        if self._module() is not module or facts is None or self._facts != facts:
            return False
        return self._read is None or self._read == _readable(module, batch)

    def __call__(self, batch: int) -> tuple:
        module = self._module()
        if module is None:
            raise SchedcastError("the module no longer exists; expected it to live as long as what is asked of it; keep it", Code.MODEL)
        if type(torch.empty(0)) is torch.Tensor:  # not a fake one: capture has found that a step reads numbers
            if any(tensor.is_meta for _, tensor in tensors_of(self._batch, "")):
                raise SchedcastError("a step reads numbers, and the batch is on the device meta, which has none; give one with numbers")
            self._read = _readable(module, self._batch)
        inputs, target = mapped(self._batch, lambda tensor: self._resized(tensor, batch))
        if self._step is not None:
            return _Stepped(_copied(module), self._step), (inputs,), target, lambda loss, _: loss
        return _copied(module), inputs, target, *([] if self._loss is None else [self._loss])

    def _resized(self, tensor: torch.Tensor, batch: int) -> torch.Tensor:
        tensor = torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor  # a fake one
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
    except Exception as error:  # attributes of a module may refuse to be copied with any error
        raise SchedcastError(f"{type(module).__name__} cannot be copied: {brief(error)}; expected a module for copy.deepcopy") from error


def _readable(module: torch.nn.Module, batch: Any) -> bytes:
    """A hash of the numbers that a step may read: all but the trainable parameters."""
    own = (*(p for p in module.parameters() if not p.requires_grad), *module.buffers())
    return content((*own, *(tensor for _, tensor in tensors_of(batch, ""))))


def _samples(inputs: Any, target: Any) -> int:
    extents = Counter(t.shape[0] for _, t in (*tensors_of(inputs, ""), *tensors_of(target, "")) if t.dim())
    if not extents:
        raise SchedcastError("the batch has no tensor with a dimension; expected tensors with samples along dimension 0")
    return extents.most_common(1)[0][0]
