"""The calls of torch.nn.RNN, GRU and LSTM in terms of this package's ops: one forward op and one backward op per layer and direction.

The backward op is only the chain of the steps. The gradients of input, weights and biases are ordinary products and sums of its results
over all steps at once, so that a strategy can move them apart from it, or run the chain in another order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from simulator.model.ops.recurrent import ops as _registered  # noqa: F401 - registers torch.ops.schedcast
from traces.errors import SchedcastError

_ops = torch.ops.schedcast
_ARGUMENTS = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")


class Cell(NamedTuple):
    """A kind of recurrent layer. Its step carries one tensor to the next (the state), or two (an LSTM's state and cell).

    `forward(x, *initial, *weights)` returns the sequence of each carried tensor, and then `saved`, what else the backward op needs.
    `backward(grad_out, *grads_last, *sequences, *saved, w_hh)` returns the gradients by W_ih x + b_ih, by W_hh h + b_hh and by `initial`.
    `carried`: the number of carried tensors.
    """

    forward: Callable[..., tuple[Tensor, ...]]
    backward: Callable[..., tuple[Tensor, ...]]
    carried: int = 1


def _rnn(nonlinearity: str) -> Cell:
    def backward(*args: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        at_gates, at_h0 = _ops.rnn_backward(*args, nonlinearity)
        return at_gates, at_gates, at_h0

    return Cell(lambda *args: (_ops.rnn(*args, nonlinearity),), backward)


def _lstm_backward(grad_out, grad_last, grad_cell, _states, *rest: Tensor) -> tuple[Tensor, ...]:
    at_gates, *at_initial = _ops.lstm_backward(grad_out, grad_last, grad_cell, *rest)
    return at_gates, at_gates, *at_initial


#: Kinds of layers by the function that the module calls.
CELLS = {
    torch.rnn_tanh: _rnn("tanh"),
    torch.rnn_relu: _rnn("relu"),
    torch.gru: Cell(lambda *args: _ops.gru(*args), lambda *args: _ops.gru_backward(*args)),
    torch.lstm: Cell(lambda *args: _ops.lstm(*args), _lstm_backward, carried=2),
}


class _Layer(torch.autograd.Function):
    """One layer in one direction: maps x [T, B, I] to the states after all steps [T, B, H] and the last of each carried tensor [B, H]."""

    @staticmethod
    def forward(ctx: Any, cell: Cell, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, *initial: Tensor):
        """Run the op. The results are views of the op's results."""
        results = cell.forward(x, *initial, w_ih, w_hh, b_ih, b_hh)
        ctx.cell = cell
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, *results)
        return results[0][1:], *(sequence[-1] for sequence in results[: cell.carried])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None):
        """Run the backward op, then products and sums over all steps and samples."""
        x, w_ih, w_hh, *results = ctx.saved_tensors
        _, need_x, need_w_ih, need_w_hh, need_b_ih, need_b_hh, *_ = ctx.needs_input_grad
        at_input, at_hidden, *at_initial = ctx.cell.backward(*grads, *results, w_hh)
        by_input, by_hidden = at_input.flatten(0, 1), at_hidden.flatten(0, 1)
        at_x = (by_input @ w_ih).view(x.shape) if need_x else None
        at_w_ih = by_input.t() @ x.flatten(0, 1) if need_w_ih else None
        at_w_hh = by_hidden.t() @ results[0][:-1].flatten(0, 1) if need_w_hh else None
        at_b_ih = by_input.sum(0) if need_b_ih else None
        same = need_b_ih and at_hidden is at_input
        at_b_hh = (at_b_ih if same else by_hidden.sum(0)) if need_b_hh else None
        return None, at_x, at_w_ih, at_w_hh, at_b_ih, at_b_hh, *at_initial


def run(func: Callable, args: tuple, kwargs: dict[str, Any], layer: str) -> tuple[Tensor, ...]:
    """Run `func` of CELLS. Returns the output and the last of each carried tensor.

    `layer`: the module that calls it, for errors. Raises SchedcastError for packed sequences and under autocast.
    """
    if torch.is_autocast_enabled("cpu"):
        raise SchedcastError(
            f"recurrent layer {layer!r}: how autocast runs RNN, GRU and LSTM is not modeled (--precision amp); use fp32, tf32 or bf16"
        )
    cell = CELLS[func]
    second = 3 - cell.carried  # a tensor at this position means that batch sizes precede it
    if len(args) > second and isinstance(args[second], Tensor):
        raise SchedcastError(
            f"recurrent layer {layer!r} is given a packed sequence, whose steps differ in batch size; expected a tensor; pad the sequences"
        )
    arguments = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    depth, weights = arguments["num_layers"], list(arguments["params"])
    directions = 2 if arguments["bidirectional"] else 1
    per_layer = 4 if arguments["has_biases"] else 2
    if len(weights) != per_layer * depth * directions:  # an LSTM with projections; PyTorch unrolls it
        return func(*args, **kwargs)
    dropped = arguments["dropout"] if arguments["train"] else 0.0
    initial = (arguments["hx"],) if cell.carried == 1 else arguments["hx"]
    x = (arguments["input"].transpose(0, 1) if arguments["batch_first"] else arguments["input"]).contiguous()
    last: list[tuple[Tensor, ...]] = []
    for number in range(depth):
        outputs = []
        for place in range(number * directions, (number + 1) * directions):
            own = [*weights[place * per_layer : (place + 1) * per_layer], None, None][:4]
            backwards = place % directions == 1
            out, *ends = _Layer.apply(cell, x.flip(0) if backwards else x, *own, *(state[place] for state in initial))
            outputs.append(out.flip(0) if backwards else out)
            last.append(tuple(ends))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropped and number < depth - 1:
            x = torch.native_dropout(x, dropped, True)[0]
    carried = (states[0].unsqueeze(0) if len(states) == 1 else torch.stack(states) for states in zip(*last, strict=True))
    return x.transpose(0, 1) if arguments["batch_first"] else x, *carried
