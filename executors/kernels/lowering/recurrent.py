"""The forward ops of recurrent layers on CUDA by cuDNN, which gives the states alone: a GRU's gates are found again from them, all steps at
once. An LSTM's backward op needs every cell, which cuDNN keeps to itself: it runs as the graph has it."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.call import compile_call
from simulator.ops.recurrent.steps import gru_gates_from_states
from simulator.plan.task import Task

RNN, GRU = "stepcast.rnn.default", "stepcast.gru.default"
#: As cuDNN counts them.
_MODES = {"relu": 0, "tanh": 1, "gru": 3}

_run_cudnn = torch.ops.aten._cudnn_rnn.default
_flatten = torch.ops.aten._cudnn_rnn_flatten_weight.default
_copy_all = torch._foreach_copy_


class _Weights:
    """One layer's weights in cuDNN's own order, brought there anew in every step."""

    def __init__(self):
        self._parts: list[Tensor] = []
        self._buffer: Tensor | None = None

    def filled(self, given: Sequence[Tensor], mode: int) -> tuple[list[Tensor], Tensor]:
        """(views of the buffer, the buffer). Made at the first call, before any capture: flattening turns what it is given into views."""
        if self._buffer is None:
            self._parts = [tensor.clone() for tensor in given]
            hidden, features = given[1].shape[1], given[0].shape[1]
            self._buffer = _flatten(self._parts, len(given), features, mode, hidden, 0, 1, False, False)
        _copy_all(self._parts, list(given))
        return self._parts, self._buffer


def states(held: _Weights, mode: int, x: Tensor, h0: Tensor, *weights: Tensor | None) -> Tensor:
    """All states [T + 1, B, H], the initial one first. Without a reserve: nothing is differentiated through it."""
    parts, buffer = held.filled([weight for weight in weights if weight is not None], mode)
    hidden = h0.shape[1]
    options = (mode, hidden, 0, 1, False, 0.0, False, False, [], None)
    out = _run_cudnn(x.contiguous(), parts, len(parts), buffer, h0.unsqueeze(0).contiguous(), None, *options)[0]
    return torch.cat((h0.unsqueeze(0), out))


def by_cudnn(task: Task, binding: Binding) -> bool:
    """Whether cuDNN can run it where it is bound."""
    dtypes = {operand.dtype for operand in (*task.inputs, *task.writes)}
    there = binding.forms.cuda and binding.device(task.device).type == "cuda" and torch.backends.cudnn.is_available()
    return there and torch.backends.cudnn.enabled and len(dtypes) == 1 and dtypes <= {"float32", "float64", "float16"}


def _lower(task: Task, binding: Binding, run_layer: Callable[..., tuple[Tensor, ...]]) -> Callable[[Instance], None] | None:
    """Where cuDNN refuses the first call, which comes before any capture, the log says so and the op runs as the graph has it."""
    if not by_cudnn(task, binding):
        return None
    fill = binding.arguments(task, task.body.args, task.body.kwargs, binding.device(task.device))
    setters = [(position, binding.setter(write)) for position, write in zip(task.body.outputs, task.writes, strict=True)]
    held, only_states, as_it_is = _Weights(), set(task.body.outputs) == {0}, compile_call(task, binding)
    accepted: bool | None = None

    def run(instance: Instance) -> None:
        nonlocal accepted
        if accepted is False:
            return as_it_is(instance)
        args, _ = fill(instance)
        try:
            results = run_layer(held, only_states, *args)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if accepted:
                raise
            accepted = False
            reason = " ".join(str(error).split()[:40])
            logging.getLogger("stepcast").warning("%s runs step by step, since cuDNN refuses it: %s", task.name, reason)
            return as_it_is(instance)
        accepted = True
        for position, put in setters:
            put(instance, results[position])
        return None

    return run


def _rnn(held: _Weights, only_states: bool, x: Tensor, h0: Tensor, *weights_and_bend) -> tuple[Tensor]:
    *weights, bend = weights_and_bend
    return (states(held, _MODES[bend], x, h0, *weights),)


def _gru(held: _Weights, only_states: bool, x: Tensor, h0: Tensor, *weights: Tensor | None) -> tuple[Tensor, ...]:
    found = states(held, _MODES["gru"], x, h0, *weights)
    return (found,) if only_states else (found, *gru_gates_from_states(x, found, *weights))


TARGETS = {
    RNN: lambda task, binding: _lower(task, binding, _rnn),
    GRU: lambda task, binding: _lower(task, binding, _gru),
}
