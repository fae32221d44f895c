"""Runs the forward ops of recurrent layers on CUDA with cuDNN.

cuDNN returns the states only, so a GRU's gates are computed again from them, for all steps at once. An LSTM's backward op needs every cell
state, which cuDNN does not return, so an LSTM runs in its canonical form.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executors.binding import Binding, Instance
from executors.kernels.ops import compile_call
from simulator.model.ops.recurrent_steps import gru_gates_from_states
from simulator.plan.task import Task

RNN, GRU = "schedcast.rnn.default", "schedcast.gru.default"
#: cuDNN's numbers of the cell types.
_MODES = {"relu": 0, "tanh": 1, "gru": 3}

_run_cudnn = torch.ops.aten._cudnn_rnn.default
_flatten = torch.ops.aten._cudnn_rnn_flatten_weight.default
_copy_all = torch._foreach_copy_


class FlatWeights:
    """One layer's weights in a flat buffer, in cuDNN's order."""

    def __init__(self):
        self._views: list[Tensor] = []
        self._buffer: Tensor | None = None

    def fill(self, weights: Sequence[Tensor], mode: int) -> tuple[list[Tensor], Tensor]:
        """Copy the weights to the buffer. Returns (the weights as views of the buffer, the buffer).

        The buffer is created at the first call, which comes before any capture, from clones: flattening turns its arguments into views.
        """
        if self._buffer is None:
            self._views = [tensor.clone() for tensor in weights]
            hidden, features = weights[1].shape[1], weights[0].shape[1]
            options = (mode, hidden, 0, 1, False, False)
            self._buffer = _flatten(self._views, len(weights), features, *options)
        _copy_all(self._views, list(weights))
        return self._views, self._buffer


def states(flat: FlatWeights, mode: int, x: Tensor, h0: Tensor, *weights: Tensor | None) -> Tensor:
    """All states [T + 1, B, H], the initial one first. cuDNN saves no reserve, since autograd does not run through this call."""
    views, buffer = flat.fill([weight for weight in weights if weight is not None], mode)
    hidden = h0.shape[1]
    options: tuple = (mode, hidden, 0, 1, False, 0.0, False, False, [], None)
    out = _run_cudnn(x.contiguous(), views, len(views), buffer, h0.unsqueeze(0).contiguous(), None, *options)[0]
    return torch.cat((h0.unsqueeze(0), out))


def cudnn_usable(task: Task, binding: Binding) -> bool:
    """Whether cuDNN can run the op on its device in its dtype."""
    dtypes = {operand.dtype for operand in (*task.inputs, *task.writes)}
    available = binding.forms.cuda and binding.device(task.device).type == "cuda" and torch.backends.cudnn.is_available()
    return available and torch.backends.cudnn.enabled and len(dtypes) == 1 and dtypes <= {"float32", "float64", "float16"}


def _lower(task: Task, binding: Binding, run_layer: Callable[..., tuple[Tensor, ...]]) -> Callable[[Instance], None] | None:
    """A function that runs the op with cuDNN; None if cuDNN cannot.

    If cuDNN refuses the first call, which comes before any capture, a warning is logged and the op runs in its canonical form.
    """
    if not cudnn_usable(task, binding):
        return None
    fill = binding.arguments(task)
    store = binding.results(task)
    flat, only_states, run_canonical = FlatWeights(), set(task.body.outputs) == {0}, compile_call(task, binding)
    accepted: bool | None = None

    def run(instance: Instance) -> None:
        nonlocal accepted
        if accepted is False:
            return run_canonical(instance)
        args, _ = fill(instance)
        try:
            results = run_layer(flat, only_states, *args)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if accepted:
                raise
            accepted = False
            reason = " ".join(str(error).split()[:40])
            logging.getLogger("schedcast").warning("%s runs step by step because cuDNN refuses it: %s", task.name, reason)
            return run_canonical(instance)
        accepted = True
        store(instance, results)
        return None

    return run


def _rnn(flat: FlatWeights, only_states: bool, x: Tensor, h0: Tensor, *weights_and_nonlinearity) -> tuple[Tensor]:
    *weights, nonlinearity = weights_and_nonlinearity
    return (states(flat, _MODES[nonlinearity], x, h0, *weights),)


def _gru(
    flat: FlatWeights, only_states: bool, x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, *biases: Tensor | None
) -> tuple[Tensor, ...]:
    weights = w_ih, w_hh, *biases
    all_states = states(flat, _MODES["gru"], x, h0, *weights)
    return (all_states,) if only_states else (all_states, *gru_gates_from_states(x, all_states, w_ih, w_hh, *biases))


TARGETS = {
    RNN: lambda task, binding: _lower(task, binding, _rnn),
    GRU: lambda task, binding: _lower(task, binding, _gru),
}
