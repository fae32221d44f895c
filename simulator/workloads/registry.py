"""The built-in models. A new one is a decorated factory in any module of this package; modules are discovered.

Modules of this package import torch and numpy inside their functions only, so that listing the models needs neither. The network itself
is a class in `networks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from simulator.discovery import modules
from traces.errors import UnknownNameError

if TYPE_CHECKING:
    from simulator.workloads.data import Batches

#: Samples per step of a model for which nothing else is usual.
USUAL_BATCH = 32


@dataclass(frozen=True, slots=True)
class Workload:
    """A built-in model.

    `build(batch, image_size)` returns `(module, inputs, target)` or `(module, inputs, target, loss)`: the module in training mode and
    `inputs` as a tuple of tensors; the default loss is cross-entropy. It makes tensors with plain torch factory functions only and never
    reads one, so that it also runs under fake tensors. `image_size` is the default; a language model takes it as its sequence length.
    Images smaller than `least_size` leave nothing to pool. `data(batch, image_size, seed)` returns the batches of a data set to train on;
    without it, training repeats the batch that `build` made. `batch` is a usual number of samples per step.
    """

    name: str
    image_size: int
    parameters: int
    about: str
    build: Callable[[int, int], tuple]
    least_size: int = 1
    data: "Callable[[int, int, int], Batches] | None" = None
    batch: int = USUAL_BATCH


_REGISTRY: dict[str, Workload] = {}


def workload(
    name: str,
    *,
    image_size: int,
    parameters: int,
    about: str,
    least_size: int = 1,
    data: "Callable[[int, int, int], Batches] | None" = None,
    batch: int = USUAL_BATCH,
) -> Callable[[Callable], Callable]:
    """Decorate a factory `build(batch, image_size)` to register it; see `Workload` for the arguments.

    `parameters` is the published number of trainable scalars. Raises ValueError for a name that is already registered.
    """

    def register(build: Callable[[int, int], tuple]) -> Callable[[int, int], tuple]:
        if name in _REGISTRY:
            raise ValueError(f"two workloads are called {name!r}: rename one")
        _REGISTRY[name] = Workload(name, image_size, parameters, about, build, least_size, data, batch)
        return build

    return register


@cache
def _discover() -> None:
    list(modules(__package__))


def names() -> tuple[str, ...]:
    """Return the name of every built-in model, in alphabetical order."""
    _discover()
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Workload:
    """Return the built-in model called `name`. Raises UnknownNameError."""
    all_names = names()
    if name not in _REGISTRY:
        raise UnknownNameError("model", name, all_names, "`stepcast models` lists them")
    return _REGISTRY[name]
