"""The computations of recurrent layers. Work that is independent of the step is done for all steps at once, the rest in a loop of few ops.

T steps, B samples, I input features, H features of the state. No computation waits for the device, so that a CUDA graph can contain it.
`states` [T + 1, B, H] begins with the initial state. Gates are in PyTorch's order: reset, update, new; for an LSTM input, forget, new,
output.
"""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from simulator.model.ops.scan_order import elements_per_worker, prefix_order


@torch.no_grad()
def rnn(x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, nonlinearity: str) -> Tensor:
    """All states [T + 1, B, H] of h_t = f(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), where f is tanh or relu."""
    states = _states(x, h0)
    _affine(x, w_ih, _added(b_ih, b_hh), states[1:])
    activate = torch.tanh_ if nonlinearity == "tanh" else torch.relu_
    w_hh_t = w_hh.t()
    previous, *following = states.unbind()
    for state in following:  # `state` holds the input term until it is updated here
        activate(state.addmm_(previous, w_hh_t))
        previous = state
    return states


@torch.no_grad()
def rnn_backward(
    grad_out: Tensor | None, grad_last: Tensor | None, states: Tensor, w_hh: Tensor, nonlinearity: str
) -> tuple[Tensor, Tensor]:
    """Gradients by the argument of f [T, B, H] and by the initial state [B, H], from those by all states and by the last state."""
    out = states[1:]
    slopes = 1 - out * out if nonlinearity == "tanh" else (out > 0).to(out.dtype)
    grad = _grad_of_last(grad_out, grad_last)
    for gate, outside in zip(reversed(slopes.unbind()), _outside_grads(grad_out, len(slopes)), strict=True):
        gate.mul_(grad)
        grad = torch.mm(gate, w_hh) if outside is None else torch.addmm(outside, gate, w_hh)
    return slopes, grad


