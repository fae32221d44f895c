"""An LSTM classifier on sequences of three lengths."""

from functools import partial

import torch
from torch import nn

from tests.support.nets import Net


def _lstm(batch, steps):
    def step(net, x):
        _, (state, cell) = net.recurrent(x)
        return net.output(torch.cat((state[-1], cell[-1]), 1))

    net = Net(step, recurrent=nn.LSTM(3, 5, batch_first=True), output=nn.Linear(10, 4))
    return net, torch.randn(batch, steps, 3), torch.randint(4, (batch,))


lstm8, lstm12, lstm32 = (partial(_lstm, steps=steps) for steps in (8, 12, 32))


def _reader(batch, layer, read=lambda out, last: last[-1], initial=False, **options):
    """A recurrent layer, optionally with a trained initial state. `read` maps its output and last state to the model's output."""

    def step(net, x):
        h0 = None if net.initial is None else net.initial.expand(x.shape[0], 5).unsqueeze(0).contiguous()
        return read(*net.recurrent(x, h0))

    net = Net(step, recurrent=layer(3, 5, batch_first=True, **options), initial=nn.Parameter(torch.randn(1, 5)) if initial else None)
    return net, torch.randn(batch, 8, 3), torch.randint(5, (batch,))


rnn_with_initial_state = partial(_reader, layer=nn.RNN, initial=True)
gru_with_initial_state = partial(_reader, layer=nn.GRU, initial=True)
read_at_all_steps = partial(_reader, layer=nn.RNN, read=lambda out, last: out.sum(1))
stacked = partial(_reader, layer=nn.GRU, num_layers=2)
