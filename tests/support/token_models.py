"""Models whose tokens are divided otherwise than a decoder's: attention to all tokens, with masks, or written out; and a mean."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH, HEADS, CLASSES = 8, 8, 2, 6


class _Attending(nn.Module):
    """One block of attention; `attend` maps queries, keys and values [sequences, heads, tokens, width] to as many queries."""

    def __init__(self, attend, dropout: float = 0.0):
        super().__init__()
        self.attend, self.dropout = attend, nn.Dropout(dropout)
        self.embedding, self.project, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        x = self.embedding(tokens)
        parts = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in self.project(x).chunk(3, dim=2))
        return self.head(self.dropout(x + self.attend(*parts).transpose(1, 2).flatten(2))).flatten(0, 1)


def _written_out(query, key, value):
    scores = query @ key.transpose(2, 3)
    return scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ value


def _window(query, key, value):
    near = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=-0.5 * near.abs().to(query.dtype))


def _last(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=torch.ones(1, 1, 1, TOKENS, dtype=torch.bool).tril(TOKENS - 2))


def _made(batch, attend, **options):
    tokens = torch.randint(CLASSES, (2, batch, TOKENS))
    return _Attending(attend, **options), tokens[0], tokens[1], lambda output, target: F.cross_entropy(output, target.flatten())


#: Every token attends to all; with a row of the mask for each query; with one row for all; in the math form.
encoder = partial(_made, attend=F.scaled_dot_product_attention)
window = partial(_made, attend=_window)
last = partial(_made, attend=_last)
written_out = partial(_made, attend=_written_out)
dropout = partial(_made, attend=F.scaled_dot_product_attention, dropout=0.5)


class _Mean(nn.Module):
    """A class for each sequence, from the mean of its tokens."""

    def __init__(self):
        super().__init__()
        self.embedding, self.position, self.head = nn.Embedding(CLASSES, WIDTH), nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        return self.head((self.embedding(tokens) * self.position(torch.arange(TOKENS))).tanh().mean(1))


def mean(batch):
    return _Mean(), torch.randint(CLASSES, (batch, TOKENS)), torch.randint(CLASSES, (batch,))
