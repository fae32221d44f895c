"""A model's own checkpointing, by torch.utils.checkpoint: ops that backward computes again are recorded as repeats of the first run.

Repeated ops have the names of the first ones with the suffix AGAIN, and draw the same random numbers if PyTorch restores the generator's
state.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import checkpoint

from simulator.model.capture.recorder import Recorder

#: PyTorch 2.14 calls the first of these names, earlier versions the second.
_NAMES = "_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator"
_NAME = next(name for name in _NAMES if hasattr(checkpoint, name))
_GENERATOR = getattr(checkpoint, _NAME)
_SIGNATURE = inspect.signature(_GENERATOR)


@contextmanager
def recomputed(recorder: Recorder, stack: list[str]) -> Iterator[None]:
    """A context that notifies `recorder` when a checkpointed function runs again. `stack`: the modules that run, innermost last."""

    def generator(function: Callable, *rest: Any, **named: Any):
        first = len(recorder.ops)
        preserves = _SIGNATURE.bind(function, *rest, **named).arguments.get("preserve_rng_state", True)

        def again(*args: Any, **kwargs: Any) -> Any:
            running, layer = list(stack), recorder.layer
            recorder.repeat(first, preserves)
            try:
                return function(*args, **kwargs)
            finally:  # PyTorch ends the function by an exception once it has what it needs
                recorder.repeat(None)
                stack[:] = running
                recorder.enter(layer)

        return _GENERATOR(again, *rest, **named)

    with patch.object(checkpoint, "CheckpointFunction", _Checkpoint), patch.object(checkpoint, _NAME, generator):
        yield


class _Checkpoint:
    """Re-entrant checkpointing as the other kind: it computes the same, and torch.autograd.grad works."""

    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        """Run a function that runs again in backward; as in PyTorch, without gradients if no argument has one."""
        if any(isinstance(item, torch.Tensor) and item.requires_grad for item in args):
            return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        with torch.no_grad():
            return function(*args)
