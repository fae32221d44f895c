"""Registers the ops of recurrent layers, `schedcast::rnn` and so on, with shapes, FLOPs and kernels. T, B, I, H are as in `steps`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from simulator.model.ops import recurrent_steps
from traces.errors import Code, SchedcastError

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
#: Kernels (on a CPU: op calls) of `steps`: (per step, in addition to the steps), for a layer with biases and a gradient by its last state
#: only.
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


_register("rnn", recurrent_steps.rnn, _rnn_shapes, _forward_flops(1))
_register("rnn_backward", recurrent_steps.rnn_backward, _rnn_backward_shapes, _backward_flops(1))
_register("gru", recurrent_steps.gru, _gru_shapes, _forward_flops(3))
_register("gru_backward", recurrent_steps.gru_backward, _gru_backward_shapes, _backward_flops(3))
_register("lstm", recurrent_steps.lstm, _lstm_shapes, _forward_flops(4))
_register("lstm_backward", recurrent_steps.lstm_backward, _lstm_backward_shapes, _backward_flops(4))
_register("rnn_gates", recurrent_steps.rnn_gates, _rnn_gates_shapes, _no_products)
_register("gru_gates", recurrent_steps.gru_gates, _gru_gates_shapes, _no_products)


# The calls of torch.nn.RNN, GRU and LSTM in terms of this package's ops: one forward op and one backward op per layer and direction.
# The backward op is only the chain of the steps. The gradients of input, weights and biases are ordinary products and sums of its results
# over all steps at once, so that a strategy can move them apart from it, or run the chain in another order.


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
            f"recurrent layer {layer!r}: how autocast runs RNN, GRU and LSTM is not modeled (--precision amp); use fp32, tf32 or bf16",
            Code.MODEL,
        )
    cell = CELLS[func]
    second = 3 - cell.carried  # a tensor at this position means that batch sizes precede it
    if len(args) > second and isinstance(args[second], Tensor):
        raise SchedcastError(
            f"recurrent layer {layer!r} is given a packed sequence, whose steps differ in batch size; expected a tensor; pad the sequences",
            Code.MODEL,
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
