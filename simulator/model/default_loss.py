"""The loss of a factory that returns none: the output's own loss, else cross-entropy, also of auxiliary heads."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from simulator.model.user_code import blamed
from traces.errors import Code, SchedcastError

#: The assumption about a target of floats, if there is no loss.
PROBABILITIES = "the target, which is of floats, holds probabilities of classes, and the loss is cross-entropy; give a loss if it is not so"
#: What torchvision's outputs with auxiliary heads call these -> the weight of their loss. That of a classifier is from Szegedy et al.
#: 2014, section 5; that of a segmentation head is from torchvision's own recipe.
AUXILIARY = {"aux_logits": 0.3, "aux_logits1": 0.3, "aux_logits2": 0.3, "aux": 0.5}


class MissingLossError(SchedcastError):
    """A model that needs a loss, or a different one. `details`: the lines of code to write, which the command line prints."""

    code = Code.MODEL

    def __init__(self, message: str, place: str, function: str = "cross_entropy"):
        """`place`: where in the output the logits are, as code. `function`: the loss of torch.nn.functional to show."""
        super().__init__(message)
        self.details = (
            "    def loss(output, target):\n"
            f"        return torch.nn.functional.{function}(output{place}, target)\n"
            "    return model, inputs, target, loss"
        )


def default_loss(output: Any, target: Any) -> torch.Tensor:
    """Return `output.loss` if the model has computed it, which it does if labels are among its inputs, else the cross-entropy.

    Cross-entropy is that of the output, of `output.logits` or of `output.out` with the target. Auxiliary heads, named as in AUXILIARY, add
    theirs. The classes lie along dimension 1, or, if the target has one label for each place of a sequence, along the last one. Raises
    MissingLossError for any other output.
    """
    if isinstance(loss := _part(output, "loss"), torch.Tensor):
        return loss
    parts = [output] if isinstance(output, torch.Tensor) else [_part(output, name) for name in ("logits", "out")]
    logits = next((part for part in parts if isinstance(part, torch.Tensor)), None)
    if logits is None or not isinstance(target, torch.Tensor):
        raise _missing_loss(output, target, logits is not None)
    if logits.shape[_classes(logits, target)] == 1 or (logits.dim() == 1 and target.is_floating_point()):
        raise _missing_loss(output, target, True, "the model returns one column, and cross-entropy needs one for each class")
    loss = _cross_entropy(logits, target)
    for head, weight in _auxiliary(output):
        loss = loss + weight * _cross_entropy(head, target)
    return loss


def takes_probabilities(output: Any, target: Any) -> bool:
    """Whether `default_loss` takes the target for probabilities of classes."""
    own = isinstance(_part(output, "loss"), torch.Tensor)
    return not own and isinstance(target, torch.Tensor) and target.is_floating_point()


def _cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    of_places = _classes(logits, target) == -1
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten()) if of_places else functional.cross_entropy(logits, target)


def _classes(logits: torch.Tensor, target: torch.Tensor) -> int:
    """The dimension of the classes."""
    of_places = logits.dim() > 2 and target.shape == logits.shape[:-1] and target.shape[1:] != logits.shape[2:]
    return -1 if of_places else min(1, logits.dim() - 1)


def _auxiliary(output: Any) -> Iterator[tuple[torch.Tensor, float]]:
    """The auxiliary heads of an output with their weights."""
    for name, weight in AUXILIARY.items() if not isinstance(output, torch.Tensor) else ():
        if isinstance(head := _part(output, name), torch.Tensor):
            yield head, weight


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _missing_loss(output: Any, target: Any, has_logits: bool, problem: str = "") -> MissingLossError:
    """The error that shows the three lines that define a loss."""
    if problem:
        place = ".logits"
    elif has_logits:
        problem, place = f"the target is {type(target).__name__}; expected a tensor, or labels among the inputs", ".logits"
    else:
        problem, place = f"the model returns {_shown(output)}; expected a tensor, or an output with .loss or .logits", _place(output)
    place = "" if isinstance(output, torch.Tensor) else place
    function = "mse_loss" if isinstance(target, torch.Tensor) and target.is_floating_point() else "cross_entropy"
    advice = "give one (loss= in Python, or from the factory), as these lines do"
    return MissingLossError(f"there is no loss: {problem}; {advice}", place, function)


def unfit_loss(output: Any, error: Exception) -> MissingLossError:
    """The error of a factory's loss that raised `error` for an output that is no tensor, with lines that take the logits from it."""
    problem = blamed(error, f"the loss does not take what the model returns, {_shown(output)}")
    return MissingLossError(f"{problem}; take the logits from it, as these lines do", _place(output))


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
