"""Models of one layer whose loss is the mean of the output's squares, so that any part of the output has a loss of its own."""

from torch import nn, randn, zeros


def _made(batch, *shape, layers):
    return nn.Sequential(*layers), randn(batch, *shape), zeros(batch), lambda output, _: output.square().mean()


def linear(batch):
    return _made(batch, 4, layers=[nn.Linear(4, 6)])


def dropout(batch):
    """Two masks in a layer's place, of one shape."""
    return _made(batch, 4, layers=[nn.Linear(4, 6), nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.3))])


def convolution(batch):
    return _made(batch, 2, 5, 5, layers=[nn.Conv2d(2, 6, 3)])


def batch_norm(batch):
    return _made(batch, 6, layers=[nn.BatchNorm1d(6)])
