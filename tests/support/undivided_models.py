"""Models with ops and views that no rule divides among devices: each is one that a division of its layers once failed on."""

import torch
from torch import nn

from tests.support.nets import Net

LENGTH, WIDTH, CLASSES = 6, 8, 10


def _made(step, batch, *more, head=WIDTH, **parts):
    """The net, with a head of so many features, on [batch, LENGTH, WIDTH] and other inputs."""
    inputs = torch.randn(batch, LENGTH, WIDTH), *more
    return Net(step, **parts, head=nn.Linear(head, CLASSES)), inputs, torch.randint(0, CLASSES, (batch,))


def sequence_first(batch):
    """The mean goes over the first dimension, and the batch is the second."""
    return _made(lambda net, x: net.head(net.body(x.transpose(0, 1)).mean(0)), batch, body=nn.Linear(WIDTH, WIDTH))


def one_dimensional(batch):
    """Windows along one axis."""
    convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    return _made(lambda net, x: net.head(net.convolution(x.transpose(1, 2)).amax(-1)), batch, convolution=convolution)


def empty_cache(batch):
    """Keys are appended to an empty cache, which has one dimension at first."""

    def step(net, x):
        keys = torch.cat([x.new_empty(0), net.key(x)], dim=1)
        keys = torch.cat([keys[:, :0], keys], dim=1)
        return net.head((keys @ x.transpose(1, 2)).softmax(-1).amax(2) @ x.new_ones(LENGTH, WIDTH))

    return _made(step, batch, key=nn.Linear(WIDTH, WIDTH))


def viewed_parameters(batch):
    """The gradients of parameters are views (squeeze, view_as_real) of what backward computes."""

    def step(net, x):
        x = (x.unsqueeze(1) + net.position.unsqueeze(0)).squeeze(1)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.view_as_complex(net.turn).conj()
        return net.head(torch.view_as_real(turned).flatten(-2).flatten(0, -3).amax(1))

    position, turn = nn.Parameter(torch.randn(LENGTH, WIDTH)), nn.Parameter(torch.randn(WIDTH // 2, 2))
    return _made(step, batch, position=position, turn=turn)


def spectral(batch):
    """The backward of irfft doubles a part of a gradient in place, and that of a product reads a conjugate."""

    def step(net, x):
        return net.head(torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(net.weight)).flatten(1))

    return _made(step, batch, weight=nn.Parameter(torch.randn(LENGTH, WIDTH // 2 + 1, 2)), head=LENGTH * WIDTH)


def masked(batch):
    """Inputs without a batch dimension: a mask, a number, and a bias with as many elements as a batch may have."""

    def step(net, x, mask, scale, bias):
        weights = (net.score(x) * scale).masked_fill(mask, -1e9).softmax(-1)
        return net.head((weights @ x + bias).mean(1))

    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return _made(step, batch, mask, torch.tensor(0.5), torch.randn(WIDTH), score=nn.Linear(WIDTH, LENGTH))


def long_positions(batch):
    """A table of learned positions for longer sequences: its last rows have gradients of zero, and decay."""
    positions = nn.Parameter(torch.randn(3 * LENGTH, WIDTH))
    return _made(lambda net, x: net.head((x + net.positions[: x.shape[1]]).mean(1)), batch, positions=positions)
