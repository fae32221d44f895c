"""A tiny vision transformer: patches, a class token, PyTorch's own encoder layers, dropout everywhere."""

import torch
from torch import nn


class VisionTransformer(nn.Module):
    def __init__(self, size=16, patch=4, width=24, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 48, dropout=0.1, activation="gelu", batch_first=True, norm_first=True),
            num_layers=2,
            enable_nested_tensor=False,
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        x = self.encoder(self.dropout(x))
        return self.head(self.norm(x)[:, 0])


def make(batch_size):
    return VisionTransformer(), (torch.randn(batch_size, 3, 16, 16),), torch.randint(0, 10, (batch_size,))
