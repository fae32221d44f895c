"""Language models: BERT (Devlin et al., 2018) with a head that finds answers or masked tokens, and GPT-2 (Radford et al., 2019).

Attention is three steps, as in the original code. Shapes: N sequences, T tokens, D model width, H heads, V tokens in the vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simulator.model.workloads.networks.sequences import split_heads

_BERT_TOKENS, _BERT_POSITIONS, _SEGMENTS = 30_522, 512, 2
_GPT2_TOKENS, _GPT2_POSITIONS = 50_257, 1024
_DROPOUT = 0.1
#: BERT predicts one token in this many.
_EVERY = 7
#: Target of a token whose prediction does not count: the default of PyTorch's cross-entropy.
_IGNORED = -100


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [N, T, V] over the labels [N, T] that are not -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _initialize(network: nn.Module) -> None:
    """Initialize as BERT and GPT-2 do."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, 0.0, 0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class BertAttention(nn.Module):
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
        query, key, value = (split_heads(projected, self.heads) for projected in (self.query(x), self.key(x), self.value(x)))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]) + mask
        weights = self.dropout(scores.softmax(-1))
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class BertLayer(nn.Module):
    """Self-attention and two linear layers, each followed by dropout, a residual sum and a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = BertAttention(width, heads)
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
        self.tokens = nn.Embedding(_BERT_TOKENS, width)
        self.positions = nn.Embedding(_BERT_POSITIONS, width)
        self.segments = nn.Embedding(_SEGMENTS, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Tokens and segments [N, T] to [N, T, D]. `mask` [N, T] is 1 for tokens and 0 for padding."""
        positions = self.positions.weight[: tokens.shape[1]]
        x = self.dropout(self.norm(self.tokens(tokens) + positions + self.segments(segments)))
        added = (1.0 - mask[:, None, None]) * -10_000.0
        for layer in self.layers:
            x = layer(x, added)
        return x


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


class MaskedLanguageModel(nn.Module):
    """BERT with a head that predicts the token at every position; the embedding of tokens is also the last matrix."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.bert = Bert(width, heads, depth)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(_BERT_TOKENS))
        _initialize(self)

    def forward(self, tokens: Tensor, segments: Tensor, mask: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, V]."""
        x = self.norm(F.gelu(self.dense(self.bert(tokens, segments, mask))))
        return F.linear(x, self.bert.tokens.weight, self.bias)


class CausalAttention(nn.Module):
    """Causal multi-head attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        """[N, T, D] to [N, T, D]; `causal` [T, T] says what each token may attend to."""
        query, key, value = (split_heads(part, self.heads) for part in self.project(x).chunk(3, -1))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        weights = self.dropout(torch.where(causal, scores, -math.inf).softmax(-1))
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class GPT2Block(nn.Module):
    """Attention and two linear layers, each after a layer norm and before dropout and a residual sum."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
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

    causal: Tensor

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(_GPT2_TOKENS, width)
        self.positions = nn.Embedding(_GPT2_POSITIONS, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.blocks = nn.ModuleList(GPT2Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("causal", torch.ones(_GPT2_POSITIONS, _GPT2_POSITIONS, dtype=torch.bool).tril(), persistent=False)
        _initialize(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T] to logits [N, T, V]."""
        length = tokens.shape[1]
        x = self.dropout(self.tokens(tokens) + self.positions.weight[:length])
        causal = self.causal[:length, :length]
        for block in self.blocks:
            x = block(x, causal)
        return F.linear(self.norm(x), self.tokens.weight)


def masked_tokens(batch: int, length: int, *sizes: int) -> tuple:
    """Return BERT of width, heads and layers `sizes` as a masked language model, random inputs, labels [batch, length], and the loss.

    `length`: 512 at most.
    """
    predicted = (torch.arange(length) % _EVERY == 0).expand(batch, length)
    labels = torch.where(predicted, torch.randint(_BERT_TOKENS, (batch, length)), _IGNORED)
    return MaskedLanguageModel(*sizes).train(), _bert_inputs(batch, length), labels, token_loss


def answers(batch: int, length: int, *sizes: int) -> tuple:
    """Return BERT of width, heads and layers `sizes` with the head that finds answers, random inputs, and first and last tokens [batch, 2].

    The loss is the mean cross-entropy of both. `length`: 512 at most.
    """
    return AnswerFinder(*sizes).train(), _bert_inputs(batch, length), torch.randint(length, (batch, 2)), F.cross_entropy


def _bert_inputs(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, segments and a mask without padding, [batch, length] each."""
    tokens = torch.randint(_BERT_TOKENS, (batch, length))
    return tokens, (torch.arange(length) >= length // 2).long().repeat(batch, 1), torch.ones(batch, length)


def next_tokens(batch: int, length: int, *sizes: int) -> tuple:
    """Return GPT-2 of width, heads and blocks `sizes`, random tokens [batch, length], the next tokens [batch, length], and the loss.

    `length`: 1024 at most.
    """
    text = torch.randint(_GPT2_TOKENS, (batch, length + 1))
    return GPT2(*sizes).train(), (text[:, :-1].contiguous(),), text[:, 1:].contiguous(), token_loss
