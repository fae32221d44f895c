"""Small models: chains of layers, and some that are not chains."""

from functools import partial

import torch
from torch import nn

from tests.support.nets import Net


def _images(batch, *layers, size=8, classes=3):
    return nn.Sequential(*layers), torch.randn(batch, 2, size, size), torch.randint(classes, (batch,))


def every_layer(batch):
    """A layer of each kind that has a Jacobian rule, in odd sizes."""
    return _images(
        batch,
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.1),
        nn.Conv2d(4, 6, (3, 2), padding=(2, 1), dilation=(2, 1), groups=2),
        nn.Tanh(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(6, 5, 1),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2, stride=1),
        nn.Sigmoid(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(20, 7),
        nn.GELU(),
        nn.Linear(7, 3),
        size=9,
    )


def residual(batch):
    """Two layers with a skip connection."""

    def step(net, x):
        x = torch.tanh(net.first(x))
        return net.last(torch.tanh(net.inner(x)) + x)

    net = Net(step, first=nn.Linear(6, 6), inner=nn.Linear(6, 6), last=nn.Linear(6, 3))
    return net, torch.randn(batch, 6), torch.randint(3, (batch,))


def normalised(batch):
    return _images(batch, nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3))


def single(batch):
    return nn.Linear(4, 3), torch.randn(batch, 4), torch.randint(3, (batch,))


def layer_normalised(batch):
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def deep(batch):
    layers = [layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(4, 3)), torch.randn(batch, 4), torch.randint(3, (batch,))


def wide(batch, width=3000):
    layers = nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    return nn.Sequential(*layers), torch.randn(batch, 4), torch.randint(3, (batch,))


wider = partial(wide, width=9000)
