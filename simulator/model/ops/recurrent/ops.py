"""Registers the ops of recurrent layers, `schedcast::rnn` and so on, with shapes, FLOPs and kernels. T, B, I, H are as in `steps`."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from simulator.model.ops.recurrent import steps

NAMESPACE = "schedcast"
_SCHEMAS = {
    "rnn": "(Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, str nonlinearity) -> Tensor",
    "rnn_backward": "(Tensor? grad_out, Tensor? grad_last, Tensor states, Tensor w_hh, str nonlinearity) -> (Tensor, Tensor)",
    "gru": "(Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh) -> (Tensor, Tensor, Tensor, Tensor)",
    "gru_backward": "(Tensor? grad_out, Tensor? grad_last, Tensor states, Tensor reset_update, Tensor new, Tensor of_hidden, Tensor w_hh)"
    " -> (Tensor, Tensor, Tensor)",
    "lstm": "(Tensor x, Tensor h0, Tensor c0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh) -> (Tensor, Tensor, Tensor, Tensor)",
    "lstm_backward": "(Tensor? grad_out, Tensor? grad_last, Tensor? grad_cell, Tensor cells, Tensor gates, Tensor bent, Tensor w_hh)"
    " -> (Tensor, Tensor, Tensor)",
    "rnn_gates": "(Tensor[] prefixes, Tensor states, str nonlinearity) -> Tensor",
    "gru_gates": "(Tensor[] prefixes, Tensor states, Tensor reset_update, Tensor new, Tensor of_hidden) -> (Tensor, Tensor)",
}
#: Kernels (on a CPU: op calls) of `steps`: (per step, besides the steps), for a layer with biases and a gradient by its last state only.
_LAUNCHES = {"rnn": (2, 3), "rnn_backward": (2, 2), "gru": (6, 4), "gru_backward": (3, 16), "lstm": (8, 4), "lstm_backward": (5, 16)}
#: (position, n): the argument at this position has T + n as first extent.
_STEPS = {"rnn": (0, 0), "rnn_backward": (2, 1), "gru": (0, 0), "gru_backward": (2, 1), "lstm": (0, 0), "lstm_backward": (3, 1)}


def launches(func: torch._ops.OpOverload, args: tuple) -> int:
    """Kernels (on a CPU: op calls) of one call; 1 for any op that is not recurrent."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != NAMESPACE or name not in _LAUNCHES:
        return 1
    (per_step, besides), (position, extra) = _LAUNCHES[name], _STEPS[name]
    return per_step * (len(args[position]) - extra) + besides


def _rnn_shapes(x: Tensor, h0: Tensor, *_) -> Tensor:
    return x.new_empty(len(x) + 1, *h0.shape)


def _rnn_backward_shapes(grad_out, grad_last, states: Tensor, *_) -> tuple[Tensor, Tensor]:
    steps, *state = states.shape
    return states.new_empty(steps - 1, *state), states.new_empty(state)


def _gru_shapes(x: Tensor, h0: Tensor, *_) -> tuple[Tensor, ...]:
    steps, (batch, hidden) = len(x), h0.shape
    return x.new_empty(steps + 1, batch, hidden), *(x.new_empty(steps, batch, width) for width in (2 * hidden, hidden, hidden))


def _gru_backward_shapes(grad_out, grad_last, states: Tensor, *_) -> tuple[Tensor, ...]:
    steps, batch, hidden = states.shape
    return *(states.new_empty(steps - 1, batch, 3 * hidden) for _ in range(2)), states.new_empty(batch, hidden)


def _lstm_shapes(x: Tensor, h0: Tensor, *_) -> tuple[Tensor, ...]:
    steps, (batch, hidden) = len(x), h0.shape
    sizes = ((steps + 1, hidden), (steps + 1, hidden), (steps, 4 * hidden), (steps, hidden))
    return tuple(x.new_empty(extent, batch, width) for extent, width in sizes)


def _lstm_backward_shapes(grad_out, grad_last, grad_cell, cells: Tensor, *_) -> tuple[Tensor, ...]:
    steps, batch, hidden = cells.shape
    return cells.new_empty(steps - 1, batch, 4 * hidden), *(cells.new_empty(batch, hidden) for _ in range(2))


def _rnn_gates_shapes(prefixes, states: Tensor, *_) -> Tensor:
    return states.new_empty(len(states) - 1, *states.shape[1:])


def _gru_gates_shapes(prefixes, states: Tensor, *_) -> tuple[Tensor, Tensor]:
    steps, batch, hidden = states.shape
    return states.new_empty(steps - 1, batch, 3 * hidden), states.new_empty(steps - 1, batch, 3 * hidden)


def _forward_flops(gates: int) -> Callable[..., int]:
    """FLOPs of the products of all steps with W_ih [gates H, I] and W_hh [gates H, H]."""

    def count(x_shape, h0_shape, *_, out_shape=None, **__) -> int:
        steps, batch, features = x_shape
        return 2 * steps * batch * gates * h0_shape[1] * (features + h0_shape[1])

    return count


def _backward_flops(gates: int) -> Callable[..., int]:
    """FLOPs of the products of all steps with W_hh [gates H, H]."""

    def count(*_, out_shape, **__) -> int:
        steps, batch, width = out_shape[0]
        hidden = width // gates
        return 2 * steps * batch * width * hidden

    return count


def _no_products(*_, **__) -> int:
    return 0


def _register(name: str, kernel: Callable, shapes: Callable, flops: Callable) -> None:
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, _SCHEMAS[name])
    torch.library.impl(qualified, "CompositeExplicitAutograd")(kernel)
    torch.library.register_fake(qualified)(shapes)
    register_flop_formula(getattr(torch.ops.schedcast, name))(flops)


_register("rnn", steps.rnn, _rnn_shapes, _forward_flops(1))
_register("rnn_backward", steps.rnn_backward, _rnn_backward_shapes, _backward_flops(1))
_register("gru", steps.gru, _gru_shapes, _forward_flops(3))
_register("gru_backward", steps.gru_backward, _gru_backward_shapes, _backward_flops(3))
_register("lstm", steps.lstm, _lstm_shapes, _forward_flops(4))
_register("lstm_backward", steps.lstm_backward, _lstm_backward_shapes, _backward_flops(4))
_register("rnn_gates", steps.rnn_gates, _rnn_gates_shapes, _no_products)
_register("gru_gates", steps.gru_gates, _gru_gates_shapes, _no_products)
