"""What torch.nn.RNN and torch.nn.GRU call, in terms of this package's ops: one forward op and one backward op per layer and direction.

The backward op is the chain of the steps alone. The gradients of input, weights and biases are ordinary products and sums of what it gives,
over all steps at once, so that a strategy can move those apart from it, or take the chain in another order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from traces.errors import StepcastError

from . import ops as _registered  # noqa: F401 - it makes torch.ops.stepcast

_ops = torch.ops.stepcast
_ARGUMENTS = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")


class Cell(NamedTuple):
    """A kind of layer. `forward(x, h0, *weights)` gives all states and what else the backward op needs of it.

    `backward(grad_out, grad_last, states, *else, w_hh)` gives the gradients by W_ih x + b_ih, by W_hh h + b_hh and by h0.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def _rnn(nonlinearity: str) -> Cell:
    def backward(*args: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        at_gates, at_h0 = _ops.rnn_backward(*args, nonlinearity)
        return at_gates, at_gates, at_h0

    return Cell(lambda *args: (_ops.rnn(*args, nonlinearity),), backward)


#: By the function that the module calls.
CELLS = {
    torch.rnn_tanh: _rnn("tanh"),
    torch.rnn_relu: _rnn("relu"),
    torch.gru: Cell(lambda *args: _ops.gru(*args), lambda *args: _ops.gru_backward(*args)),
}


class _Layer(torch.autograd.Function):
    """One layer in one direction: x [T, B, I] and h0 [B, H] to all states from the first step on [T, B, H], and the last [B, H]."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None):
        """The two results are views of what the op gives."""
        states, *left = cell.forward(x, h0, w_ih, w_hh, b_ih, b_hh)
        ctx.cell = cell
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, states, *left)
        return states[1:], states[-1]

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_last: Tensor | None):
        """The op, and then products and sums over all steps and samples."""
        x, w_ih, w_hh, states, *left = ctx.saved_tensors
        _, need_x, need_h0, need_w_ih, need_w_hh, need_b_ih, need_b_hh = ctx.needs_input_grad
        at_input, at_hidden, at_h0 = ctx.cell.backward(grad_out, grad_last, states, *left, w_hh)
        by_input, by_hidden = at_input.flatten(0, 1), at_hidden.flatten(0, 1)
        at_x = (by_input @ w_ih).view(x.shape) if need_x else None
        at_w_ih = by_input.t() @ x.flatten(0, 1) if need_w_ih else None
        at_w_hh = by_hidden.t() @ states[:-1].flatten(0, 1) if need_w_hh else None
        same = need_b_ih and at_hidden is at_input
        at_b_ih = by_input.sum(0) if need_b_ih else None
        at_b_hh = (at_b_ih if same else by_hidden.sum(0)) if need_b_hh else None
        return None, at_x, at_h0 if need_h0 else None, at_w_ih, at_w_hh, at_b_ih, at_b_hh


def run(func: Callable, args: tuple, kwargs: dict[str, Any], layer: str) -> tuple[Tensor, Tensor]:
    """What `func` of CELLS gives: (output, last states). `layer`: the module that calls it, for errors."""
    if len(args) > 2 and isinstance(args[2], Tensor):  # its batch sizes come second
        raise StepcastError(
            f"recurrent layer {layer!r} is given a packed sequence, whose steps differ in batch size; expected a tensor; pad the sequences"
        )
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    depth, weights = given["num_layers"], list(given["params"])
    if given["dropout"] and given["train"] and depth > 1:
        raise StepcastError(
            f"recurrent layer {layer!r} has dropout {given['dropout']} between its layers, whose masks plain PyTorch draws out of reach;"
            " expected 0; stack modules of one layer with torch.nn.Dropout between them"
        )
    x = (given["input"].transpose(0, 1) if given["batch_first"] else given["input"]).contiguous()
    directions = 2 if given["bidirectional"] else 1
    each = len(weights) // (depth * directions)
    last = []
    for number in range(depth):
        found = []
        for place in range(number * directions, (number + 1) * directions):
            own = [*weights[place * each : (place + 1) * each], None, None][:4]
            backwards = place % directions == 1
            out, state = _Layer.apply(CELLS[func], x.flip(0) if backwards else x, given["hx"][place], *own)
            found.append(out.flip(0) if backwards else out)
            last.append(state)
        x = found[0] if directions == 1 else torch.cat(found, -1)
    return x.transpose(0, 1) if given["batch_first"] else x, last[0].unsqueeze(0) if len(last) == 1 else torch.stack(last)
