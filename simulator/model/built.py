"""The result of a model factory, in one form for all factories."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from simulator.model.batch import mapped, tensors_of
from simulator.model.default_loss import unfit_loss
from simulator.model.ops.autocast import autocast
from traces.errors import SchedcastError


class FactoryFailedError(SchedcastError):
    """The user's factory raised an exception. Under fake tensors this may only mean that the factory reads tensor values."""


@dataclass
class Built:
    """A module in training mode with one batch: `inputs` are positional, `keywords` are by name, and `loss(output, target)` is a scalar.

    `scaler`: the carried tensors of a gradient scaler by name (`simulator.model.layers.loss_scaling`); empty without one.
    `autocast`: the lower precision in which `run` computes, and the kind of device whose rules autocast follows.
    """

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    target: Any
    loss: Callable[[Any, Any], torch.Tensor]
    autocast: tuple[str, str] | None = None
    scaler: dict[str, torch.Tensor] = field(default_factory=dict)

    def named_inputs(self) -> dict[str, torch.Tensor]:
        """Return every input and target tensor by name: `input:0`, `input:mask`, `input:0.mask` if it is in a collection, `target:0`."""
        items = {**dict(enumerate(self.inputs)), **self.keywords}
        named = {name: tensor for key, item in items.items() for name, tensor in tensors_of(item, f"input:{key}")}
        return named | {f"target:{i}": tensor for i, (_, tensor) in enumerate(tensors_of(self.target, "target"))}

    def replace_tensors(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every parameter, buffer, input and target by `convert(tensor)`. A tensor that is used twice is converted once.

        A tensor that `convert` returns as it is stays the same object.

        `Module.to` does not do: it cannot replace fake tensors.
        """
        # By id. The originals are kept too, because the id of a freed tensor may be used again.
        converted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def once(item: torch.Tensor | None) -> torch.Tensor | None:
            if item is None:
                return None
            if id(item) not in converted:
                with torch.no_grad():
                    tensor = convert(item)
                if tensor is not item and isinstance(item, torch.nn.Parameter):
                    tensor = torch.nn.Parameter(tensor.detach(), item.requires_grad)
                converted[id(item)] = (item, tensor)
            return converted[id(item)][1]

        for module in self.module.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    tensors[name] = once(tensor)
        self.inputs, self.keywords, self.target = (mapped(batch, once) for batch in (self.inputs, self.keywords, self.target))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within the block the module may be trained or moved; at its end every tensor is in its place again, with its former value.

        This takes one copy of all tensors. Gradients are dropped.
        """
        places = [tensors for module in self.module.modules() for tensors in (module._parameters, module._buffers)]
        contents = [dict(tensors) for tensors in places]
        batch = self.inputs, self.keywords, self.target
        originals = {id(tensor): tensor for _, tensor in tensors_of([contents, batch], "")}
        copies = {key: tensor.detach().clone() for key, tensor in originals.items()}
        try:
            yield
        finally:
            for tensors, content in zip(places, contents, strict=True):
                tensors.clear()
                tensors.update(content)
            self.inputs, self.keywords, self.target = batch
            with torch.no_grad():
                for key, tensor in originals.items():
                    if not torch.equal(tensor, copies[key]):  # what only stayed in its place, such as inputs, is not written
                        tensor.copy_(copies[key])
                    tensor.grad = None

    def run(self) -> torch.Tensor:
        """Run the forward pass and return the loss. Raises MissingLossError for a loss that takes only tensors if the output is none."""
        with nullcontext() if self.autocast is None else autocast(*self.autocast):
            output = self.module(*self.inputs, **self.keywords)
            try:
                return self.loss(output, self.target)
            except (AttributeError, TypeError) as error:
                if isinstance(output, torch.Tensor):
                    raise
                raise unfit_loss(output, error) from error
