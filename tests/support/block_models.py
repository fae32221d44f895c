"""Small models of repeated blocks, for checkpointing: attention, norms, dropout, batch-norm and ops in place."""

from collections import Counter
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


class Attending(nn.Module):
    """A block of a transformer: attention and a perceptron, each behind a norm and before a sum."""

    def __init__(self, width=8, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(dropout)
        self.project, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.project(self.norm1(x)).chunk(3, -1))
        x = x + self.drop(self.output(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))


class Convolving(nn.Module):
    """A block with batch-norm whose activations, and whose sum, are in place."""

    def __init__(self, channels=4):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        y += x
        return torch.relu_(y)


class Stack(nn.Module):
    """Blocks between a first and a last layer. `run` calls a block."""

    def __init__(self, first, blocks, last, run=lambda block, x: block(x)):
        super().__init__()
        self.first, self.blocks, self.last, self.run = first, nn.ModuleList(blocks), last, run

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.last(x).mean(1) if x.dim() == 3 else self.last(x.mean((2, 3)))


def _attending(batch, dropout=0.0, **how):
    model = Stack(nn.Linear(4, 8), [Attending(dropout=dropout) for _ in range(3)], nn.Linear(8, 5), **how)
    return model, torch.randn(batch, 6, 4), torch.randint(5, (batch,))


def attending(batch):
    return _attending(batch)


def dropping(batch):
    return _attending(batch, 0.3)


def convolving(batch):
    return (
        Stack(nn.Conv2d(3, 4, 1), [Convolving() for _ in range(3)], nn.Linear(4, 5)),
        torch.randn(batch, 3, 6, 6),
        torch.randint(5, (batch,)),
    )


def checkpointing(batch):
    """A model that checkpoints its blocks itself."""
    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=False))


def reentrant(batch):
    """The same in the older form."""
    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=True))


def redrawing(batch):
    """A model that checkpoints blocks with dropout itself."""
    return _attending(batch, 0.3, run=lambda block, x: checkpoint(block, x, use_reentrant=False))


def _every_second_product(counts, context, op, *args, **kwargs):
    """The policy of torchtitan's per-op checkpointing, for products with a bias."""
    counts[context.is_recompute, op] += 1
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    kept = op is attention or (op is torch.ops.aten.addmm.default and counts[context.is_recompute, op] % 2 == 1)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def selecting(batch):
    """A model that checkpoints its blocks itself, but for attention and every second product by weights."""

    def contexts():
        return create_selective_checkpoint_contexts(partial(_every_second_product, Counter()))

    return _attending(batch, run=lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts))
