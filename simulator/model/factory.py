"""Run a model factory. It is the user's code: every failure in it becomes a SchedcastError of one line that says what failed and where."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.model.user_code import blamed, time_limit
from traces.errors import SchedcastError

if TYPE_CHECKING:
    from simulator.model.built import Built
    from simulator.model.workloads.data import Batches

#: The prefix of names of modules that exist already (`simulator.model.live`).
LIVE = "live:"
#: The assumption about a model in evaluation mode.
TRAINING = "the model, which is in evaluation mode (.eval()), trains in training mode, all its layers"
EXPECTED = "(module, inputs), (module, inputs, target) or (module, inputs, target, loss)"


@dataclass(frozen=True)
class Stack:
    """Blocks of a model that are identical except for their parameters: NAME.0, NAME.1 and so on, from number `first` to the last.

    `few`: the factory of the same model with four blocks from `first` on. `more`: how many more this model has.
    """

    name: str
    first: int
    more: int
    few: "Factory"


@dataclass(frozen=True)
class Factory:
    """A callable that makes a model for a batch size.

    `fingerprint` is a hash of everything that decides the model, for the cache of captured graphs. It is None for a user's factory, which
    may read files, environment variables and any module: its graphs are never cached. `data(batch, seed)` returns the batches to train on;
    None if there is only the one batch that `call` makes. `returned` is set once `call` has returned: later calls have no time limit.
    `checked` is set once a result was found to depend on the batch. `repeats`: whether capture must check that every step is the same.
    `kept`: the cache of graphs captured in this process, for a module that exists already; None if every capture makes a new module.
    `stack`: of a model whose graph follows from that of one with fewer blocks.
    """

    name: str
    call: Callable[[int], tuple]
    fingerprint: str | None
    data: "Callable[[int, int], Batches] | None" = None
    returned: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    checked: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    repeats: bool = False
    kept: dict | None = field(default=None, repr=False, compare=False)
    stack: Stack | None = None


def call_factory(factory: Factory, batch: int) -> "Built":
    """Run the factory and return its result, with the module in training mode.

    Raises SchedcastError if the factory raises an exception, does not return in time, or returns something that cannot be trained (see
    `simulator.model.built`).
    """
    from simulator.model.built import check_batch, check_module, check_tensors

    built = _built(factory, batch)
    check_module(factory.name, built.module)
    check_tensors(factory.name, built)
    if not factory.checked.is_set():  # the check may call the factory again; the first call is the one of capture, on fake tensors
        check_batch(factory.name, batch, built.named_inputs(), lambda other: _built(factory, other).named_inputs())
        factory.checked.set()
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.set_stance("force_eager")  # a function that the model's forward has compiled: plans run its ops one by one
    return built


def _built(factory: Factory, batch: int) -> "Built":
    from simulator.model.built import Built, CountedCalls, FactoryFailedError, arguments

    try:
        calls = CountedCalls()
        with time_limit(f"the factory {factory.name}", not factory.returned.is_set(), lambda: calls.count), calls:
            result = factory.call(batch)
    except (SchedcastError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FactoryFailedError(blamed(error, f"the factory {factory.name} failed for batch size {batch}")) from error
    factory.returned.set()
    module, inputs, target, loss = _unpack(factory.name, result)
    assumed = () if module.training else (TRAINING,)
    return Built(module if module.training else module.train(), *arguments(module, inputs), target, loss, assumed=assumed)


def _unpack(name: str, result: Any) -> tuple:
    """Return (module, inputs, target, loss), with None as a target that is among the inputs, and `default_loss` if there is no loss."""
    import torch

    from simulator.model.default_loss import default_loss

    if not isinstance(result, tuple | list) or len(result) not in (2, 3, 4):
        shown = f"a tuple of {len(result)}" if isinstance(result, tuple | list) else type(result).__name__
        raise SchedcastError(f"the factory {name} returned {shown}; expected {EXPECTED}")
    if not isinstance(result[0], torch.nn.Module):
        raise SchedcastError(f"the factory {name} returned a {type(result[0]).__name__} as its model; expected a torch.nn.Module")
    loss = result[3] if len(result) == 4 else default_loss
    if not callable(loss):
        raise SchedcastError(f"the factory {name} returned a loss of type {type(loss).__name__}; expected a function (output, target)")
    return (*result[:2], result[2] if len(result) > 2 else None, loss)
