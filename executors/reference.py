"""Plain PyTorch's training loop, as a user writes it. The numbers and times of plans are compared with it."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from executors.binding import Forms
from executors.contexts import DeterministicDraws, MathAttentionForDropout, batch_norm_by_parts, checkpointing
from executors.kernels.update import torch_optimizer
from simulator.model.built import mapped, tensors_of
from simulator.model.gradients import GROWTH, SCALE
from simulator.plan.bodies.update import rate_at
from simulator.strategies.pipeline.staleness import Staleness
from traces.errors import Code, SchedcastError


def split(batch: object, count: int, whole: Sequence[Tensor] = ()) -> list:
    """Split a batch into `count` equal microbatches along dimension 0.

    `batch`: as in `simulator.model.built`. Anything but a tensor is repeated in every microbatch, and so are the tensors of `whole`,
    which have no batch dimension. Raises SchedcastError if the batch does not divide.
    """

    def part(tensor: Tensor, number: int) -> Tensor:
        if not tensor.dim() or any(tensor is each for each in whole):
            return tensor
        if tensor.shape[0] % count:
            raise SchedcastError(
                f"a batch of {tensor.shape[0]} does not divide into {count} equal microbatches: choose a divisor", Code.BATCH
            )
        return tensor.chunk(count)[number]

    return [mapped(batch, partial(part, number=number)) for number in range(count)]


def joined(batches: Sequence[Any]) -> Any:
    """The batch that `split` divides into these."""
    tensors = zip(*([tensor for _, tensor in tensors_of(batch, "")] for batch in batches), strict=True)
    return mapped(batches[0], lambda _: torch.cat(next(tensors)))


class Reference:
    """Eager training of `module`, on the same batch until `feed` sets another one.

    `inputs`: positional arguments, or a dict of keyword arguments. `loss(output, target)`: cross-entropy if None.
    `accumulate`: the number of microbatches. Their gradients are summed, and the loss is the mean of theirs; with `whole_mean` it is that
    of their outputs together, unless outputs have a loss of their own.
    `whole`: the tensors among the inputs that have no batch dimension, so that every microbatch has all of them.
    `dropout_seed`: draw the random numbers that a plan draws. With `draws` "keyed" they are those of `executors.contexts`; with "stream"
    they come from PyTorch's generators, seeded once before the first step. `seed_generator`: seeds the generator that "keyed" draws use
    (default: the CUDA device's for CUDA tensors; on the CPU masks are replaced).
    `capturable`: update in the form that plans use on CUDA.
    `rates`: learning rates by phase, as in `simulator.plan.bodies.update.Update`.
    `autocast`: returns the context in which forward and loss run. `scaler`: scales the loss, and skips steps whose gradients overflow.

    The attribute `batch_norm_parts` says which parts of a microbatch have separate batch-norm statistics, by layer
    (`batch_norm_by_parts`), and `checkpointed` which modules are checkpointed, and how (`checkpointing`). `lasting` has the numbers of the
    microbatches after which buffers stay changed, as on one of several devices with separate buffers; empty for all.
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
        whole: Sequence[Tensor] = (),
        clip_norm: float | None = None,
        dropout_seed: int | None = None,
        draws: str = "keyed",
        seed_generator: Callable[[int], None] | None = None,
        capturable: bool = False,
        rates: Sequence[tuple[int, float]] = (),
        autocast: Callable[[], AbstractContextManager] = nullcontext,
        scaler: torch.amp.GradScaler | None = None,
        whole_mean: bool = False,
    ):
        self.module = module
        self.loss = loss or F.cross_entropy
        self.clip_norm = clip_norm
        self.dropout_seed = dropout_seed
        self.draws = Forms(draws=draws).draws
        self.seed_generator = seed_generator
        self.steps = 0
        self.batch_norm_parts: Mapping[str, Sequence[int]] = {}
        self.checkpointed: Mapping[str, str] = {}
        self.lasting: Sequence[int] = ()
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        #: Makes an optimizer of some parameters.
        self.optimizer_of = partial(torch_optimizer, optimizer, form, hyper=hyper, capturable=capturable)
        self.optimizer = self.optimizer_of(self.trained)
        self.rates = rates
        self.autocast = autocast
        self.scaler = scaler
        self.accumulate, self._whole, self.whole_mean = accumulate, whole, whole_mean
        self.feed(inputs, target)

    def feed(self, inputs: Sequence[object] | dict[str, object], target: Any) -> None:
        """Train on this batch from the next step on."""
        self._batch = inputs if isinstance(inputs, dict) else tuple(inputs), target
        self.split(self.accumulate)

    def split(self, count: int) -> None:
        """Train on `count` microbatches from the next step on."""
        (arguments, target), self.accumulate = self._batch, count
        self.microbatches = list(zip(*(split(item, count, self._whole) for item in (arguments, target)), strict=True))

    def step(self) -> Tensor:
        """Train one step. Returns its loss as a detached tensor, without waiting for a device."""
        self._begin()
        context = self._forward_context()
        count = len(self.microbatches)
        losses: list[Tensor] = []
        outputs = []
        for number, (inputs, target) in enumerate(self.microbatches):
            passing = self._buffers() if self.lasting and number not in self.lasting else {}
            self._use_weights("forward")
            with context():
                output = self.module(**inputs) if isinstance(inputs, dict) else self.module(*inputs)
                together = self.whole_mean and count > 1 and self._has_samples(output)
                loss = None if together else self.loss(output, target)
            if loss is None:
                outputs.append(output)
            else:
                losses.append(self._backward(loss, count))
            for name, buffer in self.module.named_buffers() if passing else ():
                if name in passing and buffer.shape == passing[name].shape:
                    buffer.data.copy_(passing[name])
        if outputs:
            with context():
                loss = self.loss(joined(outputs), self._batch[1])
            losses.append(self._backward(loss, 1))
        self._use_weights("update")
        if self.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.trained, self.clip_norm)
        self._update()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def _has_samples(self, output: object) -> bool:
        """Whether outputs of microbatches can be joined. Raises SchedcastError if not, where numbers are compared."""
        if all(tensor.dim() for _, tensor in tensors_of(output, "")):
            return True
        if self.dropout_seed is not None:
            raise SchedcastError(
                "the model makes its own loss and draws random numbers, or normalizes a batch: its numbers are not compared with one mean"
                " over the batch (--loss-mean batch); return outputs and give the loss apart",
                Code.MODEL,
            )
        return False

    def _backward(self, loss: Tensor, count: int) -> Tensor:
        """Add the gradients of a loss that is one of `count`. Returns it detached."""
        self._use_weights("backward")
        mean = loss if count == 1 else loss / count
        (mean if self.scaler is None else self.scaler.scale(mean)).backward()
        return loss.detach()

    def _begin(self) -> None:
        """Called before each step."""
        self.optimizer.zero_grad(set_to_none=True)

    def _use_weights(self, phase: str) -> None:
        """Called before each phase. Plain training has one version of the weights."""

    def _use_rate(self, *optimizers: torch.optim.Optimizer) -> None:
        """Give optimizers the step's learning rate."""
        rate = rate_at(self.rates, self.steps)
        for group in chain.from_iterable(each.param_groups for each in optimizers) if rate is not None else ():
            group["lr"] = rate

    def _update(self) -> None:
        """Update the parameters at the step's learning rate, and count the step."""
        self._use_rate(self.optimizer)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.steps += 1

    def _forward_context(self) -> Callable[[], AbstractContextManager]:
        """A function that returns the context for each forward pass of the step."""
        dropout = self._dropout()
        by_parts = partial(batch_norm_by_parts, self.module, self.batch_norm_parts) if self.batch_norm_parts else nullcontext
        checkpointed = partial(checkpointing, self.module, self.checkpointed) if self.checkpointed else nullcontext

        @contextmanager
        def context() -> Iterator[None]:
            with dropout(), by_parts(), checkpointed(), self.autocast():
                yield

        return context

    def _dropout(self) -> Callable[[], AbstractContextManager]:
        """A function that returns the context in which a forward pass draws its random numbers."""
        if self.dropout_seed is None:
            return nullcontext
        if self.draws == "keyed":
            numbers = DeterministicDraws(self.dropout_seed, self.steps, self.seed_generator)
            return lambda: numbers
        if not self.steps:
            torch.manual_seed(self.dropout_seed)
        return MathAttentionForDropout

    def gradients(self) -> dict[str, Tensor]:
        """The gradients that the last update used, by parameter name: after clipping, and only of parameters that have a gradient."""
        return {name: parameter.grad for name, parameter in self.module.named_parameters() if parameter.grad is not None}

    def parameters(self) -> dict[str, Tensor]:
        """The current parameters by name, including frozen ones."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    def _buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers by name."""
        return {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}

    def kept(self) -> dict[str, Tensor]:
        """Copies of what else a step leaves to the next one, by the names of a plan: buffers, optimizer state and gradient scaler."""
        kept = self._buffers()
        for name, parameter in self.module.named_parameters():
            for state, tensor in self.optimizer.state.get(parameter, {}).items():
                kept[f"{name}::{state}"] = tensor.detach().clone()
        if self.scaler is not None and (scaler := self.scaler.state_dict()):
            kept |= {SCALE: torch.tensor(scaler["scale"]), GROWTH: torch.tensor(scaler["_growth_tracker"])}
        return kept


