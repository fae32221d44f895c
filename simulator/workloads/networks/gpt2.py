"""GPT-2 (Radford et al., 2019), which predicts the next token. Attention is three steps, as in the original code.

Shapes: N sequences, T tokens, D model width, H heads, V tokens in the vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, POSITIONS = 50_257, 1024
_DROPOUT = 0.1


class Attention(nn.Module):
    """Causal multi-head attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]; `causal` [T, T] says what each token may attend to."""
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = self.dropout(torch.where(causal, scores, -math.inf).softmax(-1))
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two linear layers, each after a layer norm and before dropout and a residual sum."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]."""
        x = x + self.dropout(self.attention(self.norm1(x), causal))
        return x + self.dropout(self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh")))


class GPT2(nn.Module):
    """Embeddings of tokens and positions, and `depth` blocks; the embedding of tokens also maps the last output to logits."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("causal", torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril(), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, V]."""
        length = tokens.shape[1]
        x = self.dropout(self.tokens(tokens) + self.positions.weight[:length])
        causal = self.causal[:length, :length]
        for block in self.blocks:
            x = block(x, causal)
        return F.linear(self.norm(x), self.tokens.weight)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [N, T, V] for the next tokens [N, T]."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
