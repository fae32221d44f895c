"""The models of `pairs.csv` that are not built in, by the ops that their code issues: FILE.py:FACTORY, the factory's name has the size.

`cs336_SIZE_CONTEXT`: the language model of the course CS336 (damek/cs336-assignment2-systems, cs336-basics/cs336_basics/model.py): RMS
norms in separate ops, rotary positions, attention in products and a softmax of five ops, SwiGLU. `gpt2_124m`: GPT-2 without dropout, with
attention in products, on 1,024 tokens. `unet3d`: the 3-D U-Net of NERSC/sc22-dl-tutorial (networks/UNet.py).
"""

import math
import re
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Blocks, heads and width by size; the hidden layer is four times as wide.
SIZES = {"small": (12, 12, 768), "large": (36, 20, 1280), "xl": (48, 25, 1600)}
_TOKENS, _GPT2_TOKENS, _GPT2_LENGTH = 10_000, 50_257, 1024


class RMSNorm(nn.Module):
    """x over its root mean square, in float32. Shape: (batch, time, width)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized x, in its dtype."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * wide).to(x.dtype)


class RotatedAttention(nn.Module):
    """Causal attention with rotary positions. Shapes: (batch, time, width)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _rotated(self, x: Tensor, turns: Tensor) -> Tensor:
        """x [batch, heads, time, size] with every pair of numbers turned; `turns` [2, most tokens, size / 2]."""
        positions = torch.arange(x.shape[2], device=x.device)
        cosines, sines = turns[:, positions]
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((cosines * even - sines * odd, sines * even + cosines * odd), -1).flatten(-2)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """What every token gathers."""
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        query, key = self._rotated(query, turns), self._rotated(key, turns)
        places = torch.arange(x.shape[1], device=x.device)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        scores = torch.where(places[:, None] >= places, scores, float("-inf"))
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and SwiGLU, each after an RMS norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norms = nn.ModuleList((RMSNorm(width), RMSNorm(width)))
        self.attention = RotatedAttention(width, heads)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Shapes: (batch, time, width)."""
        x = x + self.attention(self.norms[0](x), turns)
        inner = self.norms[1](x)
        gate = self.gate(inner)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(inner))


class RotatedModel(nn.Module):
    """The language model of CS336."""

    turns: Tensor

    def __init__(self, blocks: int, heads: int, width: int, length: int):
        super().__init__()
        size = width // heads
        angles = torch.arange(length)[:, None] * 10_000.0 ** -(torch.arange(0, size, 2) / size)
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)
        self.tokens = nn.Embedding(_TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, _TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, tokens)."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.turns)
        return self.head(self.norm(x))


def written_out_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy, of separate ops."""
    logits = logits - logits.amax(-1, keepdim=True)
    return (torch.log(torch.exp(logits).sum(-1)) - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)).mean()


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of logits (batch, time, tokens)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class GPT2Block(nn.Module):
    """Attention in products and a softmax, and two linear layers, each after a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Shapes: (batch, time, width); `hidden` (time, time) is True where a token must not look."""
        parts = self.joint(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(2, 3) * (1 / math.sqrt(query.shape[-1]))).masked_fill(hidden, float("-inf"))
        x = x + self.out((F.softmax(scores, -1) @ value).transpose(1, 2).flatten(2))
        return x + self.hidden(self.second(x))


class GPT2(nn.Module):
    """GPT-2 of 124 million parameters without dropout; the embedding of tokens is also the head."""

    hidden: Tensor

    def __init__(self, blocks: int = 12, heads: int = 12, width: int = 768):
        super().__init__()
        self.tokens, self.places = nn.Embedding(_GPT2_TOKENS, width), nn.Embedding(_GPT2_LENGTH, width)
        self.blocks = nn.ModuleList(GPT2Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("hidden", torch.ones(_GPT2_LENGTH, _GPT2_LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, tokens)."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.hidden)
        return F.linear(self.norm(x), self.tokens.weight)


def _text(batch: int, length: int, tokens: int) -> tuple[Tensor, Tensor]:
    return torch.randint(tokens, (batch, length)), torch.randint(tokens, (batch, length))


def gpt2_124m(batch: int):
    """GPT-2 on 1,024 tokens."""
    return GPT2(), *_text(batch, _GPT2_LENGTH, _GPT2_TOKENS), token_loss


class UNet3d(nn.Module):
    """Six convolutions that halve the sides, and six that double them, each with the result of the same size next to its input."""

    def __init__(self):
        super().__init__()
        sizes = (4, 64, 128, 256, 512, 512, 512)
        self.down = nn.ModuleList(nn.Conv3d(a, b, 4, 2, 1) for a, b in pairwise(sizes))
        ups = ((512, 512), (1024, 512), (1024, 256), (512, 128), (256, 64), (128, 5))
        self.up = nn.ModuleList(nn.ConvTranspose3d(a, b, 4, 2, 1) for a, b in ups)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 4, side, side, side) to (batch, 5, side, side, side)."""
        kept = []
        for layer in self.down:
            x = F.leaky_relu(layer(x), inplace=True)
            kept.append(x)
        for number, layer in enumerate(self.up[:-1]):
            x = F.relu(layer(x if not number else torch.cat((x, kept[-1 - number]), 1)), inplace=True)
        return torch.tanh(self.up[-1](torch.cat((x, kept[0]), 1)))


def unet3d(batch: int):
    """The U-Net on cubes of 64 points a side, with the mean absolute difference as its loss."""
    return UNet3d(), torch.randn(batch, 4, 64, 64, 64), torch.randn(batch, 5, 64, 64, 64), F.l1_loss


def ten_linear(batch: int):
    """Ten linear layers of 1,024 without bias (pytorch/pytorch issue 120308)."""
    layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(10)))
    return layers, torch.randn(batch, 1024), torch.randn(batch, 1024), F.mse_loss


def __getattr__(name: str):
    """The factory `cs336_SIZE_CONTEXT`."""
    match = re.fullmatch(r"cs336_(small|large|xl)_(\d+)", name)
    if match is None:
        raise AttributeError(name)
    size, length = SIZES[match[1]], int(match[2])
    return lambda batch: (RotatedModel(*size, length), *_text(batch, length, _TOKENS), written_out_loss)
