"""Plain PyTorch's training loop, as a user writes it: what numbers and times are held against."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executors.dropout import DeterministicDropout, MathWhereAttentionDrops
from executors.forms import Forms
from executors.kernels.update import torch_optimizer
from traces.errors import StepcastError


def split(batch: object, parts: int) -> list:
    """`batch` in `parts` equal chunks along dimension 0: a tensor, or a tuple, list or dict of such. Anything else is in every part."""
    if isinstance(batch, Tensor) and batch.dim():
        if batch.shape[0] % parts:
            raise StepcastError(f"a batch of {batch.shape[0]} does not divide into {parts} equal micro-batches: choose a divisor")
        return list(batch.chunk(parts))
    if isinstance(batch, (tuple, list)):
        return [type(batch)(chunk) for chunk in zip(*(split(item, parts) for item in batch), strict=True)] or [batch] * parts
    if isinstance(batch, dict):
        pieces = {key: split(value, parts) for key, value in batch.items()}
        return [{key: chunks[part] for key, chunks in pieces.items()} for part in range(parts)]
    return [batch] * parts


class Reference:
    """Eager training of `module` on one batch until it is fed another: positional `inputs`, or a dict of keyword arguments.

    `loss(output, target)`, cross-entropy where it is None. With `accumulate`, gradients of that many micro-batches are summed and the
    loss is their mean. With `dropout_seed`, masks are those that a plan draws: with `draws` "keyed" those of `executors.dropout`, with
    "stream" those of PyTorch's generators, seeded once before the first step. `seed_generator` seeds the generator that "keyed" draws
    from; by default the CUDA device's for tensors on CUDA, and on the CPU masks are replaced. `capturable`: update in the form that plans
    have on CUDA.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Sequence[object] | dict[str, object],
        target: object,
        loss: Callable[..., Tensor] | None,
        optimizer: str,
        form: str,
        hyper: Sequence[tuple[str, float]] = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        dropout_seed: int | None = None,
        draws: str = "keyed",
        seed_generator: Callable[[int], None] | None = None,
        capturable: bool = False,
    ):
        self.module = module
        self.loss = loss or F.cross_entropy
        self.clip_norm = clip_norm
        self.dropout_seed = dropout_seed
        self.draws = Forms(draws=draws).draws
        self.seed_generator = seed_generator
        self.steps = 0
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch_optimizer(optimizer, form, self.trained, hyper, capturable)
        self.accumulate = accumulate
        self.feed(inputs, target)

    def feed(self, inputs: Sequence[object] | dict[str, object], target: object) -> None:
        """Train on this batch from the next step on."""
        given = inputs if isinstance(inputs, dict) else tuple(inputs)
        self.micro_batches = list(zip(split(given, self.accumulate), split(target, self.accumulate), strict=True))

    def step(self) -> Tensor:
        """Train one step and return its loss, detached and without waiting for a device."""
        self.optimizer.zero_grad(set_to_none=True)
        dropout = self._dropout()
        count = len(self.micro_batches)
        losses = []
        for inputs, target in self.micro_batches:
            with dropout():
                output = self.module(**inputs) if isinstance(inputs, dict) else self.module(*inputs)
                loss = self.loss(output, target)
            (loss if count == 1 else loss / count).backward()
            losses.append(loss.detach())
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.clip_norm)
        self.optimizer.step()
        self.steps += 1
        return losses[0] if count == 1 else torch.stack(losses).mean()

    def _dropout(self) -> Callable[[], AbstractContextManager]:
        """What to enter for every forward pass of the step."""
        if self.dropout_seed is None:
            return nullcontext
        if self.draws == "keyed":
            masks = DeterministicDropout(self.dropout_seed, self.steps, self.seed_generator)
            return lambda: masks
        if not self.steps:
            torch.manual_seed(self.dropout_seed)
        return MathWhereAttentionDrops

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that the last step's update used (clipped, if they were), by parameter name; none for a parameter without one."""
        return {name: parameter.grad for name, parameter in self.module.named_parameters() if parameter.grad is not None}

    def parameters(self) -> dict[str, Tensor]:
        """The parameters as they are now, by name; frozen ones too."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}
