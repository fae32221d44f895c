"""Similarity: one encoder applied to two pictures, a projection of its own for each, a contrastive loss over the pairs."""

import torch
from torch import nn
from torch.nn import functional as F


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.query = nn.Linear(64, 12, bias=False)
        self.document = nn.Linear(64, 12, bias=False)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, left, right):
        left = F.normalize(self.query(self.encoder(left)), dim=-1)
        right = F.normalize(self.document(self.encoder(right)), dim=-1)
        return left, right, self.temperature


def contrastive(output, same):
    left, right, temperature = output
    similarity = (left * right).sum(-1) * temperature
    same = same.to(similarity.dtype)
    return (same * (1 - similarity) + (1 - same) * F.relu(similarity - 0.2)).mean()


def make(batch_size):
    left, right = torch.randn(batch_size, 1, 16, 16), torch.randn(batch_size, 1, 16, 16)
    same = torch.randint(0, 2, (batch_size,))
    return TwoTowers(), (left, right), same, contrastive
