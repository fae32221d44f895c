"""An LSTM classifier on sequences of three lengths."""

from functools import partial

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(3, 5, batch_first=True)
        self.output = nn.Linear(10, 4)

    def forward(self, x):
        _, (state, cell) = self.recurrent(x)
        return self.output(torch.cat((state[-1], cell[-1]), 1))


def _lstm(batch, steps):
    return Classifier(), torch.randn(batch, steps, 3), torch.randint(4, (batch,))


lstm8, lstm12, lstm32 = (partial(_lstm, steps=steps) for steps in (8, 12, 32))


class Reader(nn.Module):
    """A recurrent layer, optionally with a trained initial state. `read` maps its output and last state to the model's output."""

    def __init__(self, recurrent, read, initial=False):
        super().__init__()
        self.recurrent, self.read = recurrent, read
        self.initial = nn.Parameter(torch.randn(1, 5)) if initial else None

    def forward(self, x):
        h0 = None if self.initial is None else self.initial.expand(x.shape[0], 5).unsqueeze(0).contiguous()
        return self.read(*self.recurrent(x, h0))


def _reader(batch, layer, read=lambda out, last: last[-1], initial=False, **options):
    return Reader(layer(3, 5, batch_first=True, **options), read, initial), torch.randn(batch, 8, 3), torch.randint(5, (batch,))


rnn_with_initial_state = partial(_reader, layer=nn.RNN, initial=True)
gru_with_initial_state = partial(_reader, layer=nn.GRU, initial=True)
read_at_all_steps = partial(_reader, layer=nn.RNN, read=lambda out, last: out.sum(1))
stacked = partial(_reader, layer=nn.GRU, num_layers=2)
