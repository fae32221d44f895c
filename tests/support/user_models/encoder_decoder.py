"""A translator: one embedding for both languages and the output, relative positions from a table, rotations as complex numbers."""

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, SOURCE, TARGET = 20, 8, 6, 4


class Block(nn.Module):
    def __init__(self, length, memory_length):
        super().__init__()
        self.query, self.key_value = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.distance = nn.Parameter(torch.randn(length + memory_length))
        distances = torch.arange(length)[:, None] - torch.arange(memory_length) + memory_length
        self.register_buffer("distances", distances, persistent=False)

    def forward(self, x, memory):
        key, value = self.key_value(memory).chunk(2, dim=-1)
        weights = (self.query(x) @ key.transpose(1, 2) + self.distance[self.distances]).softmax(-1)
        x = self.norm(x + F.dropout(weights, 0.1, self.training) @ value)
        return x + self.mlp(x)


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.1)
        self.encoder, self.decoder, self.cross = Block(SOURCE, SOURCE), Block(TARGET, TARGET), Block(TARGET, SOURCE)
        self.output = nn.Linear(2 * WIDTH, WORDS)
        self.angle = nn.Parameter(torch.randn(WIDTH // 2))

    def forward(self, source, target):
        source, target = (self.dropout(self.embedding(words)) for words in (source, target))
        source = self.encoder(source, source)
        target = torch.view_as_complex(target.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(self.angle), self.angle)
        target = torch.view_as_real(target).flatten(-2)
        target = self.decoder(target, target)
        both = torch.stack([target, self.cross(target, source)], dim=2).flatten(-2)
        return self.output(both), both[..., :WIDTH] @ self.embedding.weight.T


def loss(outputs, words):
    return sum(F.cross_entropy(output.flatten(0, 1), words.flatten()) for output in outputs)


def make(batch_size):
    source, target = torch.randint(0, WORDS, (batch_size, SOURCE)), torch.randint(0, WORDS, (batch_size, TARGET))
    return EncoderDecoder(), (source, target), target, loss
