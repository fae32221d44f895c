"""Models with ops and views that no rule divides among devices: each is one that a division of its layers once failed on."""

import torch
from torch import nn

LENGTH, WIDTH, CLASSES = 6, 8, 10


def _made(module, batch, *more):
    return module, (torch.randn(batch, LENGTH, WIDTH), *more), torch.randint(0, CLASSES, (batch,))


class _SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.body(x.transpose(0, 1)).mean(0))


def sequence_first(batch):
    """The mean goes over the first dimension, and the batch is the second."""
    return _made(_SequenceFirst(), batch)


class _OneDimensional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.convolution(x.transpose(1, 2)).amax(-1))


def one_dimensional(batch):
    """Windows along one axis."""
    return _made(_OneDimensional(), batch)


class _EmptyCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        keys = torch.cat([x.new_empty(0), self.key(x)], dim=1)
        keys = torch.cat([keys[:, :0], keys], dim=1)
        return self.head((keys @ x.transpose(1, 2)).softmax(-1).amax(2) @ x.new_ones(LENGTH, WIDTH))


def empty_cache(batch):
    """Keys are appended to an empty cache, which has one dimension at first."""
    return _made(_EmptyCache(), batch)


class _ViewedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.turn = nn.Parameter(torch.randn(LENGTH, WIDTH)), nn.Parameter(torch.randn(WIDTH // 2, 2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = (x.unsqueeze(1) + self.position.unsqueeze(0)).squeeze(1)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.view_as_complex(self.turn).conj()
        return self.head(torch.view_as_real(turned).flatten(-2).flatten(0, -3).amax(1))


def viewed_parameters(batch):
    """The gradients of parameters are views (squeeze, view_as_real) of what backward computes."""
    return _made(_ViewedParameters(), batch)


class _Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(LENGTH, WIDTH // 2 + 1, 2)), nn.Linear(LENGTH * WIDTH, CLASSES)

    def forward(self, x):
        return self.head(torch.fft.irfft2(torch.fft.rfft2(x) * torch.view_as_complex(self.weight)).flatten(1))


def spectral(batch):
    """The backward of irfft doubles a part of a gradient in place, and that of a product reads a conjugate."""
    return _made(_Spectral(), batch)


class _Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.head = nn.Linear(WIDTH, LENGTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x, mask, scale, bias):
        weights = (self.score(x) * scale).masked_fill(mask, -1e9).softmax(-1)
        return self.head((weights @ x + bias).mean(1))


def masked(batch):
    """Inputs without a batch dimension: a mask, a number, and a bias with as many elements as a batch may have."""
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return _made(_Masked(), batch, mask, torch.tensor(0.5), torch.randn(WIDTH))