@torch.no_grad()
def gru(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All states [T + 1, B, H], and for each step the reset and update gates [T, B, 2 H], n [T, B, H], and W_hn h + b_hn [T, B, H].

    r, z = sigmoid(W x + b + W' h + b'); n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = n + z (h - n).
    """
    hidden = h0.shape[1]
    gates = 2 * hidden
    states = _states(x, h0)
    reset_update, new, of_hidden = (x.new_empty(len(x), x.shape[1], width) for width in (gates, hidden, hidden))
    both = _added(b_ih, b_hh)
    _affine(x, w_ih[:gates], None if both is None else both[:gates], reset_update)
    _affine(x, w_ih[gates:], None if b_ih is None else b_ih[gates:], new)
    to_gates, to_new = w_hh[:gates].t(), w_hh[gates:].t()
    bias = None if b_hh is None else b_hh[gates:]
    reset, update = (part.unbind() for part in reset_update.chunk(2, -1))
    previous, *following = states.unbind()
    every = zip(reset_update.unbind(), reset, update, new.unbind(), of_hidden.unbind(), following, strict=True)
    for both, r, z, n, within, state in every:
        both.addmm_(previous, to_gates).sigmoid_()
        if bias is None:
            torch.mm(previous, to_new, out=within)
        else:
            torch.addmm(bias, previous, to_new, out=within)
        n.addcmul_(r, within).tanh_()
        torch.lerp(n, previous, z, out=state)
        previous = state
    return states, reset_update, new, of_hidden


@torch.no_grad()
def gru_gates_from_states(
    x: Tensor, states: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The other results of `gru` than the states, computed from the states for all steps at once: gates r and z, n, and W_hn h + b_hn."""
    steps, batch, hidden = len(x), x.shape[1], states.shape[2]
    gates = 2 * hidden
    by_hidden = x.new_empty(steps, batch, 3 * hidden)
    by_input = torch.empty_like(by_hidden)
    _affine(x, w_ih, b_ih, by_input)
    _affine(states[:-1], w_hh, b_hh, by_hidden)
    reset_update = (by_input[..., :gates] + by_hidden[..., :gates]).sigmoid_()
    of_hidden = by_hidden[..., gates:].contiguous()
    new = torch.addcmul(by_input[..., gates:], reset_update[..., :hidden], of_hidden).tanh_()
    return reset_update, new, of_hidden


@torch.no_grad()
def gru_backward(
    grad_out: Tensor | None, grad_last: Tensor | None, states: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor, w_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by W_ih x + b_ih and by W_hh h + b_hh, [T, B, 3 H] each, and by the initial state [B, H].

    All of them are the gradient by h' times factors that are computed for all steps beforehand.
    """
    steps, batch, hidden = new.shape
    factors, by_new, update = gru_factors(states[:-1], reset_update, new, of_hidden)
    grads = torch.empty_like(states)
    grads[-1] = _grad_of_last(grad_out, grad_last)
    together = factors.view(steps, batch, 3 * hidden)
    backward = (reversed(part.unbind()) for part in (factors, together, update, grads[1:], grads[1:].unsqueeze(2), grads[:-1]))
    for gate, flat, z, grad, spread, before, outside in zip(*backward, _outside_grads(grad_out, steps), strict=True):
        gate.mul_(spread)
        if outside is None:
            torch.mul(grad, z, out=before)
        else:
            torch.addcmul(outside, grad, z, out=before)
        before.addmm_(flat, w_hh)
    at_input = torch.cat((together[..., : 2 * hidden], by_new.mul_(grads[1:])), -1)
    return at_input, together, grads[0].clone()


def gru_factors(before: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of the gradient by h' in the gradients by W_hh h + b_hh [T, B, 3, H] and by W_in x + b_in [T, B, H], and z [T, B, H].

    z is the factor in the direct gradient by h. `before`: the states before the steps.
    """
    steps, batch, hidden = new.shape
    reset, update = reset_update.chunk(2, -1)
    keep = 1 - update
    by_new = keep * (1 - new * new)
    factors = new.new_empty(steps, batch, 3, hidden)
    torch.mul(by_new * of_hidden, reset * (1 - reset), out=factors[:, :, 0])
    torch.mul(before - new, update * keep, out=factors[:, :, 1])
    torch.mul(by_new, reset, out=factors[:, :, 2])
    return factors, by_new, update


@torch.no_grad()
def rnn_gates(prefixes: Sequence[Tensor], states: Tensor, nonlinearity: str) -> Tensor:
    """Gradients by the argument of f [T, B, H], from the gradients by all states that a scan computed. `prefixes`: one per worker."""
    out = states[1:]
    slopes = 1 - out * out if nonlinearity == "tanh" else (out > 0).to(out.dtype)
    return slopes.mul_(_in_time(prefixes, len(out)))


@torch.no_grad()
def gru_gates(prefixes: Sequence[Tensor], states: Tensor, reset_update: Tensor, new: Tensor, of_hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by W_ih x + b_ih and by W_hh h + b_hh, [T, B, 3 H] each, from the gradients by all states that a scan computed."""
    steps, batch, hidden = new.shape
    grads = _in_time(prefixes, steps)
    factors, by_new, _ = gru_factors(states[:-1], reset_update, new, of_hidden)
    together = factors.mul_(grads.unsqueeze(2)).view(steps, batch, 3 * hidden)
    return torch.cat((together[..., : 2 * hidden], by_new.mul_(grads)), -1), together


def _in_time(prefixes: Sequence[Tensor], steps: int) -> Tensor:
    """Gradients by the states after each of `steps` steps, in order of time, from the results of a scan."""
    results = torch.cat(list(prefixes)) if len(prefixes) > 1 else prefixes[0]
    return results.index_select(0, _places(len(results), len(prefixes), steps, results.device))


@cache
def _places(results: int, workers: int, steps: int, device: torch.device) -> Tensor:
    """Position of the gradient by each state: prefix j of the scan is the gradient by the state after the j-th last step."""
    where: dict[int, int] = {}
    first = 0
    for worker, count in enumerate(elements_per_worker(results, workers)):
        local = prefix_order(count, leftmost=worker == 0)
        for place in local if worker == workers - 1 else local[:-1]:
            where[first + place] = len(where)
        first += count
    return torch.tensor([where[steps - step] for step in range(steps)], device=device)


@torch.no_grad()
def lstm(
    x: Tensor, h0: Tensor, c0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All states and all cells [T + 1, B, H], and for each step the gates i, f, g, o [T, B, 4 H] and tanh(c) [T, B, H].

    i, f, o = sigmoid(W x + b + W' h + b'); g = tanh(W x + b + W' h + b'); c' = f c + i g; h' = o tanh(c').
    """
    hidden = h0.shape[1]
    states, cells = _states(x, h0), _states(x, c0)
    gates, tanh_c = (x.new_empty(len(x), x.shape[1], width) for width in (4 * hidden, hidden))
    _affine(x, w_ih, _added(b_ih, b_hh), gates)
    w_hh_t = w_hh.t()
    first = gates[..., : 2 * hidden]
    parts = (part.unbind() for part in (gates, first, *gates.chunk(4, -1), tanh_c, cells[:-1], cells[1:], states[:-1], states[1:]))
    for every, both, i, f, g, o, curved, cell, next_cell, state, next_state in zip(*parts, strict=True):
        every.addmm_(state, w_hh_t)
        both.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, cell, out=next_cell).addcmul_(i, g)
        torch.tanh(next_cell, out=curved)
        torch.mul(o, curved, out=next_state)
    return states, cells, gates, tanh_c


@torch.no_grad()
def lstm_backward(
    grad_out: Tensor | None,
    grad_last: Tensor | None,
    grad_cell: Tensor | None,
    cells: Tensor,
    gates: Tensor,
    tanh_c: Tensor,
    w_hh: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the arguments of the gates [T, B, 4 H], and by the initial state and the initial cell [B, H]."""
    steps, batch, hidden = tanh_c.shape
    i, f, g, o = gates.chunk(4, -1)
    by_cell = o * (1 - tanh_c * tanh_c)
    factors = gates.new_empty(steps, batch, 4, hidden)
    torch.mul(i * (1 - i), g, out=factors[:, :, 0])
    torch.mul(f * (1 - f), cells[:-1], out=factors[:, :, 1])
    torch.mul(1 - g * g, i, out=factors[:, :, 2])
    torch.mul(o * (1 - o), tanh_c, out=factors[:, :, 3])
    nothing = torch.zeros_like(cells[0])
    grad = nothing if grad_out is None and grad_last is None else _grad_of_last(grad_out, grad_last)
    cell = nothing if grad_cell is None else grad_cell
    together = factors.flatten(2)
    backward = (reversed(part.unbind()) for part in (by_cell, factors[:, :, :3], factors[:, :, 3], f, together))
    for to_cell, by_its_cell, by_its_state, forget, flat, outside in zip(*backward, _outside_grads(grad_out, steps), strict=True):
        cell = torch.addcmul(cell, grad, to_cell)
        by_its_cell.mul_(cell.unsqueeze(1))
        by_its_state.mul_(grad)
        cell = cell * forget
        grad = torch.mm(flat, w_hh) if outside is None else torch.addmm(outside, flat, w_hh)
    return together, grad, cell


def _states(x: Tensor, h0: Tensor) -> Tensor:
    states = x.new_empty(len(x) + 1, *h0.shape)
    states[0] = h0
    return states


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write x weight^T + bias into `out`, all steps in one product."""
    rows, flat = x.flatten(0, 1), out.flatten(0, 1)
    if bias is None:
        torch.mm(rows, weight.t(), out=flat)
    else:
        torch.addmm(bias, rows, weight.t(), out=flat)


def _added(b_ih: Tensor | None, b_hh: Tensor | None) -> Tensor | None:
    """The sum of the biases, of which a layer has both or none."""
    return None if b_ih is None or b_hh is None else b_ih + b_hh


def _grad_of_last(grad_out: Tensor | None, grad_last: Tensor | None) -> Tensor:
    """The whole gradient by the last state: its part in `grad_out` plus `grad_last`."""
    if grad_out is None:
        assert grad_last is not None, "a backward op needs at least one gradient"
        return grad_last
    return grad_out[-1] if grad_last is None else grad_out[-1] + grad_last


def _outside_grads(grad_out: Tensor | None, steps: int) -> Iterator[Tensor | None]:
    """For each step, from last to first: the gradient that the state before it gets from outside the chain; None for the initial state."""
    if grad_out is not None:
        yield from reversed(grad_out[:-1].unbind())
        steps = 1
    for _ in range(steps):
        yield None