class Hooked(Reference):
    """A `Reference` whose updates are called by hooks, each parameter by a separate optimizer (Jiang et al., "Optimizer Fusion")."""

    def fuse(self, fusion: Literal["forward", "backward"]) -> "Hooked":
        """Update from now on right before a layer's next forward (algorithm 2), or once a gradient is complete (algorithm 3).

        Raises SchedcastError for a gradient scaler, and in backward for microbatches and clipping, which need all gradients first.
        """
        backward = fusion == "backward"
        if self.scaler is not None or (backward and (self.accumulate > 1 or self.clip_norm is not None)):
            raise SchedcastError(
                f"hooks in {fusion} update before all gradients are known; scaling, or here clipping, needs them", Code.MODEL
            )
        self._each = {parameter: self.optimizer_of([parameter]) for parameter in self.trained}
        self._in_backward, self._pending = backward, set[nn.Parameter]()
        if backward:
            for parameter in self.trained:
                parameter.register_post_accumulate_grad_hook(self._step)
        else:
            self._called: set[nn.Module] = set()
            self._own: dict[nn.Module, list[nn.Parameter]] = {}
            for layer in self.module.modules():
                layer.register_forward_pre_hook(self._before)
        return self

    def _before(self, layer: nn.Module, arguments: object) -> None:
        self._called.add(layer)
        self._flush(self._own.get(layer, ()))

    def _owners(self) -> dict[nn.Module, list[nn.Parameter]]:
        """By layer, the parameters that it or layers within it use whose forward nobody calls, such as the projection of an attention."""
        own: dict[nn.Module, list[nn.Parameter]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            layer = name.rpartition(".")[0]
            while self.module.get_submodule(layer) not in self._called:
                layer = layer.rpartition(".")[0]
            own.setdefault(self.module.get_submodule(layer), []).append(parameter)
        return own

    def flush(self) -> None:
        """Complete the updates that wait for the next forward."""
        self._flush(list(self._pending))

    def _flush(self, own: Sequence[nn.Parameter]) -> None:
        for parameter in own:
            if parameter in self._pending:
                self._pending.remove(parameter)
                self._step(parameter)

    def _step(self, parameter: nn.Parameter) -> None:
        self._each[parameter].step()
        parameter.grad = None

    def _begin(self) -> None:
        if self._in_backward:
            self._use_rate(*self._each.values())

    def _update(self) -> None:
        if not self._in_backward:
            self._use_rate(*self._each.values())
            self._own = self._own or self._owners()
            self._pending = {parameter for parameter in self.trained if parameter.grad is not None}
        self.steps += 1

    def parameters(self) -> dict[str, Tensor]:
        self.flush()
        return super().parameters()


class StaleReference(Reference):
    """A `Reference` that computes mini-batch m with weights that lack updates, by parameter: one mini-batch after another.

    It is written plainly and slowly; the numbers of pipelines that never drain are compared with it. Forward runs with the weights after
    update m - `forward`, then backward with those after update m - `backward` (the first weights, if there were not so many updates). The
    update changes the newest weights.
    """

    staleness: Mapping[str, Staleness]

    def stale(self, staleness: Mapping[str, Staleness]) -> "StaleReference":
        """Train with this staleness from now on, beginning with the present weights."""
        self.staleness = staleness
        most = max((max(each) for each in staleness.values()), default=0)
        #: The weights after each of the last updates, the newest last.
        self._versions: deque[dict[str, Tensor]] = deque([self._weights()], maxlen=most + 1)
        return self

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}

    def _use_weights(self, phase: str) -> None:
        """Give every parameter its version for the phase, unseen by autograd, which would refuse the changed weights."""
        for name, parameter in self.module.named_parameters():
            missing = getattr(self.staleness.get(name, Staleness()), phase, 0)
            parameter.data.copy_(self._versions[max(-1 - missing, -len(self._versions))][name])

    def _update(self) -> None:
        super()._update()
        self._versions.append(self._weights())
