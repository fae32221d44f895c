"""Checkpointing that a model does itself, by torch.utils.checkpoint: what backward computes again is recorded as repeats of the first run.

Repeated ops are called as the first ones, with AGAIN behind, and draw the same random numbers if PyTorch restores the generator's state.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import checkpoint

from simulator.model.capture.recorder import Recorder

_GENERATOR = checkpoint._checkpoint_without_reentrant_generator


class Recomputed:
    """A context in which `recorder` is told when a checkpointed function runs again. `stack`: the modules that run, innermost last."""

    def __init__(self, recorder: Recorder, stack: list[str]):
        self._recorder, self._stack = recorder, stack

    def __enter__(self) -> "Recomputed":
        self._patches = (
            patch.object(checkpoint, "CheckpointFunction", _Checkpoint),
            patch.object(checkpoint, "_checkpoint_without_reentrant_generator", self._generator),
        )
        for replaced in self._patches:
            replaced.start()
        return self

    def __exit__(self, *error):
        for replaced in self._patches:
            replaced.stop()

    def _generator(self, function: Callable, preserve_rng_state: bool = True, *rest: Any, **named: Any):
        first = len(self._recorder.ops)

        def again(*args: Any, **kwargs: Any) -> Any:
            stack, layer = list(self._stack), self._recorder.layer
            self._recorder.repeat(first, preserve_rng_state)
            try:
                return function(*args, **kwargs)
            finally:  # PyTorch ends the function by an exception once it has what it needs
                self._recorder.repeat(None)
                self._stack[:] = stack
                self._recorder.enter(layer)

        return _GENERATOR(again, preserve_rng_state, *rest, **named)


class _Checkpoint:
    """Re-entrant checkpointing as the other kind: it computes the same, and torch.autograd.grad works."""

    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        """Run a function that runs again in backward; as in PyTorch, without gradients if no argument has one."""
        if any(isinstance(item, torch.Tensor) and item.requires_grad for item in args):
            return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        with torch.no_grad():
            return function(*args)
