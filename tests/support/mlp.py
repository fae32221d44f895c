"""Small models for the tests of strategies and executors: two linear layers, and variants of them."""

import torch
from torch import nn


def _data(batch):
    return torch.randn(batch, 4), torch.randint(3, (batch,))


def make(batch):
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), *_data(batch)


class Shared(nn.Module):
    """One layer applied twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 3)

    def forward(self, x):
        return self.outer(self.inner(self.inner(x).relu()))


def shared(batch):
    return Shared(), *_data(batch)


def frozen(batch):
    module, x, y = make(batch)
    module[0].weight.requires_grad_(False)
    return module, x, y


def dropout(batch):
    module, x, y = make(batch)
    return nn.Sequential(module[0], nn.Dropout(0.5), *module[1:]), x, y


def normalised(batch):
    module, x, y = make(batch)
    return nn.Sequential(module[0], nn.BatchNorm1d(5), *module[1:]), x, y


def wide(batch):
    """Linear layers alone, so that the first has no gradient by its input."""
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), *_data(batch)


def steep(batch):
    """A loss so large that, scaled for fp16, its gradients overflow in the first two steps."""
    return *make(batch), lambda out, y: 10 * nn.functional.cross_entropy(out, y)


def unbiased(batch):
    """Layers of one parameter each, so that a layer's update is a parameter's."""
    return nn.Sequential(
        nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)
    ), *_data(batch)


def square(batch):
    """Three equal layers of one weight."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
    return nn.Sequential(*layers), torch.randn(batch, 8), torch.randint(8, (batch,))
