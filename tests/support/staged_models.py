"""Small models that are hard to cut into stages: skips, ops in place at a cut, tied weights, dropout, batch-norm, several inputs."""

import torch
from torch import nn

from tests.support.nets import Net


class Residual(nn.Module):
    """Two residual blocks with batch-norm and dropout. The second one's shortcut is a convolution, to which the block is added in place."""

    def __init__(self, channels=4):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else channels, channels, 3, padding=1, bias=False) for i in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(6))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(channels, 3)

    def forward(self, x):
        x = torch.relu_(self.norms[0](self.convs[0](x)))
        for i in (1, 3):
            y = torch.relu_(self.norms[i](self.convs[i](x)))
            y = self.norms[i + 1](self.convs[i + 1](y))
            y += x if i == 1 else self.norms[5](self.convs[5](x))
            x = torch.relu_(y)
        return self.head(self.drop(x.mean((2, 3))))


def residual(batch):
    return Residual(), torch.randn(batch, 3, 4, 4), torch.randint(3, (batch,))


def tied(batch):
    """An embedding whose weights are also those of the output, with a layer in between."""

    def step(net, x):
        return torch.tanh(net.inner(net.table(x))) @ net.table.weight.t()

    return Net(step, table=nn.Embedding(7, 4), inner=nn.Linear(4, 4)), torch.randint(7, (batch,)), torch.randint(7, (batch,))


def chain(batch):
    """A chain of eight equal layers, and a scale (a buffer that nothing changes) that the first and the last of them use."""

    def step(net, x):
        x = x * net.scale
        for layer in net.layers:
            x = torch.tanh(layer(x))
        return x * net.scale

    net = Net(step, layers=nn.ModuleList(nn.Linear(6, 6) for _ in range(8)))
    net.register_buffer("scale", torch.tensor(0.5))
    return net, torch.randn(batch, 6), torch.randint(6, (batch,))
