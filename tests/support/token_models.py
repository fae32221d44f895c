"""Models whose tokens are divided otherwise than a decoder's: attention to all tokens, with masks, or written out; and a mean."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.nets import Net

TOKENS, WIDTH, HEADS, CLASSES = 8, 8, 2, 6


def _written_out(query, key, value):
    scores = query @ key.transpose(2, 3)
    return scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf).softmax(-1) @ value


def _window(query, key, value):
    near = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=-0.5 * near.abs().to(query.dtype))


def _last(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=torch.ones(1, 1, 1, TOKENS, dtype=torch.bool).tril(TOKENS - 2))


def _made(batch, attend, dropout=0.0):
    """One block of attention; `attend` maps queries, keys and values [sequences, heads, tokens, width] to as many queries."""

    def step(net, tokens):
        x = net.embedding(tokens)
        parts = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in net.project(x).chunk(3, dim=2))
        return net.head(net.dropout(x + attend(*parts).transpose(1, 2).flatten(2))).flatten(0, 1)

    layers = {"embedding": nn.Embedding(CLASSES, WIDTH), "project": nn.Linear(WIDTH, 3 * WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
    tokens = torch.randint(CLASSES, (2, batch, TOKENS))
    net = Net(step, dropout=nn.Dropout(dropout), **layers)
    return net, tokens[0], tokens[1], lambda output, target: F.cross_entropy(output, target.flatten())


#: Every token attends to all; with a row of the mask for each query; with one row for all; in the math form.
encoder = partial(_made, attend=F.scaled_dot_product_attention)
window = partial(_made, attend=_window)
last = partial(_made, attend=_last)
written_out = partial(_made, attend=_written_out)
dropout = partial(_made, attend=F.scaled_dot_product_attention, dropout=0.5)


def mean(batch):
    """A class for each sequence, from the mean of its tokens."""

    def step(net, tokens):
        return net.head((net.embedding(tokens) * net.position(torch.arange(TOKENS))).tanh().mean(1))

    net = Net(step, embedding=nn.Embedding(CLASSES, WIDTH), position=nn.Embedding(TOKENS, WIDTH), head=nn.Linear(WIDTH, CLASSES))
    return net, torch.randint(CLASSES, (batch, TOKENS)), torch.randint(CLASSES, (batch,))
