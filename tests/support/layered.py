"""Models with small layer graphs: a chain, the six layers of the TurboDL paper's figure 6, and grouped convolutions."""

import torch
from torch import nn

from tests.support.nets import Net


def _data(batch):
    return torch.randn(batch, 8), torch.randint(8, (batch,))


def chain(batch):
    """Three layers in a row, without biases."""
    return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))), *_data(batch)


def six(batch):
    """A fork, branches of two, one and one layers, and a merge."""

    def step(net, x):
        x = net.fork(x)
        return net.merge(net.long2(net.long1(x)) + net.middle(x) + net.short(x))

    return Net(step, **{name: nn.Linear(8, 8) for name in ("fork", "long1", "long2", "middle", "short", "merge")}), *_data(batch)


def grouped(batch):
    """A convolution of two groups, a depthwise one, and another of two."""
    layers = [nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 8, 1, groups=8), nn.Conv2d(8, 8, 1, groups=2), nn.Flatten(), nn.Linear(288, 10)]
    return nn.Sequential(*layers), torch.randn(batch, 4, 8, 8), torch.randint(10, (batch,))
