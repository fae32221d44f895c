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
