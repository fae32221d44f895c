"""Models with small layer graphs: a chain, the six layers of the TurboDL paper's figure 6, and grouped convolutions."""

import torch
from torch import nn


def _data(batch):
    return torch.randn(batch, 8), torch.randint(8, (batch,))


def chain(batch):
    """Three layers in a row, without biases."""
    return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))), *_data(batch)


class SixLayers(nn.Module):
    """A fork, branches of two, one and one layers, and a merge."""

    def __init__(self):
        super().__init__()
        self.fork, self.long1, self.long2, self.middle, self.short, self.merge = (nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        x = self.fork(x)
        return self.merge(self.long2(self.long1(x)) + self.middle(x) + self.short(x))


def six(batch):
    return SixLayers(), *_data(batch)


def grouped(batch):
    """A convolution of two groups, a depthwise one, and another of two."""
    layers = [nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 8, 1, groups=8), nn.Conv2d(8, 8, 1, groups=2), nn.Flatten(), nn.Linear(288, 10)]
    return nn.Sequential(*layers), torch.randn(batch, 4, 8, 8), torch.randint(10, (batch,))
