"""The loss of a factory that returns none: the output's own loss, else cross-entropy."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from traces.errors import StepcastError


class MissingLossError(StepcastError):
    """A factory without a loss whose model needs one. `details`: the lines of code to write, which the command line prints."""

    def __init__(self, problem: str, code: str):
        super().__init__(f"there is no loss: {problem}; return one from the factory, as these lines do")
        self.details = code


def default_loss(output: Any, target: Any) -> torch.Tensor:
    """Return `output.loss` if the model has computed it, which it does if labels are among its inputs, else the cross-entropy.

    Cross-entropy is that of the output or of `output.logits` with the target. The classes lie along dimension 1, or, if the target has one
    label for each place of a sequence, along the last one. Raises MissingLossError for any other output.
    """
    loss, logits = _part(output, "loss"), output if isinstance(output, torch.Tensor) else _part(output, "logits")
    if isinstance(loss, torch.Tensor):
        return loss
    if not isinstance(logits, torch.Tensor) or not isinstance(target, torch.Tensor):
        raise _missing_loss(output, target, isinstance(logits, torch.Tensor))
    of_places = logits.dim() > 2 and target.shape == logits.shape[:-1] and target.shape[1:] != logits.shape[2:]
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten()) if of_places else functional.cross_entropy(logits, target)


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _missing_loss(output: Any, target: Any, has_logits: bool) -> MissingLossError:
    """The error that shows the three lines that define a loss."""
    if has_logits:
        problem, place = f"the target is {type(target).__name__}; expected a tensor, or labels among the inputs", ".logits"
    else:
        problem, place = f"the model returns {_shown(output)}; expected a tensor, or an output with .loss or .logits", _place(output)
    place = "" if isinstance(output, torch.Tensor) else place
    return MissingLossError(
        problem,
        "    def loss(output, target):\n"
        f"        return torch.nn.functional.cross_entropy(output{place}, target)\n"
        "    return model, inputs, target, loss",
    )


def _place(output: Any) -> str:
    """Where in the output a tensor is, as code."""
    if isinstance(output, Mapping):
        return next((f"[{key!r}]" for key, item in output.items() if isinstance(item, torch.Tensor)), "[...]")
    if isinstance(output, tuple | list):
        return next((f"[{i}]" for i, item in enumerate(output) if isinstance(item, torch.Tensor)), "[0]")
    return (
        next((f".{name}" for name, item in vars(output).items() if isinstance(item, torch.Tensor)), "")
        if hasattr(output, "__dict__")
        else ""
    )


def _shown(output: Any) -> str:
    if isinstance(output, Mapping) and output:
        return f"a {type(output).__name__} with {', '.join(map(repr, list(output)[:6]))}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return type(output).__name__
