"""Running a model factory: the user's code, whose every failure becomes one line that says where and what."""

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
    """A callable that makes a model for a batch size, and a hash of the code it comes from (for the capture cache).

    `data(batch, seed)` gives batches to train on by iteration; None where there is only the batch that `call` makes.
    """

    name: str
    call: Callable[[int], tuple]
    fingerprint: str
    data: "Callable[[int, int], Batches] | None" = None


def call_factory(factory: Factory, batch: int):
    """Run the factory and bring what it returns into one form (`built.Built`), the module in training mode.

    Raises StepcastError when it raises or returns something else.
    """
    from simulator.models.built import Built, FactoryFailedError

    try:
        made = factory.call(batch)
    except StepcastError:
        raise
    except (Exception, SystemExit) as error:
        raise FactoryFailedError(
            f"the factory {factory.name} failed for batch size {batch}: {brief(error)}; run it on its own to see why"
        ) from error
    module, inputs, target, loss = _parts(factory.name, made)
    keywords = dict(inputs) if isinstance(inputs, dict) else {}
    positional: tuple[Any, ...] = () if keywords else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    built = Built(module if module.training else module.train(), positional, keywords, target, loss)
    _check_module(factory.name, module)
    _check_batch(factory.name, batch, built.named_inputs())
    return built


def _parts(name: str, made: Any) -> tuple:
    """(module, inputs, target, loss), cross-entropy where the factory gives no loss."""
    import torch

    if not isinstance(made, tuple | list) or len(made) not in (3, 4):
        shown = f"a tuple of {len(made)}" if isinstance(made, tuple | list) else type(made).__name__
        raise StepcastError(f"the factory {name} returned {shown}; expected {EXPECTED}")
    if not isinstance(made[0], torch.nn.Module):
        raise StepcastError(f"the factory {name} returned a {type(made[0]).__name__} as its model; expected a torch.nn.Module")
    loss = made[3] if len(made) == 4 else torch.nn.functional.cross_entropy
    if not callable(loss):
        raise StepcastError(f"the factory {name} returned a loss of type {type(loss).__name__}; expected a function (output, target)")
    return (*made[:3], loss)


def _check_module(name: str, module) -> None:
    from torch.nn.parameter import is_lazy

    if any(map(is_lazy, module.parameters())):
        raise StepcastError(f"the model of {name} has lazy parameters; expected their shapes; run one forward in the factory")
    sparse = next((layer for layer, part in module.named_modules() if getattr(part, "sparse", False) is True), None)
    if sparse is not None:
        raise StepcastError(f"layer {sparse!r} of {name} has sparse gradients, which are not modelled; make it with sparse=False")


def _check_batch(name: str, batch: int, inputs: dict) -> None:
    """The batch lies along dimension 0 or 1, or is flattened into one of them, of at least one input or target."""
    shapes = {label: tuple(tensor.shape) for label, tensor in inputs.items()}
    if shapes and not any(extent and extent % batch == 0 for shape in shapes.values() for extent in shape[:2]):
        shown = ", ".join(f"{label} {shape}" for label, shape in list(shapes.items())[:4])
        raise StepcastError(
            f"the factory {name} made {shown} for batch size {batch}; expected that many samples in dimension 0; use its argument"
        )


@contextmanager
def training_step(batch: int, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns what the user's model or loss raises within it, but for `passing`, into a StepcastError with the line it came from."""
    try:
        yield
    except (StepcastError, *passing):
        raise
    except Exception as error:
        message = f"the training step fails for batch size {batch}: {brief(error)}{_place(error)}; run the model on its own to see why"
        raise StepcastError(message) from error


def brief(error: BaseException) -> str:
    """Kind and first line of an exception."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Where the user's own code was when it happened; empty where none of it was."""
    import torch

    ours = Path(__file__).parents[2]
    skipped = [Path(torch.__file__).parent, *(ours / name for name in ("simulator", "executors", "calibrate", "ui"))]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in skipped):
            return f" (in {frame.filename}, line {frame.lineno})"
    return ""
