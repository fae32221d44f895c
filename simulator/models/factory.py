"""Run a model factory. It is the user's code: every failure in it becomes a StepcastError of one line that says what failed and where."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import StepcastError

if TYPE_CHECKING:
    from simulator.workloads.data import Batches

EXPECTED = "(module, inputs, target) or (module, inputs, target, loss)"


@dataclass(frozen=True)
class Factory:
    """A callable that makes a model for a batch size, with a hash of its code (`fingerprint`) for the cache of captured graphs.

    `data(batch, seed)` returns the batches to train on; None if there is only the one batch that `call` makes.
    """

    name: str
    call: Callable[[int], tuple]
    fingerprint: str
    data: "Callable[[int, int], Batches] | None" = None


def call_factory(factory: Factory, batch: int):
    """Run the factory and return its result as `built.Built`, with the module in training mode.

    Raises StepcastError if the factory raises an exception or returns something other than EXPECTED.
    """
    from simulator.models.built import Built, FactoryFailedError

    try:
        result = factory.call(batch)
    except StepcastError:
        raise
    except (Exception, SystemExit) as error:
        raise FactoryFailedError(
            f"the factory {factory.name} failed for batch size {batch}: {brief(error)}; run it on its own to see why"
        ) from error
    module, inputs, target, loss = _unpack(factory.name, result)
    keywords = dict(inputs) if isinstance(inputs, dict) else {}
    positional: tuple[Any, ...] = () if keywords else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    built = Built(module if module.training else module.train(), positional, keywords, target, loss)
    _check_module(factory.name, module)
    _check_batch(factory.name, batch, built.named_inputs())
    return built


def _unpack(name: str, result: Any) -> tuple:
    """Return (module, inputs, target, loss); the loss is cross-entropy if the factory returned none."""
    import torch

    if not isinstance(result, tuple | list) or len(result) not in (3, 4):
        shown = f"a tuple of {len(result)}" if isinstance(result, tuple | list) else type(result).__name__
        raise StepcastError(f"the factory {name} returned {shown}; expected {EXPECTED}")
    if not isinstance(result[0], torch.nn.Module):
        raise StepcastError(f"the factory {name} returned a {type(result[0]).__name__} as its model; expected a torch.nn.Module")
    loss = result[3] if len(result) == 4 else torch.nn.functional.cross_entropy
    if not callable(loss):
        raise StepcastError(f"the factory {name} returned a loss of type {type(loss).__name__}; expected a function (output, target)")
    return (*result[:3], loss)


def _check_module(name: str, module) -> None:
    from torch.nn.parameter import is_lazy

    if any(map(is_lazy, module.parameters())):
        raise StepcastError(f"the model of {name} has lazy parameters; expected parameters with shapes; run one forward in the factory")
    sparse = next((layer for layer, child in module.named_modules() if getattr(child, "sparse", False) is True), None)
    if sparse is not None:
        raise StepcastError(f"layer {sparse!r} of {name} has sparse gradients, which are not modelled; make it with sparse=False")


def _check_batch(name: str, batch: int, inputs: dict) -> None:
    """Check that at least one input or target has the batch in dimension 0 or 1, possibly flattened together with another dimension."""
    shapes = {label: tuple(tensor.shape) for label, tensor in inputs.items()}
    if shapes and not any(extent and extent % batch == 0 for shape in shapes.values() for extent in shape[:2]):
        shown = ", ".join(f"{label} {shape}" for label, shape in list(shapes.items())[:4])
        raise StepcastError(
            f"the factory {name} made {shown} for batch size {batch}; expected that many samples in dimension 0; use its argument"
        )


@contextmanager
def training_step(batch: int, passed_on: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn an exception of the user's model or loss into a StepcastError with the line it came from; `passed_on` ones stay as they are."""
    try:
        yield
    except (StepcastError, *passed_on):
        raise
    except Exception as error:
        message = f"the training step fails for batch size {batch}: {brief(error)}{_place(error)}; run the model on its own to see why"
        raise StepcastError(message) from error


def brief(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Return the innermost line of the user's own code in the traceback, in parentheses; empty if there is none."""
    import torch

    ours = Path(__file__).parents[2]
    skipped = [Path(torch.__file__).parent, *(ours / name for name in ("simulator", "executors", "calibrate", "ui"))]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in skipped):
            return f" (in {frame.filename}, line {frame.lineno})"
    return ""
