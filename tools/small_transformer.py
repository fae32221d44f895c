"""A transformer of four layers that is small enough for two cores: a user's own model, which imports PyTorch alone."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LENGTH, LAYERS, VOCABULARY = 256, 4, 64, 4, 2000


class Layer(nn.Module):
    """Attention and two linear layers, each after a layer-norm and with a shortcut."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, L, WIDTH] to [N, L, WIDTH]."""
        query, key, value = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5).softmax(dim=-1)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


def make(batch_size: int) -> tuple:
    """The model with random tokens and their successors."""
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )
    tokens = torch.randint(VOCABULARY, (batch_size, LENGTH + 1))
    return (
        model,
        (tokens[:, :-1],),
        tokens[:, 1:].contiguous(),
        lambda logits, target: F.cross_entropy(logits.flatten(0, 1), target.flatten()),
    )
