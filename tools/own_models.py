"""Two models as users write them: an MLP and a small GPT."""

import torch
from torch import nn


class Block(nn.Module):
    """A pre-norm transformer block with causal attention. Shapes: (batch, time, width)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        """x plus attention, plus the hidden layer."""
        batch, time, width = x.shape
        parts = self.joint(self.first(x)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.hidden(self.second(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head."""

    def __init__(self, tokens: int = 5000, width: int = 192, blocks: int = 4, heads: int = 6, time: int = 64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, ids):
        """Logits, shape (batch, tokens, time)."""
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places))).transpose(1, 2)


def gpt(batch: int):
    """A GPT of four blocks, on sequences of 64 tokens."""
    return GPT(), torch.randint(0, 5000, (batch, 64)), torch.randint(0, 5000, (batch, 64))


def mlp(batch: int):
    """Three linear layers."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, torch.randn(batch, 512), torch.randint(0, 10, (batch,))
