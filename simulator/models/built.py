"""What a model factory made, in one form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from traces.errors import StepcastError


class FactoryFailedError(StepcastError):
    """The user's factory raised; under fake tensors that may only mean that it needs real numbers."""


@dataclass
class Built:
    """What a model factory returned, in one form: `inputs` positional, `keywords` by name, `loss(output, target)`."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    target: Any
    loss: Callable[[Any, Any], torch.Tensor]

    def named_inputs(self) -> dict[str, torch.Tensor]:
        """Every input and target tensor by name: `input:0`, `input:mask`, `target:0`."""
        found = {f"input:{i}": t for i, t in enumerate(self.inputs)} | {f"input:{k}": t for k, t in self.keywords.items()}
        found |= {f"target:{i}": t for i, t in enumerate(tree_leaves(self.target))}
        return {name: t for name, t in found.items() if isinstance(t, torch.Tensor)}

    def replace_tensors(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put `convert(tensor)` in place of every parameter, buffer, input and target, keeping ties between them.

        Not `Module.to`, which cannot swap fake tensors.
        """
        memo: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the originals too: a freed one's id may come again

        def once(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            if id(item) not in memo:
                made = convert(item.detach() if isinstance(item, torch.nn.Parameter) else item)
                memo[id(item)] = (item, torch.nn.Parameter(made, item.requires_grad) if isinstance(item, torch.nn.Parameter) else made)
            return memo[id(item)][1]

        for module in self.module.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    table[name] = once(tensor)
        self.inputs = tuple(map(once, self.inputs))
        self.keywords = {name: once(item) for name, item in self.keywords.items()}
        self.target = tree_map(once, self.target)

    def run(self) -> torch.Tensor:
        """Forward and loss."""
        return self.loss(self.module(*self.inputs, **self.keywords), self.target)
