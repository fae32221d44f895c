"""Random small models: `random_models:make_SEED` is the factory of the model of a seed, the same on every call.

A model reads numbers, images or tokens, and applies random layers one after another: products, convolutions of odd shapes, attention,
norms, dropout, activations, residuals, branches that join by a sum, a product or a concatenation, and layers that are applied again with
the same weights. Some parameters are frozen.
"""

import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU, nn.LeakyReLU)
CLASSES = 3


class Join(nn.Module):
    """Applies several modules to one input and joins their outputs, of one shape, and the input if `skip`."""

    def __init__(self, how: str, skip: bool, *branches: nn.Module):
        super().__init__()
        self.how, self.skip, self.branches = how, skip, nn.ModuleList(branches)

    def forward(self, x):
        outputs = [branch(x) for branch in self.branches] + ([x] if self.skip else [])
        if self.how == "cat":
            return torch.cat(outputs, dim=1)
        joined = outputs[0]
        for output in outputs[1:]:
            joined = joined * torch.sigmoid(output) if self.how == "product" else joined + output
        return joined


class Attention(nn.Module):
    """Attention of a sequence to itself, (batch, length, width) to the same."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.inner, self.outer, self.heads, self.causal = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, causal

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.inner(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal)
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, width))


class Tokens(nn.Module):
    """Predicts each next token; the last layer has the weights of the first if `tied`."""

    def __init__(self, words: int, width: int, tied: bool, body: nn.Module):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(words, width), body, nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens))).transpose(1, 2)


class _Layers:
    """Draws layers. `norm`: a norm of a given width; `layer`: a layer between two widths that keeps all other extents."""

    def __init__(self, rng: random.Random, norms: tuple[Callable[[int], nn.Module], ...], layer: Callable[[int, int], nn.Module]):
        self.rng, self.norms, self.layer = rng, norms, layer

    def body(self, width: int, count: int, extra: Callable[[int], nn.Module] | None = None) -> tuple[list[nn.Module], int]:
        """`count` random layers in order from a width on, and the width after them. `extra`: one more layer that keeps the width."""
        layers: list[nn.Module] = []
        again: dict[int, nn.Module] = {}
        for _ in range(count):
            kind = self.rng.choice(("layer", "layer", "norm", "activation", "dropout", "residual", "branches", "again", "extra"))
            if kind == "layer":
                new = self.rng.randint(2, 7)
                layers.append(self.layer(width, new))
                width = new
            elif kind == "norm":
                layers.append(self.rng.choice(self.norms)(width))
            elif kind == "dropout":
                layers.append(nn.Dropout(self.rng.choice((0.1, 0.5))))
            elif kind == "residual":
                layers.append(Join(self.rng.choice(("sum", "product")), True, nn.Sequential(self.layer(width, width), self._activation())))
            elif kind == "branches":
                how = self.rng.choice(("sum", "product", "cat"))
                new = self.rng.randint(2, 5)
                layers.append(Join(how, False, self.layer(width, new), nn.Sequential(self.layer(width, new), self._activation())))
                width = 2 * new if how == "cat" else new
            elif kind == "again":
                layers.append(again.setdefault(width, self.layer(width, width)))
            elif kind == "extra" and extra is not None:
                layers.append(extra(width))
            else:
                layers.append(self._activation())
        return layers, width

    def _activation(self) -> nn.Module:
        return self.rng.choice(ACTIVATIONS)()


def _numbers(rng: random.Random, batch: int):
    width = rng.randint(2, 9)
    layers = _Layers(rng, (nn.LayerNorm, nn.BatchNorm1d), lambda before, after: nn.Linear(before, after, bias=rng.random() < 0.8))
    body, end = layers.body(width, rng.randint(1, 8))
    if rng.random() < 0.3:  # a regression with a loss of its own
        return nn.Sequential(*body, nn.Linear(end, 2)), torch.randn(batch, width), torch.randn(batch, 2), nn.MSELoss()
    return nn.Sequential(*body, nn.Linear(end, CLASSES)), torch.randn(batch, width), torch.randint(CLASSES, (batch,))


def _images(rng: random.Random, batch: int):
    def convolution(before: int, after: int) -> nn.Module:
        size = rng.choice(((1, 1), (3, 3), (3, 1), (1, 5)))
        groups = rng.choice([g for g in (1, 2, before) if before % g == 0 and after % g == 0])
        return nn.Conv2d(before, after, size, padding=(size[0] // 2, size[1] // 2), groups=groups, bias=rng.random() < 0.5)

    def pooled(width: int) -> nn.Module:
        return rng.choice((nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d((2, 1), (2, 1), ceil_mode=True), nn.Upsample((7, 5))))

    channels, height, width = rng.randint(1, 3), rng.randint(5, 9), rng.randint(5, 9)
    norms = nn.BatchNorm2d, lambda width: nn.GroupNorm(1, width)
    layers, end = _Layers(rng, norms, convolution).body(channels, rng.randint(1, 6), pooled)
    if rng.random() < 0.5:
        layers.append(nn.Conv2d(end, end := rng.randint(2, 4), (3, 2), stride=(2, 1), dilation=(1, 2), padding=1))
    tail = nn.AdaptiveAvgPool2d(rng.choice((1, (2, 1))))
    model = nn.Sequential(*layers, tail, nn.Flatten())
    features = model.eval()(torch.zeros(1, channels, height, width)).shape[1]
    return model.train().append(nn.Linear(features, CLASSES)), torch.randn(batch, channels, height, width), torch.randint(CLASSES, (batch,))


def _tokens(rng: random.Random, batch: int):
    words, length, width = rng.randint(5, 11), rng.randint(2, 6), 2 * rng.randint(1, 4)
    layers = _Layers(rng, (nn.LayerNorm,), nn.Linear)
    body, end = layers.body(width, rng.randint(1, 5), lambda wide: Attention(wide, 2 if wide % 2 == 0 else 1, rng.random() < 0.5))
    tokens, target = torch.randint(words, (batch, length)), torch.randint(words, (batch, length))
    return Tokens(words, width, rng.random() < 0.5, nn.Sequential(*body, nn.Linear(end, width))), tokens, target


def _make(seed: int, batch: int):
    rng = random.Random(seed)
    module, *others = rng.choice((_numbers, _images, _tokens))(rng, batch)
    parameters = list(module.parameters())
    for parameter in parameters[:-1]:
        parameter.requires_grad_(rng.random() < 0.9)
    return module, *others


def __getattr__(name: str):
    """Return the factory of a seed by its name, make_SEED."""
    if not name.startswith("make_"):
        raise AttributeError(name)
    return lambda batch: _make(int(name.removeprefix("make_")), batch)
