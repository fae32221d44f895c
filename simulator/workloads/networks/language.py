"""BERT (Devlin et al., 2018) with a head that finds answers or masked tokens. Attention is three steps, as in the original code.

Shapes: N sequences, T tokens, D model width, H heads, V tokens in the vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, _POSITIONS, _SEGMENTS = 30_522, 512, 2
_DROPOUT = 0.1
#: Target of a token whose prediction does not count.
IGNORED = -100


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself; dropout acts on the attention's weights."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]; `mask` [N, 1, 1, T] is added to the scores."""
        query, key, value = (
            projected.unflatten(-1, (self.heads, -1)).transpose(1, 2) for projected in (self.query(x), self.key(x), self.value(x))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]) + mask
        weights = self.dropout(scores.softmax(-1))
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Self-attention and two linear layers, each followed by dropout, a residual sum and a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]."""
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.linear2(F.gelu(self.linear1(x)))))


class Bert(nn.Module):
    """Embeddings of tokens, positions and segments, and `depth` layers."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(_POSITIONS, width)
        self.segments = nn.Embedding(_SEGMENTS, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Tokens and segments [N, T] to [N, T, D]. `mask` [N, T] is 1 for tokens and 0 for padding."""
        positions = self.positions.weight[: tokens.shape[1]]
        x = self.dropout(self.norm(self.tokens(tokens) + positions + self.segments(segments)))
        added = (1.0 - mask[:, None, None]) * -10_000.0
        for layer in self.layers:
            x = layer(x, added)
        return x


def _initialize(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, 0.0, 0.02)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)


class AnswerFinder(nn.Module):
    """BERT with a linear layer that scores every token as the first and as the last of an answer."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.bert = Bert(width, heads, depth)
        self.answer = nn.Linear(width, 2)
        _initialize(self)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Tokens [N, T] to scores [N, T, 2]."""
        return self.answer(self.bert(tokens, segments, mask))


def answer_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """Return the mean cross-entropy of the first and the last token of answers [N, 2], from scores [N, T, 2]."""
    return F.cross_entropy(scores, answers)


class MaskedLanguageModel(nn.Module):
    """BERT with a head that predicts the token at every position; the embedding of tokens is also the last matrix."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.bert = Bert(width, heads, depth)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        _initialize(self)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, V]."""
        x = self.norm(F.gelu(self.dense(self.bert(tokens, segments, mask))))
        return F.linear(x, self.bert.tokens.weight, self.bias)


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [N, T, V] over the labels [N, T] that are not `IGNORED`."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
